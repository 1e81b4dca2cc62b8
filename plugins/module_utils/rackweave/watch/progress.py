"""A progress watchdog outside the launcher: hang, straggler, slow-down, NaN, spike and drift, on a given clock.

It reads what the trainer writes (step, phase, evaluation, checkpoint and end events, phase markers of each rank with
step and micro-batch) and never looks at a clock itself: times come with the records and with ``check(now)``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from .series import finite, number


@dataclass(frozen=True)
class Limits:
    """When something counts; seconds unless the name says otherwise.

    The silence limits are those of the issue that asked for them: no marker for max(floor, factor x its median), and at
    most max(step_floor, 2 x median step + step_margin) after the last step.
    """

    marker_floor_s: float = 60.0
    marker_factor: float = 10.0
    step_floor_s: float = 120.0
    step_margin_s: float = 30.0
    phase_s: Mapping[str, float] = field(
        default_factory=lambda: {
            "start": 1800.0,
            "nccl_init": 900.0,
            "model_build": 1800.0,
            "checkpoint_load": 3600.0,
            "optimizer_init": 1800.0,
            "save": 1800.0,
            "evaluate": 1800.0,
            "compile": 1800.0,
        }
    )
    straggler_ratio: float = 1.4
    straggler_share: float = 0.25
    straggler_steps: int = 5
    slowdown_ratio: float = 1.35
    slowdown_steps: int = 8
    spike_sigmas: float = 8.0
    spike_steps: int = 2
    drift_ratio: float = 1.5
    history: int = 200
    # A loss that was one and is none for so many steps, seen so often, does not come back: scaling of half-precision
    # losses, the longest harmless run of lost steps, halves its way down within these.
    lost_steps: int = 40
    lost_reports: int = 3
    lost_after_reports: int = 5


@dataclass(frozen=True)
class ProgressFinding:
    """One finding: a class of the closed list (or ``drift``), whom it names, and why.

    Attributes:
        diagnosis_class: ``hang.no_progress``, ``perf.straggler``, ``perf.slowdown``, ``num.nan``, ``num.loss_spike`` or
            ``perf.drift`` (slower than predicted: a note, no class of a fault).
        ranks: ranks named; for a hang those whose marker is oldest while others wait.
        since: time of the last sign of progress, in the clock of the records.
        step: the last step.
        text: one sentence with the numbers.
    """

    diagnosis_class: str
    ranks: tuple[int, ...]
    since: float
    step: int | None
    text: str
    phase: str | None = None

    @property
    def alarm(self) -> bool:
        """A drift from the prediction is information, everything else asks for action."""
        return self.diagnosis_class != "perf.drift"


@dataclass
class _Rank:
    time: float = 0.0
    step: int = -1
    micro_batch: int = -1
    phase: str | None = None
    sections: deque[float] = field(default_factory=lambda: deque(maxlen=64))


# Phases of a step; everything else a rank can be in is a declared phase with its own limit.
_STEP_PHASES = ("forward", "backward", "optimizer_step", "train", "step", None)


class Watchdog:
    """Feed records in any order of ranks, then ask; one instance follows one attempt."""

    def __init__(
        self, started: float = 0.0, predicted_step_s: float | None = None, limits: Limits | None = None
    ) -> None:
        """Begin to watch.

        Args:
            started: when the attempt began, seconds in the clock of the records.
            predicted_step_s: the plan's step time; None where there is none.
            limits: thresholds; the default are the documented ones.
        """
        self.limits = limits or Limits()
        self.predicted_step_s = predicted_step_s
        self.started = started
        self.ended = False
        self.step: int | None = None
        self.step_time: float | None = None
        self.job_phase: tuple[str, float] | None = ("start", started)
        self._ranks: dict[int, _Rank] = {}
        self._step_gaps: deque[float] = deque(maxlen=self.limits.history)
        self._seconds: deque[float] = deque(maxlen=self.limits.history)
        self._markers: deque[float] = deque(maxlen=self.limits.history)
        self._losses: deque[float] = deque(maxlen=self.limits.history)
        self._high: list[tuple[int | None, float]] = []
        self._bad: tuple[int | None, str, float] | None = None
        self._lost: list[tuple[int, float]] = []
        self._finite_losses = 0
        self._last_marker: float | None = None
        self._excused: float = 0.0

    def feed(self, record: Mapping[str, object], time: float | None = None) -> None:
        """Take one event (``kind``, ``rank``, …) or one phase file of a rank; unknown kinds are ignored.

        Args:
            record: as written by the trainer (contracts, section 3).
            time: seconds; needed where the record's own ``time`` is not a number.
        """
        moment = time if time is not None else number(record.get("time"))
        if moment is None:
            return
        kind = record.get("kind")
        rank = record.get("rank")
        if kind == "step":
            self._step(record, moment)
        elif kind == "phase" or (kind is None and "phase" in record):
            self._phase(record, moment, rank if isinstance(rank, int) else 0)
        elif kind == "evaluation":
            self._excuse(moment, "evaluate")
        elif kind == "checkpoint":
            self._excuse(moment, "save")
        elif kind in ("start", "restart"):
            self._restart(moment)
        elif kind == "end":
            self.ended = True

    def _restart(self, moment: float) -> None:
        """A new attempt continues the same file: silence and medians begin again."""
        fresh = Watchdog(moment, self.predicted_step_s, self.limits)
        losses = self._losses
        self.__dict__.update(fresh.__dict__)
        self._losses = losses

    def _excuse(self, moment: float, phase: str) -> None:
        """A declared phase ended: what it took does not count as a step."""
        if self.job_phase is not None and self.job_phase[0] == phase:
            self.job_phase = None
        self._excused = max(self._excused, moment)

    def _step(self, record: Mapping[str, object], moment: float) -> None:
        step = record.get("step")
        if isinstance(step, int):
            if self.step is not None and step <= self.step and step < self.step - 1:
                self._losses.clear()
            if step == self.step:
                return
            self.step = step
        seconds = number(record.get("step_time_s"))
        if self.step_time is not None and self._excused <= self.step_time and moment > self.step_time:
            self._step_gaps.append(moment - self.step_time)
            seconds = seconds if seconds is not None else moment - self.step_time
        if seconds is not None and finite(seconds) and seconds > 0:
            self._seconds.append(seconds)
        self.step_time = moment
        self.job_phase = None
        self._last_marker = moment if self._last_marker is None else max(self._last_marker, moment)
        self._numbers(record, moment)
        sections = record.get("rank_seconds")
        if isinstance(sections, Mapping):
            for rank, value in sections.items():
                self._section(int(rank), number(value))

    def _numbers(self, record: Mapping[str, object], moment: float) -> None:
        self._count_lost(number(record.get("loss")), bool(record.get("skipped")), moment)
        for name in ("loss", "grad_norm"):
            value = number(record.get(name))
            if name in record and value is not None and not finite(value) and not record.get("skipped"):
                self._bad = self._bad or (self.step, name, moment)
                return
        loss = number(record.get("loss"))
        if loss is None:
            return
        if self._is_spike(loss):
            self._high.append((self.step, loss))
        else:
            self._high.clear()
            self._losses.append(loss)

    def _count_lost(self, loss: float | None, skipped: bool, moment: float) -> None:
        if loss is None or skipped:
            return
        if finite(loss):
            self._finite_losses += 1
            self._lost.clear()
        elif self.step is not None:
            self._lost.append((self.step, moment))

    def lost(self) -> ProgressFinding | None:
        """Say when the loss was a number in this attempt and is none for so long that it will not be one again."""
        limits = self.limits
        if len(self._lost) < limits.lost_reports or self._finite_losses < limits.lost_after_reports:
            return None
        (first, since), (last, _) = self._lost[0], self._lost[-1]
        if last - first + 1 < limits.lost_steps:
            return None
        text = f"the loss is no number since step {first}, for {last - first + 1} steps"
        return ProgressFinding("num.nan", (), since, last, text)

    def _is_spike(self, loss: float) -> bool:
        if len(self._losses) < 5:
            return False
        recent = list(self._losses)[-50:]
        middle = median(recent)
        spread = 1.4826 * median(abs(value - middle) for value in recent)
        return loss - middle > max(self.limits.spike_sigmas * spread, 0.3 * abs(middle), 0.2)

    def _section(self, rank: int, seconds: float | None) -> None:
        if seconds is not None and finite(seconds):
            self._ranks.setdefault(rank, _Rank()).sections.append(seconds)

    def _phase(self, record: Mapping[str, object], moment: float, rank: int) -> None:
        state = self._ranks.setdefault(rank, _Rank())
        if moment < state.time:
            return
        phase = record.get("phase")
        step = record.get("step")
        batch = record.get("micro_batch")
        name = phase if isinstance(phase, str) else None
        moved = (name, step, batch) != (state.phase, state.step, state.micro_batch)
        if moved and state.time and name in _STEP_PHASES and state.phase in _STEP_PHASES:
            self._markers.append(moment - state.time)
        if moved or not state.time:
            state.time = moment
            if self._last_marker is None or moment > self._last_marker:
                self._last_marker = moment
        state.phase = name
        state.step = step if isinstance(step, int) else state.step
        state.micro_batch = batch if isinstance(batch, int) else state.micro_batch
        if name not in _STEP_PHASES and name is not None:
            self.job_phase = (name, moment)
        elif self.job_phase is not None and self.job_phase[0] != "start":
            self._excused = max(self._excused, moment)
            self.job_phase = None
        self._section(rank, number(record.get("section_s")))

    def check(self, now: float) -> list[ProgressFinding]:
        """Judge the state at ``now`` (seconds, the records' clock)."""
        if self.ended:
            return []
        candidates = (self._nan(), self._spike(), self._hang(now), self._straggler(), self._slowdown(), self._drift())
        return [finding for finding in candidates if finding is not None]

    def _nan(self) -> ProgressFinding | None:
        if self._bad is None:
            return None
        step, name, since = self._bad
        return ProgressFinding("num.nan", (), since, step, f"{name} is not a finite number at step {step}")

    def _spike(self) -> ProgressFinding | None:
        if len(self._high) < self.limits.spike_steps:
            return None
        step, loss = self._high[0]
        middle = median(list(self._losses)[-50:])
        text = f"loss {loss:.4g} at step {step} against a median of {middle:.4g}, for {len(self._high)} steps"
        return ProgressFinding("num.loss_spike", (), self.step_time or 0.0, step, text)

    def silence_limit(self) -> float:
        """How long after the last sign of progress silence is a hang, in seconds."""
        if self.job_phase is not None:
            return self.limits.phase_s.get(self.job_phase[0], self.limits.phase_s["start"])
        limits = self.limits
        typical = median(self._step_gaps) if self._step_gaps else (self._seconds[-1] if self._seconds else 0.0)
        if not typical and self.predicted_step_s:
            typical = self.predicted_step_s
        by_step = max(limits.step_floor_s, 2 * typical + limits.step_margin_s)
        if len(self._markers) >= 3:
            by_marker = max(limits.marker_floor_s, limits.marker_factor * median(self._markers))
            return min(by_step, by_marker)
        return by_step

    def _hang(self, now: float) -> ProgressFinding | None:
        signs = [self._last_marker, self.step_time, self._excused or None, self.started]
        since = max(sign for sign in signs if sign is not None)
        if self.job_phase is not None:
            since = max(since, self.job_phase[1])
        limit = self.silence_limit()
        if now - since <= limit:
            return None
        phase = self.job_phase[0] if self.job_phase else None
        ranks = self._behind()
        text = f"no progress for {now - since:.0f} s (limit {limit:.0f} s) after step {self.step}"
        if ranks:
            text += f"; rank {', '.join(map(str, ranks))} stopped first"
        return ProgressFinding("hang.no_progress", ranks, since, self.step, text, phase)

    def _behind(self) -> tuple[int, ...]:
        """Ranks whose markers stand behind all others: they did not come to the collective."""
        places = {rank: (state.step, state.micro_batch) for rank, state in self._ranks.items() if state.time}
        if len(places) < 2 or len(set(places.values())) < 2:
            return ()
        lowest = min(places.values())
        behind = tuple(sorted(rank for rank, place in places.items() if place == lowest))
        return behind if len(behind) * 2 <= len(places) else ()

    def _straggler(self) -> ProgressFinding | None:
        needed = self.limits.straggler_steps
        recent = {
            rank: median(list(state.sections)[-needed:])
            for rank, state in self._ranks.items()
            if len(state.sections) >= needed
        }
        if len(recent) < 3:
            return None
        middle = median(recent.values())
        # Stages of a pipeline differ by nature, and short sections by chance: what counts must cost the step something.
        seconds = list(self._seconds)[-needed:]
        least = middle + (self.limits.straggler_share * median(seconds) if seconds else 0.0)
        limit = max(self.limits.straggler_ratio * middle, least)
        slow = tuple(sorted(rank for rank, value in recent.items() if value > limit and self._steadily(rank, limit)))
        if not slow or len(slow) * 2 > len(recent):
            return None
        worst = max(slow, key=lambda rank: recent[rank])
        text = (
            f"rank {worst} needs {recent[worst]:.3g} s where the median rank needs {middle:.3g} s, over {needed} steps"
        )
        return ProgressFinding("perf.straggler", slow, self.step_time or 0.0, self.step, text)

    def _steadily(self, rank: int, limit: float) -> bool:
        """Whether at most one of a rank's last sections was short: on a busy machine single ones are long by chance."""
        last = list(self._ranks[rank].sections)[-self.limits.straggler_steps :]
        return sum(value > limit for value in last) >= len(last) - 1

    def _slowdown(self) -> ProgressFinding | None:
        needed = self.limits.slowdown_steps
        if len(self._seconds) < 3 * needed:
            return None
        values = list(self._seconds)
        base, recent = median(values[:-needed]), values[-needed:]
        if min(recent) <= self.limits.slowdown_ratio * base or self._straggler() is not None:
            return None
        text = f"the last {needed} steps took {median(recent):.3g} s, before them the median was {base:.3g} s"
        return ProgressFinding("perf.slowdown", (), self.step_time or 0.0, self.step, text)

    def _drift(self) -> ProgressFinding | None:
        if not self.predicted_step_s or len(self._seconds) < 20:
            return None
        measured = median(list(self._seconds)[5:])
        if measured <= self.limits.drift_ratio * self.predicted_step_s:
            return None
        text = f"steps take {measured:.3g} s, predicted were {self.predicted_step_s:.3g} s"
        return ProgressFinding("perf.drift", (), self.step_time or 0.0, self.step, text)
