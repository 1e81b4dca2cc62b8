"""A lab of its own, beside the shared one or alone: after `lab_down` the machine is as it was before."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.lab import PODMAN, play

pytestmark = [pytest.mark.lab, pytest.mark.skipif(os.geteuid() != 0, reason="the lab needs root")]

HOSTS = """
all:
  children:
    slurm_controller:
      hosts:
        one: {ansible_host: 10.89.78.10}
    gpu_nodes:
      hosts:
        two: {ansible_host: 10.89.78.21}
"""
COUNTERS = re.compile(r"packets \d+ bytes \d+")


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def machine():
    """Return what a lab changes on a machine."""
    ruleset = COUNTERS.sub("", output("nft", "list", "ruleset"))
    return {
        "rules": ruleset if "{" in ruleset else "",
        "forwarding": Path("/proc/sys/net/ipv4/ip_forward").read_text().strip(),
        "links": sorted(line.split()[0].split("@")[0] for line in output("ip", "-brief", "link").splitlines()),
        "mounts": sorted(line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()),
        "cgroups": sorted(str(path) for path in Path("/sys/fs/cgroup").rglob("libpod*")),
        "runtime": sorted(path.name for path in Path("/run/rackweave-lab").glob("*")),
        "containers": sorted(output(podman(), "ps", "--all", "--format", "{{.Names}}").split()),
        "networks": sorted(output("podman", "network", "ls", "--format", "{{.Name}}").split()),
    }


def podman():
    """Return the command that sees the containers; podman itself must not be called past a lab's namespace."""
    return str(PODMAN) if PODMAN.exists() else "podman"


@pytest.fixture
def inventory(tmp_path):
    directory = tmp_path / "inventory/second"
    directory.mkdir(parents=True)
    (directory / "hosts.yml").write_text(HOSTS)
    variables = directory / "group_vars/all"
    variables.mkdir(parents=True)
    (variables / "paths.yml").write_text(
        f"rackweave_checkout: {tmp_path}\nrackweave_state_dir: {tmp_path}/.state\nlab_wheel_requirements: []\n"
        "lab_wheel_arguments: []\nlab_node_name: second\n"
        "lab_node_subnet: 10.89.78.0/24\n"
    )
    (tmp_path / "inventory/lab").mkdir()
    (tmp_path / ".cache/wheels").mkdir(parents=True)
    return str(directory)


@pytest.mark.long
def test_a_lab_is_idempotent_and_leaves_the_machine_as_it_found_it(inventory, tmp_path):
    play("playbooks/lab_down.yml", inventory=inventory)
    before = machine()
    first = play("playbooks/lab_up.yml", inventory=inventory)
    second = play("playbooks/lab_up.yml", inventory=inventory)
    assert Path("/proc/sys/net/ipv4/ip_forward").read_text().strip() == "1"
    play("playbooks/lab_down.yml", "-e", "lab_node_purge=false", inventory=inventory)
    assert machine() == before
    assert first.changed > 0
    assert second.changed_tasks == []
    assert (tmp_path / ".state/ssh/id_ed25519").exists()


def test_taking_down_a_lab_that_is_not_there_changes_nothing(inventory):
    assert play("playbooks/lab_down.yml", inventory=inventory).changed == 0


def test_a_subnet_in_use_is_refused_before_anything_starts(inventory):
    local = output("ip", "-brief", "-4", "address", "show", "lo").split()[-1].split("/")[0]
    hosts = '{"one": "127.0.0.10", "two": "127.0.0.11"}'
    result = play(
        "playbooks/lab_up.yml", "-e", "lab_node_subnet=127.0.0.0/8", "-e", '{"lab_node_hosts": ' + hosts + "}",
        inventory=inventory, expect=2,
    )  # fmt: skip
    play("playbooks/lab_down.yml", inventory=inventory)
    assert local
    assert "is in use by interface lo" in result.output
