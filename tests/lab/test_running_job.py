"""Rule: a running job is never hurt. What would hurt it is listed as pending and made up for later."""

import json
import time

import pytest

from tests.support.lab import play

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]
# Another cgroup.conf asks for a restart of slurmd, another package list for a new environment.
CHANGED = json.dumps(
    {
        "slurm_cgroup": {"CgroupPlugin": "cgroup/v1", "ConstrainRAMSpace": False},
        "trainer_runtime_packages": ["six==1.17.0"],
    }
)
MARK = "test -e /run/rackweave-slurmd-restart && echo due || echo none"


def wait_for_state(lab, job, state, seconds=60):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if f"JobState={state}" in lab.ssh("ctl", f"scontrol show job {job}"):
            return
        time.sleep(0.5)
    raise AssertionError(f"job {job} is not {state}: {lab.ssh('ctl', f'scontrol show job {job}')}")


def step_processes(lab):
    """Return the process ids of the job's own program on each node, with their start times."""
    command = "ps --no-headers -o pid,lstart,args -C sleep | grep 'sleep 31415' || true"
    return {host: lab.ssh(host, command) for host in ("gpu01", "gpu02")}


@pytest.fixture
def job(lab):
    script = "--nodes=2 --ntasks-per-node=1 --exclusive --chdir=/tmp --wrap 'srun sleep 31415'"
    number = lab.ssh("ctl", f"runuser -u hpc -- sbatch --parsable {script}").strip()
    wait_for_state(lab, number, "RUNNING")
    yield number
    lab.ssh("ctl", f"scancel {number}")
    wait_for_state(lab, number, "CANCELLED")


def test_changed_pins_wait_for_the_job_and_are_made_up_for(lab, job):
    before = step_processes(lab)
    daemons = {host: lab.ssh(host, "pgrep --oldest slurmd") for host in before}
    result = play("playbooks/provision.yml", "-e", CHANGED)
    assert all("sleep 31415" in text for text in before.values())
    assert step_processes(lab) == before
    assert {host: lab.ssh(host, "pgrep --oldest slurmd") for host in before} == daemons
    assert "pending: slurm, restart of slurmd" in result.output
    assert "pending: trainer_runtime, packages" in result.output
    assert {lab.ssh(host, MARK).strip() for host in before} == {"due"}
    wait_for_state(lab, job, "RUNNING", seconds=1)


def test_after_the_job_the_restart_is_made_up_for(lab):
    deadline = time.monotonic() + 60
    while lab.ssh("ctl", "squeue --noheader") and time.monotonic() < deadline:
        time.sleep(0.5)
    daemons = {host: lab.ssh(host, "pgrep --oldest slurmd") for host in ("gpu01", "gpu02")}
    result = play("playbooks/provision.yml")
    assert {lab.ssh(host, MARK).strip() for host in daemons} == {"none"}
    assert all(lab.ssh(host, "pgrep --oldest slurmd") != pid for host, pid in daemons.items())
    assert "pending" not in result.output
    assert "drain" not in lab.ssh("ctl", "sinfo --noheader --format %T")
