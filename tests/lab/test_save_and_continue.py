"""The signal that Slurm sends before a time limit: the job saves, is started again, and no step is lost.

The same job carries a variable that nobody planned, and nodes whose files differ: ranks tell what reached them.
"""

import json
import shutil
import time

import pytest

from tests.support.lab import STATE, play

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]
RUN, STEPS = "signal-test", 30
RUNS, PLAN = STATE / "shared/runs" / RUN, STATE / "plan" / RUN
SETTINGS = {
    "training_job_run": RUN,
    "training_job_steps": STEPS,
    "training_job_checkpoint_interval": 0,
    "training_job_evaluation_interval": 0,
    "training_job_requeue_ok": True,
    "training_job_environment": {"NCCL_NVLS_ENABLE": "0"},
    "training_job_watch": False,
}
OWN = {"gpu01": "NCCL_MIN_NCHANNELS=1", "gpu02": "NCCL_MIN_NCHANNELS=2"}


def wait_for(condition, seconds, what):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what} did not happen within {seconds} s"
        time.sleep(0.5)
    return found


def events(attempt, kind):
    path = RUNS / "attempts" / attempt / "events.jsonl"
    text = path.read_text() if path.exists() else ""
    lines = text[: text.rfind("\n") + 1].splitlines()  # the last one may still be written
    return [event for event in map(json.loads, lines) if event["kind"] == kind]


def steps(attempt):
    return [event["step"] for event in events(attempt, "step")]


@pytest.fixture(scope="module")
def job(lab):
    """One job that is asked to save during its first attempt; both attempts have ended."""
    for path in (RUNS, PLAN):
        shutil.rmtree(path, ignore_errors=True)
    play("playbooks/plan.yml", "-e", json.dumps(SETTINGS))
    for host, line in OWN.items():
        conf = PLAN / "nccl" / f"{host}.conf"
        conf.write_text(f"{conf.read_text()}{line}\n")
    play("playbooks/launch.yml", "-e", json.dumps(SETTINGS))
    number = json.loads((RUNS / "job.json").read_text())["job_id"]
    wait_for(lambda: len(steps(f"{number}.0")) >= 3, 240, "a third step")
    lab.ssh("ctl", f"scancel --signal=USR1 --batch {number}")
    wait_for(lambda: (RUNS / "attempts" / f"{number}.0/end.json").exists(), 120, "the end of the first attempt")
    wait_for(lambda: (RUNS / "attempts" / f"{number}.1/end.json").exists(), 400, "the end of the second attempt")
    yield number
    lab.ssh("ctl", f"scancel {number}", check=False)
    for path in (RUNS, PLAN):
        shutil.rmtree(path, ignore_errors=True)


def end(attempt):
    return json.loads((RUNS / "attempts" / attempt / "end.json").read_text())


def test_the_signal_saves_and_the_job_goes_on_with_no_step_lost(job):
    first, second = end(f"{job}.0"), end(f"{job}.1")
    assert (first["code"], first["requeued"]) == (77, True)
    assert (second["code"], second["requeued"]) == (0, False)
    before, after = steps(f"{job}.0"), steps(f"{job}.1")
    assert before + after == list(range(before[0], before[0] + len(before) + len(after)))
    assert after[-1] == STEPS
    assert len(before) < STEPS


def test_ranks_of_two_nodes_see_the_different_values_of_their_own_files(job):
    attempt = RUNS / "attempts" / f"{job}.0"
    for host, rank in (("gpu01", 0), ("gpu02", 4)):
        name, value = OWN[host].split("=")
        seen = json.loads((attempt / "placement" / f"{rank}.json").read_text())
        assert (seen["host"], seen["environment"][name]["value"]) == (host, value)
        inside = {it["name"]: it for it in json.loads((attempt / f"logs/{host}/inside.json").read_text())["values"]}
        assert (inside[name]["value"], inside[name]["origin"]) == (value, "the host's file")


def test_what_the_job_brought_is_told_from_inside_with_its_origin(job):
    told = "NCCL_NVLS_ENABLE=0 comes from job environment; nothing was planned for it"
    (event,) = events(f"{job}.0", "environment")
    assert event["findings"] == [told]
    assert told in (RUNS / "attempts" / f"{job}.0" / "logs/gpu01/0/stdout.log").read_text()
    assert f"inside rank 4 on gpu02: {told}" in (RUNS / f"slurm-{job}.out").read_text()
