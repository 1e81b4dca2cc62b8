"""Files, units and states of a converged lab are broken; a run finds and mends exactly these, the next one nothing."""

import json
import random
import re
from dataclasses import dataclass

import pytest

from tests.support.lab import leaks, play, secrets_of

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1200)]
SEED = 20


@dataclass(frozen=True)
class Damage:
    """One command that breaks something on a host, and the tasks that must notice it."""

    host: str
    command: str
    tasks: tuple[str, ...]
    # Tasks that follow from the repair; check mode cannot always foresee them.
    follow: tuple[str, ...] = ()


# The document of a node holds the configured limit, so check mode sees another document where that is broken.
DOCUMENT = ("Keep the documents on the controller",)
LOGIN_LIMITS = "Set the limit of locked memory for logins"
SERVICE_LIMITS = "Set the limit of locked memory for services"
NAMES = "Name the nodes in /etc/hosts"
CERTIFICATES = "Trust the certificate authorities of this site"
KEY = "Write the key"
CONFIG = "Write slurm.conf, gres.conf and cgroup.conf on the controller"
APPLY = ("Restart slurmctld", "Hand the new configuration to all nodes")
STATE = "Create the state directories of Slurm"
HOOKS = "/usr/local/libexec/rackweave"
HOOK_TASK = "Install what slurmd runs around jobs and for the health of the node"
HOOK_DIRECTORIES = "Create the directories of programs that slurmd runs"
EXPECTATIONS = "Tell the scripts of the node what it must have"
LIMITS_FILE = "/etc/security/limits.d/90-rackweave.conf"
SYSTEM_FILE = "/etc/systemd/system.conf.d/90-rackweave.conf"
DROPIN = "/etc/systemd/system/slurmd.service.d/rackweave.conf"
DROPIN_TASK = "Tell slurmd where its configuration is, and its limits"
RESTART = (
    "Drain an idle node for the restart",
    "Restart slurmd",
    "Release the node that was drained for the restart",
)
DAMAGES = (
    Damage("gpu01", f"sed -i s/unlimited/8192/ {LIMITS_FILE}", (LOGIN_LIMITS,), DOCUMENT),
    Damage("gpu02", f"rm {LIMITS_FILE}", (LOGIN_LIMITS,), DOCUMENT),
    Damage("ctl", f"chmod 0600 {LIMITS_FILE}", (LOGIN_LIMITS,), DOCUMENT),
    Damage("gpu01", f"rm {SYSTEM_FILE}", (SERVICE_LIMITS,), DOCUMENT),
    Damage("gpu02", f"echo DefaultLimitCORE=0 >> {SYSTEM_FILE}", (SERVICE_LIMITS,), DOCUMENT),
    Damage("ctl", f"chown hpc {SYSTEM_FILE}; sed -i 1d {SYSTEM_FILE}", (SERVICE_LIMITS,), DOCUMENT),
    Damage("gpu01", "sed 's/ gpu02$/ gpu2/' /etc/hosts > /tmp/h; cat /tmp/h > /etc/hosts; rm /tmp/h", (NAMES,)),
    Damage("gpu02", "sed '/Rackweave/,/Rackweave/d' /etc/hosts > /tmp/h; cat /tmp/h > /etc/hosts; rm /tmp/h", (NAMES,)),
    Damage("gpu02", "echo x >> /etc/munge/munge.key", (KEY, "Restart munge")),
    Damage("gpu01", "chmod 0440 /etc/munge/munge.key", (KEY, "Restart munge")),
    Damage("ctl", "sed -i s/SlurmdTimeout=20/SlurmdTimeout=300/ /etc/slurm/slurm.conf", (CONFIG,), APPLY),
    Damage("gpu02", f"sed -i s/infinity/8M/ {DROPIN}", (DROPIN_TASK,), (*RESTART, *DOCUMENT)),
    Damage("gpu01", f"echo exit >> {HOOKS}/slurm-prolog", (HOOK_TASK,)),
    Damage("gpu02", f"rm {HOOKS}/slurm-health", (HOOK_TASK,)),
    Damage("gpu02", f"chmod 0644 {HOOKS}/slurm-epilog", (HOOK_TASK,)),
    Damage("gpu01", "rmdir /etc/rackweave/prolog.d", (HOOK_DIRECTORIES,)),
    Damage("gpu02", "chmod 0777 /etc/rackweave/epilog.d", (HOOK_DIRECTORIES,)),
    Damage("gpu01", "sed -i s/nvidia0/nvidia9/ /etc/rackweave/slurm-node.json", (EXPECTATIONS,)),
    Damage("gpu02", "rm /etc/rackweave/slurm-node.json", (EXPECTATIONS,)),
    Damage("ctl", "rm /etc/slurm/topology.conf", (CONFIG,), APPLY),
    Damage("ctl", "sed -i s/nvidia/nvidea/ /etc/slurm/gres.conf", (CONFIG,), (*APPLY, *RESTART)),
    Damage("gpu01", "systemctl stop slurmd", ("Start slurmd",)),
    Damage("gpu02", "systemctl disable slurmd", ("Start slurmd",)),
    Damage("ctl", "systemctl disable slurmctld", ("Start slurmctld",)),
    Damage("ctl", "systemctl disable munge", ("Start munge",)),
    Damage("gpu01", "usermod --shell /bin/sh hpc", ("Create users",)),
    Damage("gpu02", "chown hpc /var/lib/slurm/slurmd", (STATE,)),
    Damage("ctl", "chmod 0700 /var/log/slurm", (STATE,)),
    Damage("ctl", "apt-get remove -y -q psmisc", ("Install packages",)),
    Damage("gpu02", "apt-get remove -y -q ethtool", ("Install packages",)),
)  # fmt: skip
TASK = re.compile(r"^(?:TASK|RUNNING HANDLER) \[(?:rackweave\.cluster\.\w+ : )?(.*?)\] \*+$")
CHANGED = re.compile(r"^changed: \[(\w+)(?: -> \S+)?\]")


def changes(output):
    """Return the pairs of host and task that a run reports as changed."""
    found, task = set(), ""
    for line in output.splitlines():
        if match := TASK.match(line):
            task = match.group(1)
        elif match := CHANGED.match(line):
            found.add((match.group(1), task))
    return found


@pytest.fixture(scope="module")
def broken(lab):
    """Break twenty things, in a random order."""
    chosen = random.Random(SEED).sample(DAMAGES, 20)
    for damage in chosen:
        lab.ssh(damage.host, damage.command)
    return chosen


def expected(damages):
    return {(damage.host, task) for damage in damages for task in damage.tasks}


def follow(damages):
    return {task for damage in damages for task in damage.follow}


def without(found, tasks):
    return {(host, task) for host, task in found if task not in tasks}


def test_check_mode_names_exactly_what_is_broken(broken):
    found = changes(play("playbooks/provision.yml", "--check").output)
    assert without(found, follow(broken)) == expected(broken)


def test_the_run_mends_exactly_what_is_broken(broken):
    found = changes(play("playbooks/provision.yml").output)
    # A slurmd that another repair restarted needs no start of its own.
    started = {(host, "Start slurmd") for host, task in found if task == "Restart slurmd"}
    assert without(found, follow(broken)) | started == expected(broken) | started


@pytest.fixture(scope="module")
def next_run(lab, broken):
    """Return the run after that at the highest verbosity, with the cluster's munge key given as a variable."""
    key = lab.ssh("ctl", "base64 --wrap=0 /etc/munge/munge.key").strip()
    return play("playbooks/provision.yml", "-vvv", "-e", json.dumps({"slurm_munge_key": key}))


def test_the_next_run_changes_nothing(next_run):
    assert next_run.changed_tasks == []
    assert next_run.changed == 0


def test_no_secret_is_printed_at_the_highest_verbosity(lab, next_run):
    assert next_run.output.count("SSH: EXEC") > 10
    assert leaks(next_run.output, secrets_of(lab)) == []


def test_check_mode_on_a_converged_cluster_neither_fails_nor_would_change_anything(next_run):
    result = play("playbooks/provision.yml", "--check", "--diff")
    assert result.changed_tasks == []
