"""Rule: a running job is never hurt. What would hurt it is listed as pending and made up for later.

One story in order: new pins while the lab trains, a limited run after it, a run over all nodes.
"""

import json
import re
import shutil
import time

import pytest
from rackweave.provision.inventory import expand_hosts

from tests.support.lab import STATE, play

pytestmark = [pytest.mark.lab, pytest.mark.long, pytest.mark.timeout(1200)]
NODES = ("gpu01", "gpu02")
RUN = "pins-test"
JOB = {
    "training_job_run": RUN,
    "training_job_steps": 5000,
    "training_job_checkpoint_interval": 5000,
    "training_job_evaluation_interval": 5000,
    "training_job_requeue_ok": False,
    "training_job_watch": False,
}
# Another cgroup.conf asks for a restart of slurmd, another package list for a new environment.
PINS = {
    "slurm_cgroup": {"CgroupPlugin": "cgroup/v1", "ConstrainRAMSpace": False},
    "trainer_runtime_packages": ["six==1.17.0"],
}
MARK = "test -e /run/rackweave-slurmd-restart && echo due || echo none"
OWED = "ls /var/lib/rackweave/slurm-restarts 2>/dev/null || true"


def wait_until(condition, what, seconds=60):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return
        time.sleep(0.5)
    raise AssertionError(f"{what}: not within {seconds} s")


def ranks(lab):
    """Return the processes of the ranks on each node, with their start times."""
    command = "ps --no-headers -o pid,lstart -p $(pgrep --full --delimiter , 'trainer --attemp[t]')"
    return {host: lab.ssh(host, command) for host in NODES}


def daemons(lab):
    return {host: lab.ssh(host, "pgrep --oldest slurmd").strip() for host in NODES}


def steps(lab):
    """Return how many steps the newest attempt has made."""
    text = lab.ssh("ctl", f"cat /mnt/shared/runs/{RUN}/attempts/*/events.jsonl 2>/dev/null | grep -c loss", check=False)
    return int(text or 0)


@pytest.fixture(scope="module")
def job(lab):
    """A training of many steps on both nodes, past its first step."""
    for path in (STATE / "shared/runs" / RUN, STATE / "plan" / RUN, STATE / "report" / RUN):
        shutil.rmtree(path, ignore_errors=True)
    output = play("playbooks/plan.yml", "playbooks/launch.yml", "-e", json.dumps(JOB)).output
    number = re.search(r"submitted as job (\d+)", output)[1]
    try:
        wait_until(lambda: steps(lab) > 0, "the first step", 240)
        yield number
    finally:
        lab.ssh("ctl", "scancel --user=hpc")
        wait_until(lambda: not lab.ssh("ctl", "squeue --noheader").strip(), "the end of the job", 90)


@pytest.fixture(scope="module")
def site(lab, job, tmp_path_factory):
    """The whole site with changed pins while the job trains, and what was there before and after it."""
    # Without an earlier verdict, acceptance has every node to test.
    path = tmp_path_factory.mktemp("site") / "verify.json"
    before = (ranks(lab), daemons(lab), steps(lab))
    output = play("site.yml", "-e", json.dumps({**JOB, **PINS, "acceptance_report_file": str(path)})).output
    return before, output, (ranks(lab), daemons(lab), steps(lab)), json.loads(path.read_text())


def test_new_pins_leave_every_rank_and_every_slurmd_alone_and_the_training_goes_on(site):
    before, _, after, _ = site
    assert all(text.count("\n") >= 4 for text in before[0].values())
    assert after[0] == before[0]
    assert after[1] == before[1]
    assert after[2] > before[2]


def test_what_would_hurt_the_job_is_listed_as_pending(lab, site):
    _, output, *_ = site
    waiting = ",".join(re.findall(r"([\w\[\],-]+) pending: slurm, restart of slurmd: \d+ job step daemons", output))
    assert set(expand_hosts(waiting)) == set(NODES)
    assert "pending: trainer_runtime, packages" in output
    assert {lab.ssh(host, MARK).strip() for host in NODES} == {"due"}
    assert lab.ssh("ctl", OWED).split() == list(NODES)


def test_launch_finds_the_running_job_again(lab, site, job):
    _, output, *_ = site
    assert f"attached to job {job}" in output
    assert lab.ssh("ctl", "squeue --noheader --format=%i,%T").split() == [f"{job},RUNNING"]


def test_acceptance_leaves_the_nodes_of_the_job_for_later(site):
    report = site[3]["acceptance"]
    assert {host: entry["verdict"] for host, entry in report["hosts"].items()} == dict.fromkeys(NODES, "pending")


def test_after_the_job_a_limited_run_restarts_its_node_and_names_the_other(lab, site):
    old = site[2][1]
    lab.ssh("ctl", "scancel --user=hpc")
    wait_until(lambda: not lab.ssh("ctl", "squeue --noheader").strip(), "the end of the job", 90)
    output = play("playbooks/provision.yml", "--limit", "gpu02").output
    new = daemons(lab)
    assert new["gpu02"] != old["gpu02"]
    assert new["gpu01"] == old["gpu01"]
    assert "pending: slurm, restart of slurmd on gpu01 (outside of this run" in output
    assert lab.ssh("ctl", OWED).split() == ["gpu01"]


def test_a_run_over_all_nodes_makes_up_for_the_rest_and_disturbs_no_other(lab):
    old = daemons(lab)
    output = play("playbooks/provision.yml").output
    new = daemons(lab)
    assert new["gpu01"] != old["gpu01"]
    assert new["gpu02"] == old["gpu02"]
    assert "pending" not in output
    assert {lab.ssh(host, MARK).strip() for host in NODES} == {"none"}
    assert lab.ssh("ctl", OWED).split() == []
    assert "drain" not in lab.ssh("ctl", "sinfo --noheader --format %T")
