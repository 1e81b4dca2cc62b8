"""A node is replaced: the difference is named, Slurm and the plan follow, the waiting job runs; a lost GPU is refused.

One module, in this order: each test finds the node as the one before left it.
"""

import json
import os
import random
import shutil
import time

import pytest

from tests.support.lab import ROOT, STATE, play
from tests.support.swap import (
    OVERLAY,
    RUN,
    TREES,
    end_state,
    kill_after,
    rebuild_process,
    recreate,
    variables,
    write_tree,
)

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]
LIMIT_S = 180
KILLS_SEED = 6
KILLED_RUNS = int(os.environ.get("RACKWEAVE_KILLED_RUNS", "10"))
NODE = "gpu02"
KILLS = STATE / "rebuild-kills.log"
WATCHER = "rackweave: XID 79, GPU 3 has fallen off the bus"
ACCEPTED = ROOT / "inventory/hardware/lab"
SLURM_FILES = "cat /etc/slurm/slurm.conf /etc/slurm/gres.conf /etc/slurm/cgroup.conf"
RESERVATIONS = "scontrol --oneliner show reservation"
DOCUMENT = f".state/lab/observed/{NODE}.json"


def rebuild(*arguments, expect=0):
    return play("playbooks/rebuild.yml", "--limit", NODE, *arguments, expect=expect)


def job_state(lab, job):
    return lab.ssh("ctl", f"squeue --noheader --jobs={job} --format='%T %r'", check=False).strip()


def wait_for(what, wanted, seconds=180):
    deadline = time.monotonic() + seconds
    while (found := what()) != wanted and time.monotonic() < deadline:
        time.sleep(0.5)
    assert found == wanted


def node_state(lab):
    return lab.ssh("ctl", f"sinfo --noheader --nodes={NODE} --format=%T").strip()


def nothing_of_ours_is_left(lab):
    assert "rackweave-rebuild" not in lab.ssh("ctl", RESERVATIONS, check=False)
    assert "rackweave-rebuild[" not in lab.ssh("ctl", "scontrol --oneliner show job", check=False)


@pytest.fixture(scope="module")
def swapped(lab, met_again):
    """Nodes that show the parts of their trees, a plan for them, and then another machine in NODE's place."""
    for host in ("gpu01", NODE):
        write_tree(host, serial="old")
    play("playbooks/verify.yml", "--tags", "verify_observe", *variables(**OVERLAY))
    play("playbooks/plan.yml", *variables(**OVERLAY))
    shared = STATE / "shared/runs" / RUN / "plan"
    shutil.copytree(STATE / "plan" / RUN, shared, dirs_exist_ok=True)
    lab.ssh("ctl", f"chown hpc /mnt/shared/runs && chown -R hpc /mnt/shared/runs/{RUN}")
    # As the watcher leaves it: out of service for a reason, with the job waiting for it.
    lab.ssh("ctl", f"scontrol update nodename={NODE} state=drain reason='{WATCHER}'")
    write_tree(NODE, serial="new", nic="mlx5_9")
    host_key = recreate(lab, NODE, interface="eth9")
    submit = f"sbatch --parsable --job-name=rackweave-{RUN} --nodes=2 --nodelist=gpu01,{NODE} --exclusive --chdir=/tmp"
    job = lab.ssh("ctl", f"runuser -u hpc -- {submit} --wrap 'srun sleep 31415'").strip()
    yield {"job": job, "host_key": host_key}
    lab.ssh("ctl", f"scancel --quiet --name=rackweave-{RUN}")
    if met_again:
        restore(lab)
    else:  # the node goes, and so does what was observed of it
        (ROOT / DOCUMENT).unlink(missing_ok=True)
    for path in (ACCEPTED, TREES, STATE / "plan" / RUN, STATE / "shared/runs" / RUN, STATE / "rebuild"):
        shutil.rmtree(path, ignore_errors=True)


def restore(lab):
    """Give the lab its node back as lab_up.yml makes it."""
    if "eth0" not in lab.ssh(NODE, "ls /sys/class/net", check=False):
        lab.podman("rm", "--force", "--time", "2", lab.container(NODE))
        play("playbooks/lab_up.yml")
    play("playbooks/provision.yml", "--limit", NODE)
    play("playbooks/verify.yml", "--tags", "verify_observe", "--limit", "gpu01")
    if "drain" in node_state(lab):
        lab.ssh("ctl", f"scontrol update nodename={NODE} state=resume")


def test_a_replaced_node_comes_back_with_the_difference_named(lab, swapped):
    refused = rebuild(*variables(**OVERLAY), expect=2)
    assert "presents another SSH host key: SHA256:" in refused.output
    assert WATCHER in lab.ssh("ctl", f"scontrol --oneliner show node {NODE}")

    keys = {"rebuild_host_keys": {NODE: swapped["host_key"]}}
    began = time.monotonic()
    result = rebuild(*variables(**OVERLAY, **keys))
    seconds = time.monotonic() - began
    (STATE / "rebuild-swap.log").write_text(f"{seconds:.0f} s\n{result.output}")

    assert seconds <= LIMIT_S
    assert "no hosts matched" not in result.output.lower()
    assert "skipping: no hosts" not in result.output.lower()
    for named in ("was replaced: GPU-", "name moved mlx5_0 -> mlx5_9", "NCCL_SOCKET_IFNAME: =eth0 -> =eth9", "MAC "):
        assert named in result.output, named
    assert result.output.count("was replaced: GPU-") >= 4
    conf = (STATE / "plan" / RUN / f"nccl/{NODE}.conf").read_text()
    assert "GLOO_SOCKET_IFNAME=eth9" in conf
    assert (STATE / "shared/runs" / RUN / f"plan/nccl/{NODE}.conf").read_text() == conf
    assert "GLOO_SOCKET_IFNAME=eth0" in (STATE / "plan" / RUN / "nccl/gpu01.conf").read_text()
    assert "NodeName=gpu[01-02] Name=gpu File=/dev/nvidia[0-3]" in lab.ssh("ctl", "cat /etc/slurm/gres.conf")
    wait_for(lambda: job_state(lab, swapped["job"]), "RUNNING None")
    accepted = json.loads((ACCEPTED / f"{NODE}.json").read_text())
    assert accepted["acceptance"]["node_test"] == "pass"
    nothing_of_ours_is_left(lab)


def test_a_node_that_lost_a_gpu_ends_drained_and_says_so(lab, swapped):
    lab.ssh("ctl", f"scancel {swapped['job']}")
    wait_for(lambda: node_state(lab), "idle")
    write_tree(NODE, serial="new", nic="mlx5_9", gpus=3)
    result = rebuild(*variables(**OVERLAY), expect=2)
    (STATE / "rebuild-lost.log").write_text(result.output)
    shown = lab.ssh("ctl", f"scontrol --oneliner show node {NODE}")
    assert "IDLE+DRAIN" in shown
    assert "Reason=rackweave-rebuild: lost: GPUs: 4 before, 3 now; GPU 3 at 0000:5b:00.0" in shown
    nothing_of_ours_is_left(lab)


@pytest.mark.long
def test_with_every_other_node_unreachable_it_still_writes_the_controllers_files(lab, swapped):
    write_tree(NODE, serial="new", nic="mlx5_9")
    lab.ssh("ctl", f"scancel --quiet {swapped['job']}")
    keys = {"rebuild_host_keys": {NODE: swapped["host_key"]}}
    before = lab.ssh("ctl", SLURM_FILES)
    lab.ssh("ctl", "rm /etc/slurm/gres.conf")
    lab.podman("stop", "--time", "5", lab.container("gpu01"))
    try:
        result = rebuild(*variables(**OVERLAY, **keys))
    finally:
        lab.podman("start", lab.container("gpu01"))
    (STATE / "rebuild-alone.log").write_text(result.output)
    assert "no hosts matched" not in result.output.lower()
    assert list(result.recap) == [NODE]
    assert lab.ssh("ctl", SLURM_FILES) == before
    assert node_state(lab) == "idle"
    accepted = json.loads((ACCEPTED / f"{NODE}.json").read_text())["acceptance"]
    assert (accepted["node_test"], accepted["pair_test"]) == ("pass", "pending")
    nothing_of_ours_is_left(lab)
    wait_for(lambda: lab.ssh("ctl", "sinfo --noheader --nodes=gpu01 --format=%T").strip(), "idle")


def killed_and_run_again(lab, tmp_path, seconds):
    """Kill a rebuild after some seconds and run it again; return what both left, or None if the kill came too late."""
    process = rebuild_process("--limit", NODE, *variables(**OVERLAY), log=tmp_path / "killed.log")
    if not kill_after(process, seconds):
        return None
    left = end_state(lab, NODE, ())
    began = time.monotonic()
    rebuild(*variables(**OVERLAY))
    again = time.monotonic() - began
    return left, again, end_state(lab, NODE, [DOCUMENT, f".state/lab/plan/{RUN}/nccl/{NODE}.conf"])


def without_volatile(state):
    return {**state, DOCUMENT: json.loads(state[DOCUMENT]).get("gpus")}


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_killed_at_ten_random_points_it_ends_the_same_each_time(lab, swapped, tmp_path):
    write_tree(NODE, serial="new", nic="mlx5_9")
    rebuild(*variables(**OVERLAY, rebuild_host_keys={NODE: swapped["host_key"]}))
    # The job that waited runs now, and every further rebuild would wait for its end.
    lab.ssh("ctl", f"scancel {swapped['job']}")
    wait_for(lambda: node_state(lab), "idle")
    # The first one also set the new machine up; the points are to lie within those that are killed.
    began = time.monotonic()
    rebuild(*variables(**OVERLAY))
    whole = time.monotonic() - began
    wanted = without_volatile(end_state(lab, NODE, [DOCUMENT, f".state/lab/plan/{RUN}/nccl/{NODE}.conf"]))
    points = random.Random(KILLS_SEED)
    KILLS.unlink(missing_ok=True)
    done = 0
    for _ in range(3 * KILLED_RUNS):
        seconds = points.uniform(2, whole)
        found = killed_and_run_again(lab, tmp_path, seconds)
        if found is None:
            continue  # it had ended before its kill, which proves nothing
        left, again, after = found
        done += 1
        with KILLS.open("a") as log:
            log.write(f"{done}: killed after {seconds:.0f} of {whole:.0f} s, again {again:.0f} s: {json.dumps(left)}\n")
        assert without_volatile(after) == wanted, f"killed after {seconds:.1f} s"
        nothing_of_ours_is_left(lab)
        if done == KILLED_RUNS:
            break
    assert done == KILLED_RUNS


def test_without_a_limit_or_with_too_many_nodes_nothing_is_touched(lab):
    shown = "sinfo --noheader --Node --format='%N %T %E'"
    before = lab.ssh("ctl", shown)
    without = play("playbooks/rebuild.yml", expect=2)
    assert "run it with --limit NODE; nothing was changed" in without.output
    many = play("playbooks/rebuild.yml", "--limit", "gpu01,gpu02", expect=2)
    assert "--limit names 2 nodes (gpu[01-02]), and rebuild_max_nodes allows 1" in many.output
    assert lab.ssh("ctl", shown) == before
