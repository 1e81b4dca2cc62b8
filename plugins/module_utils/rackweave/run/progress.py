"""What the events of one attempt add up to: where it is, how fast it goes, when it will be done."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple

from .clock import Clock
from .events import Event

RECENT_STEPS = 20


class StepPoint(NamedTuple):
    """One optimizer step as rank 0 reported it; a figure that it could not know is None."""

    step: int
    time: str
    loss: float | None
    grad_norm: float | None
    tokens_per_second: float | None
    mfu: float | None
    step_time_s: float | None
    peak_memory_gib: float | None


class Evaluation(NamedTuple):
    """Loss on the validation split after a step."""

    step: int
    loss: float


class Checkpoint(NamedTuple):
    """One report on a checkpoint: saved, published, validated or failed."""

    step: int
    state: str
    path: str
    seconds: float | None


class PhaseChange(NamedTuple):
    """When rank 0 entered a phase."""

    time: str
    phase: str


@dataclass
class Progress:
    """Grows with each piece of events; it belongs to the one who follows the attempt."""

    attempt: str
    target_step: int | None = None
    steps: list[StepPoint] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    checkpoints: list[Checkpoint] = field(default_factory=list)
    phases: list[PhaseChange] = field(default_factory=list)
    end: Mapping[str, Any] | None = None
    unreadable_lines: int = 0
    clock: Clock = field(default_factory=Clock)

    def add(self, events: Iterable[Event]) -> None:
        """Take in new events, in the order of the file; kinds that we do not show are passed over."""
        for event in events:
            time = self.clock.steady(event.time)
            if event.kind == "phase" and isinstance(event.fields.get("phase"), str):
                self.phases.append(PhaseChange(time, event.fields["phase"]))
            elif event.kind == "end":
                self.end = event.fields
            elif event.step is not None:
                self._add_step_kind(event, event.step, time)

    def _add_step_kind(self, event: Event, step: int, time: str) -> None:
        if event.kind == "step":
            figures = (event.number(name) for name in StepPoint._fields[2:])
            self.steps.append(StepPoint(step, time, *figures))
        elif event.kind == "evaluation":
            loss = event.number("validation_loss")
            if loss is not None:
                self.evaluations.append(Evaluation(step, loss))
        elif event.kind == "checkpoint":
            state, path = str(event.fields.get("state")), str(event.fields.get("path"))
            self.checkpoints.append(Checkpoint(step, state, path, event.number("seconds")))

    @property
    def last(self) -> StepPoint | None:
        """The newest step, or None before the first."""
        return self.steps[-1] if self.steps else None

    @property
    def phase(self) -> str | None:
        """The phase that rank 0 entered last; a step that was reported since means it trains."""
        if not self.phases:
            return "training" if self.steps else None
        if self.steps and self.steps[-1].time > self.phases[-1].time:
            return "training"
        return self.phases[-1].phase

    @property
    def step_time_s(self) -> float | None:
        """Median duration of the recent steps, in seconds."""
        times = [point.step_time_s for point in self.steps[-RECENT_STEPS:] if point.step_time_s is not None]
        return median(times) if times else None

    @property
    def eta_s(self) -> float | None:
        """Seconds until the target step at the recent pace; evaluation and saving are not counted."""
        pace, last = self.step_time_s, self.last
        if pace is None or last is None or self.target_step is None:
            return None
        return max(0, self.target_step - last.step) * pace

    @property
    def last_checkpoint(self) -> Checkpoint | None:
        """The newest checkpoint that a restart may use (published or validated)."""
        usable = [point for point in self.checkpoints if point.state in ("published", "validated")]
        return usable[-1] if usable else None


def progress_line(progress: Progress) -> str:
    """Return one line for a plain terminal: phase, step, loss, speed, time left."""
    last = progress.last
    if last is None:
        return f"phase {progress.phase or 'starting'}"
    target = f"/{progress.target_step}" if progress.target_step is not None else ""
    parts = [f"step {last.step}{target}"]
    if last.loss is not None:
        parts.append(f"loss {last.loss:.4f}")
    if progress.evaluations:
        parts.append(f"validation {progress.evaluations[-1].loss:.4f}")
    if last.tokens_per_second is not None:
        parts.append(f"{last.tokens_per_second:,.0f} tokens/s")
    if last.mfu is not None:
        parts.append(f"MFU {last.mfu:.1%}")
    if progress.phase:
        parts.append(f"phase {progress.phase}")
    if progress.eta_s is not None:
        parts.append(f"ETA {duration(progress.eta_s)}")
    return " | ".join(parts)


def duration(seconds: float) -> str:
    """Return a duration in its two largest units, ``1 h 5 min``."""
    whole = round(seconds)
    for size, name, small, small_name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            return f"{whole // size} {name} {whole % size // small} {small_name}"
    return f"{whole} s"
