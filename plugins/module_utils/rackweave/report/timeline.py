"""Where the time of a run went: a bar for each attempt, and how much of all of it moved training forward."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from ..run.clock import moment
from ..run.progress import Progress, duration
from .svg import element, text, ticks

WIDTH, LEFT, RIGHT, ROW, TOP = 720.0, 76.0, 16.0, 30.0, 34.0
TRAINING = "training"
STARTING = "starting"
# Phases that happen beside steps; all others lie before the first step of an attempt.
BESIDE = ("evaluate", "save")
STYLES = ((STARTING, "t-start"), (TRAINING, "t-train"), ("evaluate", "t-eval"), ("save", "t-save"), ("lost", "t-lost"))


@dataclass(frozen=True)
class Stretch:
    """A part of an attempt's time, in seconds of the epoch; ``kind`` is one of `STYLES`."""

    kind: str
    start_s: float
    end_s: float
    words: str


@dataclass(frozen=True)
class TimeSpent:
    """How the seconds from the first event to the last were spent.

    Attributes:
        useful_s: steps whose result was kept (a step that a later attempt repeated counts once, the later time).
        repeated_s: steps that were done again after a restart, since the checkpoint was older.
    """

    total_s: float
    useful_s: float
    repeated_s: float

    @property
    def ratio(self) -> float | None:
        """Effective-time ratio in [0, 1]; None before there is any time."""
        return min(1.0, self.useful_s / self.total_s) if self.total_s > 0 else None


def time_spent(attempts: Sequence[Progress]) -> TimeSpent:
    """Measure a run from its events; what is neither useful nor repeated was evaluating, saving, starting, waiting."""
    times = [time for attempt in attempts for time in _times(attempt)]
    if len(times) < 2:
        return TimeSpent(0.0, 0.0, 0.0)
    kept: dict[int, float] = {}
    everything = 0.0
    for attempt in attempts:
        for point in attempt.steps:
            everything += point.step_time_s or 0.0
            kept[point.step] = point.step_time_s or 0.0
    useful = sum(kept.values())
    return TimeSpent(max(times) - min(times), useful, everything - useful)


def _times(attempt: Progress) -> Iterator[float]:
    for text_ in [change.time for change in attempt.phases] + [point.time for point in attempt.steps]:
        time = moment(text_)
        if time is not None:
            yield time


def stretches(attempt: Progress, kept_to: int | None) -> list[Stretch]:
    """Cut an attempt into stretches.

    Args:
        attempt: its events.
        kept_to: last step that the next attempt did not repeat; steps beyond it are lost. None keeps all.
    """
    steps = [(moment(point.time), point) for point in attempt.steps]
    known = [(time, point) for time, point in steps if time is not None]
    begun = min(_times(attempt), default=None)
    if begun is None:
        return []
    if not known:
        last = max(_times(attempt))
        return [Stretch(STARTING, begun, last, f"starting, ended in phase {attempt.phase}")] if last > begun else []
    first_time, first = known[0]
    trained = first_time - (first.step_time_s or 0.0)
    found = [Stretch(STARTING, begun, max(begun, trained), "starting: " + _start_words(attempt, trained))]
    good = [time for time, point in known if kept_to is None or point.step <= kept_to]
    edge = good[-1] if good else trained
    if edge > trained:
        found.append(Stretch(TRAINING, trained, edge, f"steps {first.step} to {kept_to or known[-1][1].step}"))
    if known[-1][0] > edge:
        found.append(Stretch("lost", edge, known[-1][0], f"steps after {kept_to}, done again by the next attempt"))
    return found + _beside(attempt, known[-1][0])


def _start_words(attempt: Progress, until_s: float) -> str:
    changes = [(moment(change.time), change.phase) for change in attempt.phases]
    early = [(time, phase) for time, phase in changes if time is not None and time <= until_s]
    ends = [time for time, _ in early[1:]] + [until_s]
    return (
        ", ".join(f"{phase} {duration(end - time)}" for (time, phase), end in zip(early, ends)) or "no phase reported"
    )


def _beside(attempt: Progress, until_s: float) -> list[Stretch]:
    """Evaluations and saves that training waited for."""
    found = []
    changes = [(moment(change.time), change.phase) for change in attempt.phases]
    known = [(time, phase) for time, phase in changes if time is not None]
    for index, (time, phase) in enumerate(known):
        if phase in BESIDE:
            end = known[index + 1][0] if index + 1 < len(known) else until_s
            if end > time:
                found.append(Stretch(phase, time, end, f"{phase}, {duration(end - time)}"))
    return found


def timeline(attempts: Sequence[Progress], blamed: Collection[str] = ()) -> str:
    """Return the picture as one ``svg`` element, one row an attempt; attempts in ``blamed`` ended badly."""
    rows = [(attempt, stretches(attempt, _kept_to(attempts, index))) for index, attempt in enumerate(attempts)]
    rows = [(attempt, found) for attempt, found in rows if found]
    height = TOP + max(1, len(rows)) * ROW + 50
    parts = [text("Time", 8.0, 18.0, class_="chart-title")]
    if not rows:
        parts.append(text("no data yet", WIDTH / 2, height / 2, class_="muted", text_anchor="middle"))
        return _svg(height, parts)
    start = min(one.start_s for _, found in rows for one in found)
    length = max(one.end_s for _, found in rows for one in found) - start or 1.0
    scale = (WIDTH - LEFT - RIGHT) / length
    for number, (attempt, found) in enumerate(rows):
        y = TOP + number * ROW
        parts.append(text(attempt.attempt, LEFT - 8, y + 15, class_="tick", text_anchor="end"))
        parts += [_bar(one, LEFT + (one.start_s - start) * scale, scale, y) for one in found]
        if attempt.attempt in blamed:
            end = LEFT + (max(one.end_s for one in found) - start) * scale
            parts.append(text("✖", min(end + 3, WIDTH - 12), y + 15, class_="bad"))
    parts += _axis(length, scale, TOP + len(rows) * ROW + 4)
    return _svg(height, [*parts, *_legend(height)])


def _kept_to(attempts: Sequence[Progress], index: int) -> int | None:
    """The last step of an attempt that no later one repeats."""
    later = [attempt.steps[0].step for attempt in attempts[index + 1 :] if attempt.steps]
    return min(later) - 1 if later else None


def _bar(one: Stretch, x: float, scale: float, y: float) -> str:
    style = dict(STYLES)[one.kind]
    inside = one.kind in BESIDE
    width = max((one.end_s - one.start_s) * scale, 1.0)
    return element(
        "g",
        element("title", escape(one.words)),
        element("rect", x=x, y=y + (6 if inside else 2), width=width, height=10 if inside else 18, class_=style),
    )


def _axis(length: float, scale: float, y: float) -> list[str]:
    unit, name = next(
        ((size, name) for size, name in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")) if length >= 2 * size),
        (1.0, "s"),
    )
    parts = [element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="axis")]
    for value in ticks(0.0, length / unit, 8):
        parts.append(
            text(f"{value:g} {name}", LEFT + value * unit * scale, y + 15, class_="tick", text_anchor="middle")
        )
    return parts


def _legend(height: float) -> list[str]:
    parts, x = [], LEFT
    for kind, style in STYLES:
        parts.append(element("rect", x=x, y=height - 16, width=12, height=10, class_=style))
        parts.append(text("repeated later" if kind == "lost" else kind, x + 17, height - 7, class_="tick"))
        x += 110
    return parts


def _svg(height: float, parts: list[str]) -> str:
    return element(
        "svg",
        *parts,
        viewBox=f"0 0 {WIDTH:g} {height:g}",
        role="img",
        aria_label="time of each attempt",
        class_="chart",
    )
