"""One watch of a job, from the first look to the verdict. The world comes in as four functions, so it needs no mock.

Order at a hang: say it, collect evidence, name who is waited for, leave the job to its own time-outs for a while, and
only then stop it, if allowed.
Evidence lies on the nodes, which a session cannot reach: it returns what it wants, and the next one takes up the job.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import RackweaveError
from ..run.events import parse_events
from ..run.follow import Follower
from ..run.outcome import NOBODY, Blame, JobEnd, blame, judge_end, requeued_end
from ..run.plan_file import RunPlan, parse_plan
from ..run.progress import Progress
from .alive import SILENT_S, Alive
from .attempt_verdict import attempt_sources, verdict_document
from .failing import Wanted, evidence_hosts, failed_saves, hang_blame, is_failing, named
from .follow_health import Health
from .progress import ProgressFinding
from .reach import standing_still, told_to_stand_still, unreachable
from .verdict import Verdict, diagnose

HISTORY = 20  # earlier attempts whose curves a report shows
EARLIER = 4  # attempts of the job before the first look that are judged too; who judges may not have been there
MANY_RANKS = 64  # above this, the files of all ranks are read at every fifteenth look only
MANY_HOSTS = 64  # above this, the signs of life of all nodes are read no more often than
BEATS_EVERY_S = 5.0
HANG = "hang.no_progress"
ENDED_BY_OTHERS = ("CANCELLED", "PREEMPTED", "TIMEOUT")  # nothing on a node explains such an end
STOPPING_IS_OFF = "stopping our own job is switched off (training_job_stop_ok), so it is left as it is"
PEERS_WRITE_S = 12.0  # a launcher waits 8 s for the others to write how they ended; who has not by then will not


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
    """How a watch is done; durations are in seconds. ``stop_ok`` is the operator's consent to stop our own job.

    ``collect_hosts``: of at most so many nodes evidence is wanted, once for each attempt; ``collected``: attempts of
    which there is some; ``silent_hosts``: nodes that gave none, and why. With ``until_attempt`` the watch returns after
    an attempt that the job itself follows by another one. ``silent_s``: see ``alive``.
    """

    run: str
    run_dir: str
    stop_ok: bool
    job_id: str = ""
    poll_interval_s: float = 2.0
    line_interval_s: float = 5.0
    status_interval_s: float = 30.0
    hang_grace_s: float = 30.0
    collect_hosts: int = 0
    collected: tuple[str, ...] = ()
    silent_hosts: Mapping[str, str] = field(default_factory=dict)
    until_attempt: bool = False
    silent_s: float = SILENT_S


@dataclass(frozen=True)
class AttemptEnd:
    """How one attempt ended: its ``verdict.json``, when it had begun, and whether the job starts again by itself."""

    document: Mapping[str, Any]
    started: str
    requeued: bool


@dataclass(frozen=True)
class Conclusion:
    """Everything that is known at the end; ``document`` is ``verdict.json``, ``ended`` all attempts judged so far."""

    job_id: str
    end: JobEnd
    document: Mapping[str, Any]
    progress: Progress
    attempts: tuple[Progress, ...]
    plan: RunPlan | None
    data: Mapping[str, Any] | None
    look: Mapping[str, Any]
    ended: tuple[AttemptEnd, ...] = ()


def _keep_nothing(found: AttemptEnd) -> None:
    """Stand for a caller who keeps no verdicts of attempts."""


class Session:
    """Follows one job. ``on_status`` is called now and then with the session, to keep what others read up to date;
    ``on_end`` with each attempt that is over while the job lives on."""

    def __init__(
        self,
        world: World,
        settings: WatchSettings,
        on_status: Callable[[Session], None],
        on_end: Callable[[AttemptEnd], None] = _keep_nothing,
    ) -> None:
        self.world, self.settings, self.on_status, self.on_end = world, settings, on_status, on_end
        self.ended: dict[str, AttemptEnd] = {}
        self.follower = Follower(settings.job_id, None, settings.line_interval_s)
        self.plan: RunPlan | None = None
        self.data: Mapping[str, Any] | None = None
        self.health: Health | None = None
        self.hang: ProgressFinding | None = None
        self.hang_at = 0.0
        self.suspect: Blame | None = None
        self.alive = Alive(settings.silent_s)
        self.silent: Blame | None = None
        self.lost_told = False
        self.stopped_for: Blame | None = None
        self.saved_logs: Mapping[str, str] = {}
        self.started = ""
        self.wanted: Wanted | None = None
        self._failing_at: float | None = None
        self._named: set[str] = set()
        self._looks = 0
        self._beats_at = float("-inf")
        self._status_at = float("-inf")

    def run(self) -> Conclusion | Wanted:
        """Watch to the end, or until evidence of the nodes is wanted.

        Raises:
            WatchError: if the run has no job.
        """
        first = self.world.call("run_state", {"run_dir": self.settings.run_dir, "job_id": self.settings.job_id})
        if not first["job_id"]:
            raise WatchError(f"run {self.settings.run} has no job; run playbooks/launch.yml first")
        self.follower.job_id = first["job_id"]
        self._judge_earlier(first)
        known = len(self.ended)
        while True:
            look = self._look()
            self._take(look)
            if self.wanted is not None:
                return self.wanted
            if self.follower.over:
                return self._conclude()
            if self._attempt_is_over(look):
                self._close_attempt(self.follower.attempt)
            if self.settings.until_attempt and len(self.ended) > known:
                return self._so_far(look)
            if self.world.clock() - self._status_at >= self.settings.status_interval_s and self.follower.attempt:
                self._status_at = self.world.clock()
                self.on_status(self)
            if not look["more"]:
                self.world.sleep(self.settings.poll_interval_s)

    def _look(self, ranks: bool = False) -> Mapping[str, Any]:
        self._looks += 1
        small = self.plan is None or self.plan.world_size <= MANY_RANKS
        wanted = ranks or small or self._looks % 15 == 0
        reading = {"ranks": wanted, "beats": self._beats_wanted()}
        return self.world.call("run_state", {"run_dir": self.settings.run_dir, **reading, **self.follower.request()})

    def _beats_wanted(self) -> bool:
        clock = self.world.clock()
        few = self.plan is None or len(self.plan.hosts) <= MANY_HOSTS
        if not few and clock - self._beats_at < BEATS_EVERY_S:
            return False
        self._beats_at = clock
        return True

    def _take(self, look: Mapping[str, Any]) -> None:
        before = self.follower.attempt
        lines = self.follower.take(look, self.world.clock())
        if self.follower.attempt != before:
            if before and before not in self.ended:
                self._close_attempt(before)
            self._begin_attempt(look)
        for line in [*lines, *failed_saves(self.follower.fresh)]:
            self._say(line)
        self._watch_silence(look)
        self._watch_failure(look)
        self._watch_health(look)

    def _say(self, words: str) -> None:
        self.world.say(f"[{self.settings.run}] {words}")

    def _begin_attempt(self, look: Mapping[str, Any]) -> None:
        """Read what the attempt was made from: target step, rank table, what its losses compare with."""
        arguments = {**self.follower.request(), "documents": True, "ranks": False, "max_bytes": 0}
        documents = self.world.call("run_state", {"run_dir": self.settings.run_dir, **arguments})["documents"]
        self.plan = parse_plan(documents["plan"]) if documents["plan"] else None
        if documents["train"]:
            self.follower.target_step = _target_step(documents["train"])
            self.follower.current.target_step = self.follower.target_step
        self.data = documents["data"]
        self.started = documents["started"] or look["time"]
        again = self.follower.attempt in self.settings.collected
        self.health = Health(self.started, _predicted_step_s(self.plan), seen_before=again)
        self.hang, self.suspect, self._failing_at = None, None, None
        self.alive, self.silent, self.lost_told = Alive(self.settings.silent_s), None, False

    def _watch_silence(self, look: Mapping[str, Any]) -> None:
        """Name a node that vanished without a word; its peers, and Slurm, wait for it much longer."""
        if self.plan is None or self.follower.state != "RUNNING" or self.stopped_for is not None:
            return
        clock = self.world.clock()
        self.alive.take(look.get("beats", {}), look["exits"], clock)
        if words := self.alive.slow_storage(clock):
            self._say(words)
        found = self.alive.silent(clock)
        if found is None and self.silent is not None:
            self._say(f"{', '.join(self.silent.hosts)} gives signs of life again")
            self._named.discard(self.silent.culprit)
        self.silent = found
        if found is not None:
            self._name(found)

    def _watch_failure(self, look: Mapping[str, Any]) -> None:
        """Name who began a failure as soon as that is sure, while the job still winds down, and ask for evidence."""
        if self.plan is None or not is_failing(look) or self.stopped_for is not None:
            return
        clock = self.world.clock()
        self._failing_at = self._failing_at if self._failing_at is not None else clock
        hosts = {place.host for place in self.plan.ranks}
        if not hosts <= set(look["exits"]) and clock - self._failing_at < PEERS_WRITE_S and not self.follower.over:
            return
        found = self._blame(look if look["rank_results"] else self._look(ranks=True))
        found = self.silent if self.silent is not None and found.kind in ("none", "hung", "lost") else found
        self._name(found)
        self._want(found, "the job fails")

    def _name(self, found: Blame) -> None:
        if found.kind != "none" and found.culprit not in self._named:
            self._named.add(found.culprit)
            self._say(named(found))

    def _want(self, found: Blame, reason: str) -> bool:
        """Ask for evidence of the nodes, the suspected ones first; False where there is some, or none is asked for."""
        settings, attempt = self.settings, self.follower.attempt
        if not settings.collect_hosts or attempt in settings.collected or self.plan is None:
            return False
        if found.kind == "error" and not found.hosts:
            return False  # every rank said the same: a setting, not a node
        hosts = evidence_hosts(self.plan, found, settings.collect_hosts)
        self.wanted = Wanted(hosts, self.follower.job_id, attempt, self.started, reason)
        self._say(f"{reason}: collecting evidence on {', '.join(hosts)}")
        return True

    def _judge_earlier(self, first: Mapping[str, Any]) -> None:
        """Judge what ended before this watch began; attempts of the same job, the newest excepted."""
        own = [name for name in first["attempts"] if name.split(".")[0] == first["job_id"]]
        for name in own[-1 - EARLIER : -1]:
            self._close_attempt(name)

    def _attempt_is_over(self, look: Mapping[str, Any]) -> bool:
        """Whether the attempt ended though the job did not: its script asked for a new start, or Slurm took it back."""
        name, job = self.follower.attempt, look.get("job")
        if not name or name in self.ended or look["attempt"] != name or look["more"] or look["events"]:
            return False
        if look.get("end") is not None:
            return bool(look["end"].get("requeued"))
        return bool(job and job["live"] and job["restarts"] > int(name.rpartition(".")[2]))

    def _close_attempt(self, name: str) -> None:
        """Judge an attempt that another one of the same job follows."""
        arguments = {"run_dir": self.settings.run_dir, "job_id": self.follower.job_id, "attempt": name}
        look = self.world.call("run_state", {**arguments, "max_bytes": 0, "documents": True})
        plan_text, end = look["documents"]["plan"], look.get("end")
        plan = parse_plan(plan_text) if plan_text else None
        closing = requeued_end(end)
        found, blamed = Verdict("healthy"), NOBODY
        if not closing.ok:
            blamed = _blame_in(plan, look)
            logs = self.world.call("job_logs", {"run_dir": self.settings.run_dir, "attempt": name})["logs"]
            if blamed.kind in ("none", "hung"):
                blamed = standing_still(logs, look["phases"]) or unreachable(logs, self.settings.silent_hosts) or blamed
            found = diagnose(attempt_sources(logs))
        run, job_id, silent = self.settings.run, self.follower.job_id, self.settings.silent_hosts
        document = verdict_document(run, name, job_id, closing, blamed, found, silent)
        self.ended[name] = AttemptEnd(document, look["documents"]["started"] or "", True)
        if not closing.ok:
            self._say(f"attempt {name}: {document['sentence']}")
        self.on_end(self.ended[name])

    def _so_far(self, look: Mapping[str, Any]) -> Conclusion:
        """What is known of a job that goes on after the attempt that ended."""
        newest = list(self.ended.values())[-1]
        code = newest.document["code"]
        end = JobEnd(True, False, self.follower.state, code, str(newest.document["sentence"]))
        return Conclusion(
            job_id=self.follower.job_id,
            end=end,
            document=newest.document,
            progress=self.follower.current,
            attempts=(*self._history(look["attempts"]), self.follower.current),
            plan=self.plan,
            data=self.data,
            look=look,
            ended=tuple(self.ended.values()),
        )

    def _watch_health(self, look: Mapping[str, Any]) -> None:
        if self.health is None or self.follower.state != "RUNNING" or self.stopped_for is not None:
            return
        for finding in self.health.take(self.follower.fresh, look["phases"].values(), look["time"]):
            self._say(f"{finding.diagnosis_class}: {finding.text}")
            if finding.diagnosis_class == HANG:
                self.hang, self.hang_at = finding, self.world.clock()
        if (lost := self.health.lost()) is not None and not self.lost_told:
            self._give_up(lost)
            return
        if HANG not in self.health.standing:
            self.hang, self.suspect = None, None
        if self.hang is None:
            return
        if self.suspect is None:
            self._name_hung(self.hang)
        if self.suspect is not None and self.world.clock() - self.hang_at >= self.settings.hang_grace_s:
            self._stop_hung_job(self.suspect)

    def _give_up(self, lost: ProgressFinding) -> None:
        """Stop a job whose loss is no number and will not be one again; our own trainer does that itself.

        Only a program that goes on regardless gets here. Evidence comes first; without consent it is left, and said.
        """
        found = Blame("numbers", (), (), lost.text)
        if self._want(found, lost.text):
            return
        self.lost_told = True
        if not self.settings.stop_ok:
            self._say(f"{lost.text}; {STOPPING_IS_OFF}")
            return
        self.stopped_for = found
        self.saved_logs = self._logs()
        self._stop_job(f"stopping the job: {lost.text}")

    def _name_hung(self, finding: ProgressFinding) -> None:
        """Say who the job waits for; what the nodes know of that is asked for first."""
        look = self._look(ranks=True)
        found = self._blame(look)
        if found.kind == "none":
            found = hang_blame(self.plan, finding)
        told = told_to_stand_still(look.get("beats", {}))
        if told is not None:
            self._name(told)
        if self._want(told or found, "the job hangs"):
            return
        self.saved_logs = self._logs()
        self.suspect = (
            standing_still(self.saved_logs, look["phases"])
            or told
            or unreachable(self.saved_logs, self.settings.silent_hosts)
            or self.silent
            or found
        )
        self._name(self.suspect)

    def _stop_hung_job(self, found: Blame) -> None:
        self.stopped_for = found
        if not self.settings.stop_ok:
            self._say(f"the job hangs; {STOPPING_IS_OFF}")
            return
        self._stop_job(f"stopping the hung job: {found.sentence}")

    def _stop_job(self, words: str) -> None:
        self._say(words)
        arguments = {"job_id": self.follower.job_id, "action": "cancel", "stop_ok": True}
        self.world.call("job_control", arguments)

    def _blame(self, look: Mapping[str, Any]) -> Blame:
        return _blame_in(self.plan, look)

    def _logs(self) -> Mapping[str, str]:
        arguments = {"run_dir": self.settings.run_dir, "attempt": self.follower.attempt}
        logs: Mapping[str, str] = self.world.call("job_logs", arguments)["logs"]
        return logs

    def _conclude(self) -> Conclusion | Wanted:
        look = self._look(ranks=True)
        job = look.get("job")
        end = judge_end(self.follower.state, job["exit_code"] if job else None, look.get("end"))
        found, blamed = Verdict("healthy"), NOBODY
        if not end.ok:
            logs = {**self._logs(), **self.saved_logs} if self.follower.attempt else {}
            blamed = self.stopped_for or self._blame(look)
            if blamed.kind in ("none", "hung"):
                blamed = standing_still(logs, look["phases"]) or unreachable(logs, self.settings.silent_hosts) or blamed
            self._name(blamed)
            if end.state not in ENDED_BY_OTHERS and self._want(blamed, "the job failed"):
                return self.wanted  # type: ignore[return-value]
            found = diagnose(attempt_sources(logs))
        silent = self.settings.silent_hosts
        run, attempt, job_id = self.settings.run, self.follower.attempt, self.follower.job_id
        document = verdict_document(run, attempt, job_id, end, blamed, found, silent)
        return Conclusion(
            job_id=self.follower.job_id,
            end=end,
            document=document,
            progress=self.follower.current,
            attempts=(*self._history(look["attempts"]), self.follower.current),
            plan=self.plan,
            data=self.data,
            look=look,
            ended=(*self.ended.values(), AttemptEnd(document, self.started, False)),
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


def _blame_in(plan: RunPlan | None, look: Mapping[str, Any]) -> Blame:
    if plan is None:
        return NOBODY
    return blame(plan.ranks, _by_rank(look["rank_results"]), look["exits"], _by_rank(look["phases"]))


def _by_rank(documents: Mapping[str, Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    return {int(name): document for name, document in documents.items() if name.isdigit()}


def _predicted_step_s(plan: RunPlan | None) -> float | None:
    prediction = plan.document["prediction"] if plan else None
    value = prediction.get("step_time_s") if isinstance(prediction, dict) else None
    return float(value) if isinstance(value, (int, float)) else None


def _target_step(text: str) -> int | None:
    """Return the step at which training ends; None where ``train.json`` is half written or says nothing of it."""
    try:
        steps = json.loads(text)["steps"]
    except (ValueError, KeyError, TypeError):
        return None
    return steps if isinstance(steps, int) else None
