"""A job of the lab for fault runs: launched, watched, hit by an injector that is another process, launched again."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from rackweave.watch.progress import Limits

from tests.support.lab import BIN, ROOT, STATE, Lab

SHARED = STATE / "shared"
SEEN_BY_NODES = "/mnt/shared"
SETTINGS = {
    "training_job_steps": 100000,
    "training_job_decay_steps": 100000,
    "training_job_checkpoint_interval": 8,
    "training_job_evaluation_interval": 40,
    "training_job_requeue_ok": False,
    # Nodes are blamed here for what was done to them: no drain, and no strike in the ledger that other runs live with.
    "training_job_drain_ok": False,
    "operator_directory": str(STATE / "faults" / "recovery"),
    # Longer than any limit here: what names a hang is then the watchdog, and not the job's own time-out.
    "training_job_collective_timeout_s": 300,
    "training_job_hang_grace_s": 5,
    "training_job_command": ["python", f"{SEEN_BY_NODES}/faults/program.py", f"{SEEN_BY_NODES}/faults/ear",
                             "--attempt", "{attempt}"],
}  # fmt: skip
PUBLISHED = ("published", "validated")


def moment(text: str) -> float:
    """Return an ISO 8601 time as seconds since the epoch."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def environment() -> dict[str, str]:
    return {**os.environ, "ANSIBLE_NOCOLOR": "1", "PATH": f"{BIN}:{os.environ['PATH']}"}


def playbooks(run: str, *names: str) -> list[str]:
    """Return the command that runs playbooks of a fault run."""
    paths = [f"playbooks/{name}.yml" for name in names]
    values = json.dumps({**SETTINGS, "training_job_run": run})
    return [str(BIN / "ansible-playbook"), "-i", "inventory/lab", *paths, "-e", values]


class Watch:
    """watch.yml in the background; each line with the clock at which it came."""

    def __init__(self, run: str) -> None:
        self.process = subprocess.Popen(
            playbooks(run, "watch"), cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True,
        )  # fmt: skip
        self.lines: list[tuple[float, str]] = []
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append((time.monotonic(), line.rstrip("\n")))

    def line(self, words: str) -> tuple[float, str] | None:
        """Return the first line that holds these words."""
        return next(((when, line) for when, line in list(self.lines) if words in line), None)

    def wait_for(self, words: str, seconds: float) -> tuple[float, str]:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if found := self.line(words):
                return found
            if self.process.poll() is not None and not self.reader.is_alive():
                break
            time.sleep(0.2)
        raise AssertionError(f"no {words!r} within {seconds} s:\n{self.output}")

    def end(self, seconds: float) -> int:
        """Wait for the end of the play."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"the watch did not end within {seconds} s:\n{self.output}") from error
        self.reader.join(10)
        return self.process.returncode

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    @property
    def output(self) -> str:
        return "\n".join(line for _, line in self.lines)[-6000:]


@dataclass
class FaultRun:
    """One run of the lab; its attempts follow one another, each from the last published checkpoint."""

    lab: Lab
    name: str
    relaunched_at: float | None = None
    history: list[str] = field(default_factory=list)

    @property
    def directory(self) -> Path:
        return SHARED / "runs" / self.name

    def prepare(self) -> None:
        """Forget an earlier run of this name and the strikes of earlier ones; put the program where nodes see it."""
        ledger = Path(SETTINGS["operator_directory"])
        for path in (self.directory, STATE / "plan" / self.name, STATE / "report" / self.name, ledger):
            shutil.rmtree(path, ignore_errors=True)
        ear = SHARED / "faults" / "ear"
        shutil.rmtree(ear.parent, ignore_errors=True)
        ear.mkdir(parents=True)
        ear.chmod(0o777)
        shutil.copy(ROOT / "tests" / "faults" / "program.py", ear.parent / "program.py")
        self._play("plan")

    def _play(self, *names: str) -> None:
        done = subprocess.run(
            playbooks(self.name, *names), cwd=ROOT, env=environment(), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]

    def running(self) -> bool:
        words = f"squeue --noheader --name=rackweave-{self.name} --format=%T"
        return "RUNNING" in self.lab.ssh("ctl", words, check=False)

    def launch(self) -> float:
        """Start (again); return the seconds from the command to the first step of the new attempt."""
        began = time.time()
        known = set(self.attempts())
        self._play("launch")
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            fresh = [name for name in self.attempts() if name not in known]
            steps = self.events("step", fresh[-1]) if fresh else []
            if steps:
                return moment(steps[0]["time"]) - began
            time.sleep(0.5)
        raise AssertionError(f"no step within 300 s of the launch; attempts: {self.attempts()}")

    def attempts(self) -> list[str]:
        found = [path.name for path in (self.directory / "attempts").glob("*.*")]
        return sorted(found, key=lambda name: [int(part) for part in name.split(".")])

    def events(self, kind: str, attempt: str | None = None) -> list[dict[str, Any]]:
        """Return the events of one kind of an attempt, the newest where none is named."""
        name = attempt or (self.attempts() or ["none"])[-1]
        path = self.directory / "attempts" / name / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        found = []
        for line in lines:
            try:
                found.append(json.loads(line))
            except ValueError:
                continue  # the last line is being written
        return [event for event in found if event["kind"] == kind]

    def published(self, attempt: str | None = None) -> int:
        """Return the step of the newest published checkpoint of an attempt, or of what it started from."""
        events = self.events("checkpoint", attempt)
        return max((event["step"] for event in events if event["state"] in (*PUBLISHED, "chosen")), default=0)

    def wait_for_checkpoint(self, seconds: float) -> None:
        """Wait until this attempt has published one of its own, so that there is something to come back to."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if any(event["state"] in PUBLISHED for event in self.events("checkpoint")):
                return
            time.sleep(0.5)
        raise AssertionError(f"no checkpoint within {seconds} s: {self.events('checkpoint')[-3:]}")

    def wait_for_steps(self, more: int, seconds: float) -> None:
        """Wait for so many further steps."""
        before, deadline = len(self.events("step")), time.monotonic() + seconds
        while time.monotonic() < deadline:
            if len(self.events("step")) >= before + more:
                return
            time.sleep(0.5)
        raise AssertionError(f"fewer than {more} steps in {seconds} s after {before}")

    def median_step_s(self, attempt: str | None = None) -> float:
        return statistics.median([event["step_time_s"] for event in self.events("step", attempt)] or [0.0])

    def verdict(self) -> dict[str, Any]:
        path = self.directory / "attempts" / self.attempts()[-1] / "verdict.json"
        return dict(json.loads(path.read_text()))

    def inject(self, fault: str, seed: int, record: Path) -> None:
        """Let the injector strike, in a process of its own; what it did stays unread."""
        words = [sys.executable, "-m", "tests.faults.injector", fault, str(seed), self.name, str(record)]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=180)
        assert done.returncode == 0, done.stdout + done.stderr

    def repair(self, record: dict[str, Any]) -> None:
        """Undo what a fault did to the lab, and wait until its nodes are idle or at work again."""
        if "rank" in record and self.running():
            (SHARED / "faults" / "ear" / f"{record['rank']}.json").write_text('{"action": "slow", "seconds": 0}')
            # The next watch of this job reads the last steps too, and would rightly name a rank that was slow in them.
            self.wait_for_steps(Limits.straggler_steps + 3, 240)
        if "node" in record:
            self.lab.podman("start", self.lab.container(record["node"]))
        if "cut" in record:
            pid = self.lab.podman("inspect", "--format", "{{.State.Pid}}", self.lab.container(record["cut"])).strip()
            words = ["nsenter", "--target", pid, "--net", "nft", "delete", "table", "inet", "fault"]
            subprocess.run(words, check=True)
        if "filled" in record:
            self.lab.ssh(record["filled"], "rm -f /dev/shm/filled-by-a-fault-run")
        deadline, states = time.monotonic() + 240, set[str]()
        while time.monotonic() < deadline:
            states = set(self.lab.ssh("ctl", "sinfo --noheader --Node --format=%T", check=False).split())
            if states and states <= {"idle", "allocated", "mixed"}:
                return
            if "down" in "".join(states):
                self.lab.ssh("ctl", "scontrol update nodename=gpu01,gpu02 state=resume", check=False)
            time.sleep(2)
        raise AssertionError(f"the lab's nodes did not come back: {states}")

    def cancel(self) -> None:
        self.lab.ssh("ctl", f"scancel --name=rackweave-{self.name}", check=False)
        deadline = time.monotonic() + 180
        while time.monotonic() < deadline:
            if not self.lab.ssh("ctl", f"squeue --noheader --name=rackweave-{self.name}", check=False).strip():
                return
            time.sleep(1)
