"""Slurm's packages wait while a node has work, and are made up for after it."""

import json
import time

import pytest

from tests.support.lab import play

pytestmark = [pytest.mark.lab, pytest.mark.long, pytest.mark.timeout(1800)]
NODE = "gpu02"
# A package that needs no daemon and that the lab does not have: what another list of packages would bring.
PACKAGE = "libslurm-perl"
MORE = ["--limit", NODE, "-e", json.dumps({"__slurm_node_packages": ["slurmd", PACKAGE]})]


def wait_until(condition, what, seconds=90):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.5)


def installed(lab):
    return lab.ssh(NODE, f"dpkg-query --show --showformat='${{db:Status-Status}}' {PACKAGE} 2>&1", check=False)


@pytest.fixture
def job(lab):
    submit = f"sbatch --parsable --job-name=package-gate --nodelist={NODE} --exclusive --chdir=/tmp"
    number = lab.ssh("ctl", f"runuser -u hpc -- {submit} --wrap 'srun sleep 31415'").strip()
    try:
        wait_until(lambda: lab.ssh(NODE, "pgrep --exact sleep", check=False), "the job's step")
        yield number
    finally:
        lab.ssh("ctl", f"scancel --quiet {number}")
        lab.ssh("ctl", f"scontrol update nodename={NODE} state=resume", check=False)
        lab.ssh(NODE, f"dpkg --purge {PACKAGE}", check=False)


def test_a_package_waits_for_the_job_and_comes_after_it(lab, job):
    assert installed(lab) != "installed"
    daemon = lab.ssh(NODE, "pgrep --oldest slurmd")
    result = play("playbooks/provision.yml", *MORE)
    assert f"{NODE} pending: slurm, packages" in result.output
    assert installed(lab) != "installed"
    assert lab.ssh(NODE, "pgrep --oldest slurmd") == daemon
    assert lab.ssh("ctl", f"squeue --noheader --jobs={job} --format=%T").strip() == "RUNNING"

    lab.ssh("ctl", f"scancel {job}")
    wait_until(lambda: not lab.ssh(NODE, "pgrep slurmstepd", check=False).strip(), "the end of the job")
    lab.ssh("ctl", f"scontrol update nodename={NODE} state=drain reason='package gate'")
    wait_until(lambda: lab.ssh("ctl", f"sinfo --noheader --nodes={NODE} --format=%T").strip() == "drained", "the drain")
    result = play("playbooks/provision.yml", *MORE)
    assert installed(lab) == "installed"
    assert f"{NODE} pending: slurm, packages" not in result.output
