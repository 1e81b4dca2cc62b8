"""Unattended operation in the lab, real Slurm and real trainer: what breaks is found, decided on and made up for."""

import json
import os
import subprocess
import time

import pytest

from tests.support.lab import BIN, ROOT, STATE

pytestmark = [pytest.mark.lab, pytest.mark.long, pytest.mark.timeout(900)]
RUN = "operated"
RUN_DIR = STATE / "shared" / "runs" / RUN
JOURNAL = STATE / "recovery" / "journal.jsonl"
SMALL = {"training_job_steps": "40", "training_job_checkpoint_interval": "5", "training_job_evaluation_interval": "20"}


def forget(run):
    """Remove what an earlier call of the test left, and the strikes that other tests earned the nodes."""
    for path in (RUN_DIR, STATE / "plan" / run, STATE / "runs" / f"{run}.json", STATE / "recovery" / "strikes.json"):
        subprocess.run(["rm", "-rf", str(path)], check=True)


def entries(since):
    lines = JOURNAL.read_text().splitlines() if JOURNAL.is_file() else []
    found = [json.loads(line) for line in lines]
    return [entry for entry in found if entry["run"] == RUN and entry["time_s"] >= since]


def newest_step():
    """Return attempt and step of the newest step that the run reported."""
    paths = sorted(RUN_DIR.glob("attempts/*/events.jsonl"), key=lambda path: path.stat().st_mtime)
    steps = [json.loads(line) for path in paths[-1:] for line in path.read_text().splitlines() if line.endswith("}")]
    numbers = [event["step"] for event in steps if event["kind"] == "step"]
    return (paths[-1].parent.name if paths else "", numbers[-1] if numbers else 0)


def wait_for_step(operation, step, seconds=240):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        attempt, reached = newest_step()
        if reached >= step:
            return attempt, reached
        if operation.poll() is not None:
            break
        time.sleep(1)
    raise AssertionError(
        f"step {step} was not reached: {operation.stdout.read() if operation.poll() is not None else ''}"
    )


@pytest.fixture
def operate(lab):
    """Start `rackweave operate`; whatever is left of it and of its job is ended afterwards."""
    forget(RUN)
    started = []

    def start(**changes):
        words = [f"--set={name}={value}" for name, value in {**SMALL, **changes}.items()]
        command = [str(BIN / "rackweave"), "operate", RUN, "--inventory", "inventory/lab", *words]
        environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
        started.append(
            subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
        )
        return started[-1]

    yield start
    for one in started:
        if one.poll() is None:
            one.terminate()
            one.wait(60)
    lab.ssh("ctl", f"scancel --name=rackweave-{RUN}", check=False)


def signal_a_rank(lab, host, name):
    """Send a signal to one rank of a host, by its process id there."""
    # The bracket keeps the shell that asks out of the answer, `true` its last look out of the exit status.
    find = "pgrep -f '[p]ython -m trainer' | while read p; do grep -qz ^RANK= /proc/$p/environ && echo $p; true; done"
    pids = lab.ssh(host, find)
    lab.ssh(host, f"kill -{name} {pids.split()[-1]}")


def test_a_killed_rank_is_brought_back_and_the_run_finishes_even_if_the_operator_dies_in_between(lab, operate):
    since = time.time()
    first = operate()
    wait_for_step(first, 12)
    signal_a_rank(lab, "gpu02", "KILL")
    first.kill()
    first.wait()
    second = operate()
    output, _ = second.communicate(timeout=420)
    assert second.returncode == 0, output
    decisions = [entry for entry in entries(since) if entry["kind"] == "decision"]
    assert [(entry["action"], entry["requeued_by_job"]) for entry in decisions] == [("retry", True)]
    assert sum(entry["kind"] == "submit" for entry in entries(since)) == 1
    assert newest_step()[1] == 40


def test_a_hung_rank_is_stopped_and_the_run_goes_on_with_one_node_less(lab, operate):
    since = time.time()
    operation = operate(operator_shrink="suspected")
    wait_for_step(operation, 8)
    signal_a_rank(lab, "gpu02", "STOP")
    output, _ = operation.communicate(timeout=600)
    assert operation.returncode == 0, output
    found = entries(since)
    decision = next(entry for entry in found if entry["kind"] == "decision")
    assert (decision["diagnosis_class"], decision["leave"]) == ("hang.no_progress", ["gpu02"])
    assert next(entry for entry in found if entry["kind"] == "replan")["hosts"] == ["gpu01"]
    assert newest_step()[1] == 40
    assert "drain" not in lab.ssh("ctl", "sinfo --noheader --format %T")
