"""The embedded cluster as tests see it: playbooks, nodes by ssh, containers by podman."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAME = "rackweave"  # lab_node_name of the role's defaults
STATE = ROOT / ".state/lab"
PODMAN = Path("/run/rackweave-lab/podman")
BIN = Path(sys.executable).parent
RECAP = re.compile(r"^(\S+)\s+: ok=(\d+)\s+changed=(\d+)\s+unreachable=(\d+)\s+failed=(\d+)", re.MULTILINE)
CHANGED = re.compile(r"^TASK \[(.*?)\] \*+\n(?:(?!^TASK \[).*\n)*?changed: ", re.MULTILINE)


@dataclass(frozen=True)
class PlayResult:
    """What a playbook printed, and its recap."""

    code: int
    output: str

    @property
    def recap(self) -> dict[str, dict[str, int]]:
        keys = ("ok", "changed", "unreachable", "failed")
        return {row[0]: dict(zip(keys, map(int, row[1:]))) for row in RECAP.findall(self.output)}

    @property
    def changed(self) -> int:
        return sum(row["changed"] for row in self.recap.values())

    @property
    def changed_tasks(self) -> list[str]:
        return CHANGED.findall(self.output)


def play(playbook: str, *arguments: str, inventory: str = "inventory/lab", expect: int | None = 0) -> PlayResult:
    """Run a playbook of the checkout; with `expect` its exit code is checked and the output shown if it differs."""
    command = [str(BIN / "ansible-playbook"), "-i", inventory, playbook, *arguments]
    environment = {
        **os.environ,
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_FORCE_COLOR": "0",
    }
    done = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if expect is not None and done.returncode != expect:
        raise AssertionError(f"{playbook} ended with {done.returncode}:\n{done.stdout[-6000:]}")
    return PlayResult(done.returncode, done.stdout)


def ssh_options() -> list[str]:
    known_hosts = STATE / "ssh/known_hosts"
    options = ["-i", str(STATE / "ssh/id_ed25519"), "-o", f"UserKnownHostsFile={known_hosts}", "-o", "BatchMode=yes"]
    return [*options, "-o", "GlobalKnownHostsFile=/dev/null", "-o", "ControlMaster=no"]


@dataclass(frozen=True)
class Lab:
    """The running lab; names to addresses, and whether it stays after the tests, as one that was there before does."""

    addresses: dict[str, str]
    stays: bool = True

    def ssh(self, host: str, command: str, check: bool = True) -> str:
        done = subprocess.run(
            ["ssh", *ssh_options(), f"root@{self.addresses[host]}", command],
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        if check and done.returncode:
            raise AssertionError(f"{host}: {command!r} ended with {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout

    @staticmethod
    def container(host: str) -> str:
        return f"{NAME}-{host}"

    def podman(self, *arguments: str) -> str:
        done = subprocess.run([str(PODMAN), *arguments], capture_output=True, text=True, check=True)
        return done.stdout


def secrets_of(lab: Lab) -> dict[str, list[str]]:
    """Return texts that no output may hold: the keys of munge, of the hosts' ssh, and of our own login."""
    munge = lab.ssh("ctl", "base64 --wrap=0 /etc/munge/munge.key").strip()
    assert len(munge) > 40
    found = {
        "munge key": [munge, munge[:40], munge[-40:]],
        "our private key": _key_lines((STATE / "ssh/id_ed25519").read_text()),
    }
    for host in lab.addresses:
        found[f"host keys of {host}"] = _key_lines(lab.ssh(host, "cat /etc/ssh/ssh_host_*_key"))
    assert all(found.values())
    return found


def _key_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if len(line) > 40 and "-----" not in line]


def leaks(output: str, secrets: dict[str, list[str]]) -> list[str]:
    """Return which secrets an output holds."""
    marks = [name for name, texts in secrets.items() if any(text in output for text in texts)]
    return marks + (["a private key"] if "PRIVATE KEY-----" in output else [])


def inventory_hosts(inventory: str) -> dict[str, list[str]]:
    """Return group to host names, as Ansible reads the inventory."""
    command = [str(BIN / "ansible-inventory"), "-i", inventory, "--list"]
    groups = json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout)
    names = {group: list(value.get("hosts", [])) for group, value in groups.items() if group != "_meta"}
    children = {group: value.get("children", []) for group, value in groups.items() if group != "_meta"}

    def all_of(group: str) -> list[str]:
        found = list(names.get(group, []))
        for child in children.get(group, []):
            found += [host for host in all_of(child) if host not in found]
        return found

    return {group: all_of(group) for group in names}


def running_here() -> bool:
    """Return whether a lab of this checkout runs already, with all its nodes."""
    if not PODMAN.exists():
        return False
    label = f"label=rackweave.lab.checkout={ROOT}"
    done = subprocess.run(
        [str(PODMAN), "ps", "--filter", label, "--quiet"], capture_output=True, text=True, check=False
    )
    return done.returncode == 0 and len(done.stdout.split()) >= 3


def addresses_of(inventory: str = "inventory/lab") -> dict[str, str]:
    command = [str(BIN / "ansible-inventory"), "-i", inventory, "--list"]
    variables = json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout)
    return {host: values["ansible_host"] for host, values in variables["_meta"]["hostvars"].items()}


def heal() -> None:
    """Bring the lab back to what tests begin with: all nodes up, as provisioning makes them, idle, and no job."""
    if play("playbooks/lab_up.yml", expect=None).code:
        return  # what follows would only take its time
    lab = Lab(addresses_of())
    free = (
        "squeue --noheader --format=%A | xargs --no-run-if-empty scancel; "
        "sinfo --noheader --Node --states=drain,down --format=%N | sort --unique | "
        "xargs --no-run-if-empty --replace scontrol update nodename={} state=resume"
    )
    lab.ssh("ctl", free, check=False)
    play("playbooks/provision.yml", expect=None)
    lab.ssh("ctl", free, check=False)
