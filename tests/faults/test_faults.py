"""Every fault, on the lab with real Slurm and the real trainer: who is named, how soon, and how the job comes back.

The injector is another process that draws target and moment from a seed; its record is read only when the verdict is
there. RACKWEAVE_FAULT_REPEATS says how often each fault is run (3), RACKWEAVE_FAULT_SEED where the seeds begin (1).
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.faults.small_disk import SmallDisk
from tests.support.fault_run import FaultRun, Watch, moment
from tests.support.lab import ROOT, STATE, Lab

REPEATS = int(os.environ.get("RACKWEAVE_FAULT_REPEATS", "3"))
FIRST_SEED = int(os.environ.get("RACKWEAVE_FAULT_SEED", "1"))
pytestmark = [pytest.mark.lab, pytest.mark.faults, pytest.mark.timeout(900)]
RESULTS = STATE / "faults" / "results.json"
RELAUNCH_S = 180


@dataclass(frozen=True)
class Case:
    """One kind of fault; it ``ends`` the job, is ``said`` while the job goes on, or ``passes``.

    ``named_s``: seconds from the fault to the culprit's name; None for a hang, whose limit counts from the last step.
    """

    fault: str
    shows: str = "ends"
    named_s: float | None = 30.0


# Those that leave the job running come first: they share one.
CASES = (
    Case("slurmctld restarted", "passes"),
    Case("controller killed", "passes"),
    Case("slow rank", "said", 120.0),
    Case("rank killed"),
    Case("link cut", named_s=120.0),
    Case("node killed"),
    Case("power cut"),
    Case("exception in one rank"),
    Case("rank stopped", named_s=None),
    Case("two faults at once"),
    Case("host memory exhausted"),
    Case("NaN"),
    Case("shared memory full"),
    Case("checkpoint disk full"),
)


@pytest.fixture(scope="module")
def run(lab: Lab):
    found = FaultRun(lab, "fault-runs")
    found.prepare()
    yield found
    found.cancel()


@pytest.fixture(scope="module")
def disk_run(lab: Lab):
    """A run whose checkpoints lie on a file system of their own, small enough to be filled."""
    found = FaultRun(lab, "fault-disk")
    FaultRun(lab, "fault-runs").cancel()  # the last fault's job, launched again, has the nodes
    found.prepare()
    (found.directory / "checkpoints").mkdir(parents=True, exist_ok=True)
    lab.ssh("ctl", f"chown -R hpc /mnt/shared/runs/{found.name}")
    disk = SmallDisk(lab, f"/mnt/shared/runs/{found.name}/checkpoints", 96)
    disk.mount(("ctl", "gpu01", "gpu02"))
    yield found
    found.cancel()
    disk.unmount()


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + REPEATS))
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.fault.replace(" ", "-"))
def test_the_culprit_is_named_in_time_and_no_published_step_is_lost(case: Case, seed: int, request, tmp_path: Path):
    run = request.getfixturevalue("disk_run" if case.fault == "checkpoint disk full" else "run")
    if not run.running():
        run.launch()
    watch = Watch(run.name)
    found: dict[str, Any] = {"fault": case.fault, "seed": seed, "attempt": run.attempts()[-1]}
    try:
        run.wait_for_checkpoint(240)
        watch.wait_for("] step ", 90)
        run.inject(case.fault, seed, tmp_path / "record.json")
        found.update(SHOWS[case.shows](run, watch))
        # The verdict stands; only now is looked at what was done.
        record = json.loads((tmp_path / "record.json").read_text())
        found.update(judge(case, run, found, record))
    finally:
        watch.stop()
        record = json.loads((tmp_path / "record.json").read_text()) if (tmp_path / "record.json").exists() else {}
        run.repair(record)
    if case.shows == "ends":
        found.update(come_back(run))
    keep(found)
    assert found["right"], found
    assert found["class_right"], found
    assert found["named_s"] is None or found["named_s"] <= found["limit_s"], found
    assert found.get("relaunch_s", 0) <= RELAUNCH_S, found
    assert found.get("lost_beyond_checkpoint", 0) == 0, found


def ends(run: FaultRun, watch: Watch) -> dict[str, Any]:
    """The play fails, and the verdict lies with the attempt."""
    code = watch.end(420)
    assert code == 2, watch.output
    verdict = run.verdict()
    # Where nobody is to be named, the line that tells the class is the first that a reader can act on.
    classed = watch.line(f"] {verdict['diagnosis_class']}: ") if verdict["culprit"] == "none" else None
    named = classed or watch.line("] names ")
    return {"culprit": verdict["culprit"], "class": verdict["diagnosis_class"], "sentence": verdict["sentence"],
            "collectors": {host: len(states) for host, states in verdict["collectors"].items()},
            "named_line": named[1] if named else None,
            "named_at": named[0] if named else watch.lines[-1][0]}  # fmt: skip


def said(run: FaultRun, watch: Watch) -> dict[str, Any]:
    """A line names the rank while the job goes on."""
    when, line = watch.wait_for("perf.straggler: ", 240)
    rank = line.split("perf.straggler: rank ")[1].split()[0]
    return {"culprit": f"rank:{rank}", "class": "perf.straggler", "named_line": line, "named_at": when}


def passes(run: FaultRun, watch: Watch) -> dict[str, Any]:
    """The job goes on for more than a few steps, and whoever watches it, again if need be, has nothing to say."""
    run.wait_for_steps(12, 240)
    again = watch if watch.process.poll() is None else Watch(run.name)
    try:
        again.wait_for("] step ", 90)
        alarms = [line for _, line in [*watch.lines, *again.lines] if "names " in line or "hang." in line]
    finally:
        again.stop()
    alive = run.running()
    return {"culprit": "none" if alive and not alarms else "job lost", "class": "healthy" if alive else "none",
            "named_line": alarms[0] if alarms else None, "named_at": None}  # fmt: skip


SHOWS = {"ends": ends, "said": said, "passes": passes}


def judge(case: Case, run: FaultRun, found: dict[str, Any], record: dict[str, Any]) -> dict[str, Any]:
    """Compare what was said with what was done; either of several culprits counts, a third one never does."""
    said_of = set(found["culprit"].split(","))
    steps = [moment(event["time"]) for event in run.events("step", found["attempt"])]
    struck, median = moment(record["time"]), run.median_step_s(found["attempt"])
    limit, begin = case.named_s, record["monotonic_s"]
    if limit is None and steps:
        limit = max(120.0, 2 * median + 30)
        begin += max(steps) - struck
    named = None if found["named_at"] is None else round(found["named_at"] - begin, 1)
    return {"record": record, "right": bool(said_of) and said_of <= set(record["culprits"]),
            "class_right": found["class"] in record["classes"], "named_s": named, "limit_s": limit,
            "median_step_s": round(median, 3)}  # fmt: skip


def come_back(run: FaultRun) -> dict[str, Any]:
    """Launch again; where the new attempt begins tells what was lost."""
    run.cancel()
    for path in (run.directory / "checkpoints").glob("filled-by-a-fault-run"):
        path.unlink()
    run.lab.ssh("gpu01", f"rm -f /mnt/shared/runs/{run.name}/checkpoints/filled-by-a-fault-run")
    before = run.attempts()[-1]
    last = max((event["step"] for event in run.events("step", before)), default=0)
    published = run.published(before)
    seconds = run.launch()
    first = run.events("step")[0]["step"]
    return {"relaunch_s": round(seconds, 1), "lost_steps": last - (first - 1),
            "lost_beyond_checkpoint": max(0, published - (first - 1))}  # fmt: skip


def keep(found: dict[str, Any]) -> None:
    """Add a result to those of this and earlier runs, with the state of the code and how busy the machine was.

    It is written at once and moved into place, so that a run that is cut off loses nothing.
    """
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    known.append({**found, "code": state_of_code(), "load": round(os.getloadavg()[0], 1)})
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    part = RESULTS.with_suffix(".part")
    part.write_text(json.dumps(known, indent=1) + "\n")
    part.replace(RESULTS)


def state_of_code() -> str:
    """Return the last commit of what a run consists of; a plus sign stands for changes since."""

    def git(*words: str) -> str:
        paths = ["--", "plugins", "roles", "playbooks", "trainer"]
        return subprocess.run(["git", *words, *paths], cwd=ROOT, capture_output=True, text=True, check=False).stdout

    commit = git("log", "-1", "--format=%h").strip()
    return (commit or "unknown") + ("+" if git("diff", "--name-only", "HEAD").strip() else "")
