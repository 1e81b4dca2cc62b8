"""One watch of a job, from the first look to the verdict. The world comes in as four functions, so it needs no mock.

Order at a hang: say it, wait for the job's own time-outs, collect evidence, and only then stop the job, if allowed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import RackweaveError
from ..run.events import parse_events
from ..run.follow import Follower
from ..run.outcome import NOBODY, Blame, JobEnd, blame, judge_end
from ..run.plan_file import RunPlan, parse_plan
from ..run.progress import Progress
from .attempt_verdict import attempt_sources, verdict_document
from .follow_health import Health
from .progress import ProgressFinding
from .verdict import Verdict, diagnose

HISTORY = 20  # earlier attempts whose curves a report shows
MANY_RANKS = 64  # above this, the files of all ranks are read at every fifteenth look only
HANG = "hang.no_progress"


class WatchError(RackweaveError):
    """A watch that cannot go on; the job itself is not touched by that."""


@dataclass(frozen=True)
class World:
    """What a watch can do: call one of our modules on the submit host, say a line, read a clock, wait (seconds)."""

    call: Callable[[str, dict[str, Any]], Mapping[str, Any]]
    say: Callable[[str], None]
    clock: Callable[[], float]
    sleep: Callable[[float], None]


@dataclass(frozen=True)
class WatchSettings:
    """How a watch is done; durations are in seconds. ``stop_ok`` is the operator's consent to stop our own job."""

    run: str
    run_dir: str
    stop_ok: bool
    job_id: str = ""
    poll_interval_s: float = 2.0
    line_interval_s: float = 5.0
    status_interval_s: float = 30.0
    hang_grace_s: float = 30.0


@dataclass(frozen=True)
class Conclusion:
    """Everything that is known at the end; ``document`` is ``verdict.json``."""

    job_id: str
    end: JobEnd
    document: Mapping[str, Any]
    progress: Progress
    attempts: tuple[Progress, ...]
    plan: RunPlan | None
    data: Mapping[str, Any] | None
    look: Mapping[str, Any]


class Session:
    """Follows one job. ``on_status`` is called now and then with the session, to keep what others read up to date."""

    def __init__(self, world: World, settings: WatchSettings, on_status: Callable[[Session], None]) -> None:
        self.world, self.settings, self.on_status = world, settings, on_status
        self.follower = Follower(settings.job_id, None, settings.line_interval_s)
        self.plan: RunPlan | None = None
        self.data: Mapping[str, Any] | None = None
        self.health: Health | None = None
        self.hang: ProgressFinding | None = None
        self.hang_at = 0.0
        self.stopped_for: Blame | None = None
        self.saved_logs: Mapping[str, str] = {}
        self._looks = 0
        self._status_at = float("-inf")

    def run(self) -> Conclusion:
        """Watch to the end.

        Raises:
            WatchError: if the run has no job.
        """
        first = self.world.call("run_state", {"run_dir": self.settings.run_dir, "job_id": self.settings.job_id})
        if not first["job_id"]:
            raise WatchError(f"run {self.settings.run} has no job; run playbooks/launch.yml first")
        self.follower.job_id = first["job_id"]
        while True:
            look = self._look()
            self._take(look)
            if self.follower.over:
                return self._conclude()
            if self.world.clock() - self._status_at >= self.settings.status_interval_s and self.follower.attempt:
                self._status_at = self.world.clock()
                self.on_status(self)
            if not look["more"]:
                self.world.sleep(self.settings.poll_interval_s)

    def _look(self, ranks: bool = False) -> Mapping[str, Any]:
        self._looks += 1
        small = self.plan is None or self.plan.world_size <= MANY_RANKS
        wanted = ranks or small or self._looks % 15 == 0
        return self.world.call(
            "run_state", {"run_dir": self.settings.run_dir, "ranks": wanted, **self.follower.request()}
        )

    def _take(self, look: Mapping[str, Any]) -> None:
        before = self.follower.attempt
        lines = self.follower.take(look, self.world.clock())
        if self.follower.attempt != before:
            self._begin_attempt(look)
        for line in lines:
            self._say(line)
        self._watch_health(look)

    def _say(self, words: str) -> None:
        self.world.say(f"[{self.settings.run}] {words}")

    def _begin_attempt(self, look: Mapping[str, Any]) -> None:
        """Read what the attempt was made from: target step, rank table, what its losses compare with."""
        arguments = {**self.follower.request(), "documents": True, "ranks": False, "max_bytes": 0}
        documents = self.world.call("run_state", {"run_dir": self.settings.run_dir, **arguments})["documents"]
        self.plan = parse_plan(documents["plan"]) if documents["plan"] else None
        if documents["train"]:
            self.follower.target_step = json.loads(documents["train"])["steps"]
            self.follower.current.target_step = self.follower.target_step
        self.data = documents["data"]
        self.health = Health(documents["started"] or look["time"], _predicted_step_s(self.plan))
        self.hang = None

    def _watch_health(self, look: Mapping[str, Any]) -> None:
        if self.health is None or self.follower.state != "RUNNING" or self.stopped_for is not None:
            return
        for finding in self.health.take(self.follower.fresh, look["phases"].values(), look["time"]):
            self._say(f"{finding.diagnosis_class}: {finding.text}")
            if finding.diagnosis_class == HANG:
                self.hang, self.hang_at = finding, self.world.clock()
        if HANG not in self.health.standing:
            self.hang = None
        if self.hang is not None and self.world.clock() - self.hang_at >= self.settings.hang_grace_s:
            self._stop_hung_job(self.hang)

    def _stop_hung_job(self, finding: ProgressFinding) -> None:
        look = self._look(ranks=True)
        hosts = [place.host for place in self.plan.ranks if place.rank in finding.ranks] if self.plan else []
        found = self._blame(look)
        if found.kind == "none":
            found = Blame("hung", finding.ranks, tuple(dict.fromkeys(hosts)), finding.text)
        self.stopped_for = found
        if not self.settings.stop_ok:
            self._say(
                "the job hangs; stopping our own job is switched off (training_job_stop_ok), so it is left as it is"
            )
            return
        self.saved_logs = self._logs()
        self._say(f"stopping the hung job: {found.sentence}")
        arguments = {"job_id": self.follower.job_id, "action": "cancel", "stop_ok": True}
        self.world.call("job_control", arguments)

    def _blame(self, look: Mapping[str, Any]) -> Blame:
        if self.plan is None:
            return NOBODY
        return blame(self.plan.ranks, _by_rank(look["rank_results"]), look["exits"], _by_rank(look["phases"]))

    def _logs(self) -> Mapping[str, str]:
        arguments = {"run_dir": self.settings.run_dir, "attempt": self.follower.attempt}
        logs: Mapping[str, str] = self.world.call("job_logs", arguments)["logs"]
        return logs

    def _conclude(self) -> Conclusion:
        look = self._look(ranks=True)
        job = look.get("job")
        end = judge_end(self.follower.state, job["exit_code"] if job else None, look.get("end"))
        found, blamed = Verdict("healthy"), NOBODY
        if not end.ok:
            blamed = self.stopped_for or self._blame(look)
            logs = {**self._logs(), **self.saved_logs} if self.follower.attempt else {}
            found = diagnose(attempt_sources(logs))
        document = verdict_document(self.settings.run, self.follower.attempt, self.follower.job_id, end, blamed, found)
        return Conclusion(
            job_id=self.follower.job_id,
            end=end,
            document=document,
            progress=self.follower.current,
            attempts=(*self._history(look["attempts"]), self.follower.current),
            plan=self.plan,
            data=self.data,
            look=look,
        )

    def _history(self, names: list[str]) -> list[Progress]:
        """Read the curves of earlier attempts, ours or those of earlier jobs of the run."""
        current = self.follower.attempt
        earlier = names[: names.index(current)] if current in names else names
        return [self.follower.progress.get(name) or self._read(name) for name in earlier[-HISTORY:]]

    def _read(self, attempt: str) -> Progress:
        progress, offset, more = Progress(attempt), 0, True
        while more:
            arguments = {"job_id": attempt.split(".")[0], "attempt": attempt, "offset": offset, "ranks": False}
            look = self.world.call("run_state", {"run_dir": self.settings.run_dir, **arguments})
            progress.add(parse_events(look["events"].encode()).events)
            offset, more = look["offset"], look["more"]
        return progress


def _by_rank(documents: Mapping[str, Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    return {int(name): document for name, document in documents.items() if name.isdigit()}


def _predicted_step_s(plan: RunPlan | None) -> float | None:
    prediction = plan.document["prediction"] if plan else None
    value = prediction.get("step_time_s") if isinstance(prediction, dict) else None
    return float(value) if isinstance(value, (int, float)) else None
