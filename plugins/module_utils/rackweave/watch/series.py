"""Step lines of many trainers as a series: losses, step times, and the silence after the last one."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from statistics import median

from .evidence import MAX_TEXT, Finding
from .prefix import Line, parse_time

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?:nan|NaN|NAN|inf|Inf|INF|infinity|Infinity)\b"
_STEP = re.compile(
    r"\b(?:iteration|iter|global_step|global step|steps?|Step|batch|it)\b[\"']?\]?\s*[:=#]?\s*\[?(?P<step>\d{1,9})"
    r"\b(?!\.\d)(?:\s*/\s*\d+)?"
)
_LOSS = re.compile(
    r"(?<![\w])(?:lm |train(?:ing)?[_ /]|reduced_train_|total[_ /]|avg[_ ]|mean[_ ]|language_model[_ ])"
    r"?(?:loss(?:/train/total)?|CrossEntropyLoss)[\"']?\s*[:=]?\s*\[?(?P<loss>" + _NUMBER + r")"
)
_NORM = re.compile(r"(?:grad(?:ient)?[ _]?norm|gnorm|total_norm)[\"']?\s*[:=]\s*(?P<norm>" + _NUMBER + r")")
_TIMES = (
    (re.compile(r"elapsed time per iteration \(ms\): ?(?P<t>[\d.]+)"), 1e-3),
    (re.compile(r"iter time \(s\): ?(?P<t>[\d.]+)"), 1.0),
    (
        re.compile(
            r"(?:train_step_timing in s|step_time_s|step[_ ]time(?: \(s\))?|time_per_step|iter_time)"
            r"[\"']?\s*[:=]\s*(?P<t>\d[\d.]*)\s*(?:s|sec)?\b(?!ms)"
        ),
        1.0,
    ),
    (re.compile(r"(?:\btime|step[_ ]time(?:_ms| \(ms\))?|dt)[\"']?\s*[:=]?\s*(?P<t>\d[\d.]*)\s*ms\b"), 1e-3),
    (re.compile(r"(?P<t>\d+\.\d+)\s*s/it\b"), 1.0),
    (re.compile(r"\b(?:time|elapsed|dt)[\"']?\s*[:=]?\s*(?P<t>\d+\.\d+) ?s(?:ec)?\b"), 1.0),
    (re.compile(r"\((?P<t>\d+\.\d+) ?s\)"), 1.0),
    (re.compile(r"\bs(?:ec(?:ond)?s?)?(?:/|[_ ]per[_ ])(?:step|iter\w*|it)[\"']?\s*[:=]\s*(?P<t>\d+\.\d+)"), 1.0),
    (re.compile(r"(?:^|[|,;] ?)\s*(?P<t>\d[\d.]*)\s*ms(?:/(?:step|iter\w*))?\s*(?=[|,;]|$)"), 1e-3),
)
_RATES = re.compile(
    r"(?:samples/sec|(?:tok(?:en)?s?|samples|sequences|examples)[_ /](?:per[_ ])?s(?:ec(?:ond)?)?(?:[_ /][A-Za-z]\w*)?|"
    r"tps|throughput(?: per GPU)?(?: \(TFLOP/s/GPU\))"
    r"?|CurrSamplesPerSec|wps)[\"']?\s*[:=]?\s*(?P<rate>\d[\d,.]*)"
)
_RATE_BEFORE = re.compile(r"(?P<rate>\d[\d,.]*) ?(?:tok(?:en)?s?/s(?:ec)?|samples/s(?:ec)?|it/s)\b")
_SCALE = re.compile(r"loss[ _]scale[\"']?\s*[:=]\s*(?P<scale>[\d.eE+]+)")
_SKIPPED = re.compile(r"number of skipped iterations:\s*(?P<n>\d+)")
_NANS = re.compile(r"number of nan iterations:\s*(?P<n>\d+)")
_CLEAN_COUNTS = re.compile(r"number of skipped iterations:\s*0 \|(?!.*number of nan iterations:\s*[1-9])")
_OVERFLOW = re.compile(
    r"OVERFLOW!.*(?:Attempted loss scale: (?P<scale>[\d.eE+]+))?|[Gg]radient overflow\..*loss scaler? "
    r".*?to (?P<to>[\d.eE+-]+)"
)
_VALIDATION = re.compile(r"(?i)\bvalid(?:ation)?\b|\beval(?:uation)?\b|test[_ ]loss|loss PPL\b")

LITERALS = ("iteration", "iter ", "step", "Step", "loss", "s/it", "OVERFLOW", "overflow", "batch=", "it/s")

# A gradient norm that is not a number may pass with a skipped step; so many in a row do not.
NAN_NORMS = 3

# Windows kept of each series: enough for medians, small enough for any log.
_KEEP = 256


@dataclass
class Sample:
    """One step as printed."""

    step: int | None
    loss: float | None
    norm: float | None
    seconds: float | None
    rate: float | None
    line: Line
    skipped: bool = False
    scale: float | None = None
    nan_count: int = 0
    lost_loss: bool = False


@dataclass
class Series:
    """Follow the step lines of one job."""

    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=_KEEP))
    steps_by_source: dict[int, deque[int]] = field(default_factory=dict)
    last_step: int | None = None
    has_loss_key: bool = False
    first_nan: Sample | None = None
    spikes: list[Sample] = field(default_factory=list)
    overflows: int = 0
    overflow_run: int = 0
    count: int = 0
    came_back: int = 0
    _nan_norms: list[Sample] = field(default_factory=list)
    _losses: deque[float] = field(default_factory=lambda: deque(maxlen=50))
    _norms: deque[float] = field(default_factory=lambda: deque(maxlen=50))
    _shapes: dict[bytes, _Shape] = field(default_factory=dict)

    def feed(self, line: Line) -> bool:
        """Take one line; True if it was a step line."""
        text = line.text if line.text else line.full
        if "OVERFLOW!" in text or "radient overflow" in text:
            self.overflows += 1
            return True
        if _VALIDATION.search(text[:120]) and "elapsed time" not in text:
            return False
        sample = _parse(line, text)
        if sample is None:
            return False
        self._accept(sample)
        return True

    def learn(self, shape: bytes, text: str) -> None:
        """Remember where the numbers stand in lines that differ from this one only in digits."""
        if len(self._shapes) < 1024 and shape not in self._shapes:
            found = _shape_of(text)
            if found is not None:
                self._shapes[shape] = found

    def feed_known(self, shape: bytes, raw: bytes, position: int, source: int) -> bool:
        """The fast way for a line of a known shape; False if it is not one."""
        known = self._shapes.get(shape)
        if known is None:
            return False
        text = raw.decode("utf-8", "replace")
        numbers = _PLAIN_NUMBER.findall(text)
        if len(numbers) != known.count or (b"number of skipped" in raw and not _CLEAN_COUNTS.search(text)):
            return False
        step, loss, norm, seconds, rate = (float(numbers[at]) if at >= 0 else None for at in known.places)
        self._accept(
            Sample(
                step=int(step) if step is not None else None,
                loss=loss,
                norm=norm,
                seconds=seconds * known.unit if seconds else None,
                rate=rate,
                line=Line(text, text, position=position, source=source),
            )
        )
        return True

    def feed_event(self, record: dict[str, object], line: Line) -> None:
        """Take one step event of our own trainer."""
        sample = Sample(
            step=_integer(record.get("step")),
            loss=number(record.get("loss")),
            norm=number(record.get("grad_norm")),
            seconds=number(record.get("step_time_s")),
            rate=number(record.get("tokens_per_second")),
            line=line,
        )
        self._accept(sample)

    def _accept(self, sample: Sample) -> None:
        if sample.loss is not None:
            self.has_loss_key = True
        elif self.has_loss_key and sample.norm is not None and not finite(sample.norm):
            sample.lost_loss = True
        new_step = sample.step is None or self.last_step is None or sample.step != self.last_step
        if new_step and not sample.skipped:
            marks = self.steps_by_source.setdefault(sample.line.source, deque(maxlen=3))
            marks.append(sample.line.position)
        if sample.step is not None:
            self.last_step = sample.step
        self._check_nan(sample)
        self._check_spike(sample)
        self.count += 1
        self.samples.append(sample)

    def _check_nan(self, sample: Sample) -> None:
        if self.first_nan is not None:
            if sample.loss is not None and finite(sample.loss) and sample.line.position > self.first_nan.line.position:
                self.came_back += 1
                if self.came_back >= 5 and not sample.nan_count:
                    # The loss came back and stayed: whatever it was, it was skipped over.
                    self.first_nan, self.came_back = None, 0
            return
        bad_loss = sample.loss is not None and not finite(sample.loss)
        if (bad_loss or sample.lost_loss or sample.nan_count > 0) and not sample.skipped:
            self.first_nan = sample
        elif sample.norm is not None and sample.norm != sample.norm and not sample.skipped:
            self._nan_norms.append(sample)
            if len(self._nan_norms) == NAN_NORMS:
                self.first_nan = self._nan_norms[0]
        else:
            self._nan_norms.clear()

    def _check_spike(self, sample: Sample) -> None:
        """A loss far above the recent ones; judged again when the next sample is known."""
        loss = sample.loss
        if loss is None or not finite(loss):
            return
        losses, norms = self._losses, self._norms
        norm = sample.norm if sample.norm is not None and finite(sample.norm) else None
        quiet = losses and loss <= 1.05 * max(losses) and (norm is None or not norms or norm <= 4 * max(norms))
        if not quiet and losses and self._is_spike(loss, norm) and len(self.spikes) < 64:
            self.spikes.append(sample)
        losses.append(loss)
        if norm is not None:
            norms.append(norm)

    def _is_spike(self, loss: float, norm: float | None) -> bool:
        middle = median(self._losses)
        spread = median(abs(value - middle) for value in self._losses)
        enough = len(self._losses) >= 4
        limit = max(8 * 1.4826 * spread, 0.5 * abs(middle), 0.5) if enough else max(abs(middle), 1.0)
        loud = norm is not None and bool(self._norms) and norm > 8 * max(median(self._norms), 1e-9)
        return loss - middle > limit or (loud and loss - middle > 0.5 * limit)

    def later_steps(self, source: int, position: int) -> bool:
        """Whether three different steps were printed in this source after a position."""
        marks = self.steps_by_source.get(source)
        return marks is not None and len(marks) == 3 and marks[0] > position

    def steps_after(self, moment: datetime) -> bool:
        """Whether at least three steps carry a later time."""
        stamps = self.stamps
        return len(stamps) >= 3 and stamps[-3] > moment

    @property
    def stamps(self) -> list[datetime]:
        """Rising times of the last step lines, read only when somebody asks."""
        rising: list[datetime] = []
        for sample in self.samples:
            stamp = sample.line.time or parse_time(sample.line.full[:160])
            if stamp is not None and (not rising or stamp > rising[-1]):
                rising.append(stamp)
        return rising

    def interval(self) -> float | None:
        """Median time between step lines, in seconds."""
        stamps = self.stamps
        gaps = [(later - earlier).total_seconds() for earlier, later in zip(stamps, stamps[1:])]
        gaps = [gap for gap in gaps if gap > 0]
        return median(gaps) if gaps else None

    def step_seconds(self) -> float | None:
        """Median printed time of a step."""
        values = [sample.seconds for sample in self.samples if sample.seconds]
        return median(values) if values else None

    def findings(self) -> Iterator[Finding]:
        """Numbers that went wrong."""
        if self.first_nan is not None:
            yield _finding("num.nan", self.first_nan, 21)
        elif self.spikes and self._spike_counts():
            yield _finding("num.loss_spike", self.spikes[0], 72)
        if (floor := self._scale_at_floor()) is not None:
            yield _finding("num.fp16_scale_exhausted", floor, 20)
        slow = self._slowdown()
        if slow is not None:
            yield _finding("perf.slowdown", slow, 84)

    def _scale_at_floor(self) -> Sample | None:
        """The first of the last three samples, if all were skipped though the loss scale can fall no further."""
        last = list(self.samples)[-3:]
        at_floor = [sample for sample in last if sample.skipped and sample.scale is not None and sample.scale <= 1.0]
        return last[0] if len(at_floor) == 3 else None

    def _spike_counts(self) -> bool:
        """A spike counts if it is huge, or if the loss has not come back by the next samples."""
        first = self.spikes[0]
        after = [s for s in self.samples if s.line.position > first.line.position and s.loss is not None]
        before = [s.loss for s in self.samples if s.line.position < first.line.position and s.loss is not None]
        if not before:
            return len(self.spikes) > 1
        middle = median(before)
        if len(after) >= 3 and all((s.loss or 0.0) < middle + 0.25 * ((first.loss or 0.0) - middle) for s in after[:3]):
            return (first.loss or 0.0) > 3 * middle
        return True

    def _slowdown(self) -> Sample | None:
        """The first of the last slow steps, if all of the last ones are slow."""
        chosen = [(sample, sample.seconds) for sample in self.samples if sample.seconds]
        if len(chosen) < 3:
            chosen = [(sample, 1.0 / sample.rate) for sample in self.samples if sample.rate]
        if len(chosen) < 3:
            return None
        values = [value for _, value in chosen]
        tail = min(5, max(2, len(values) // 2))
        head = sorted(values[: max(1, len(values) - tail)])
        base = median(head[1:] if len(head) > 3 else head)
        # One line before the jump is a weak base, so it has to be a clear one.
        ratio = 1.5 if len(head) < 2 else 1.35
        slow = base > 0 and all(value > ratio * base for value in values[-tail:])
        if not slow or _same_work_rate([sample for sample, _ in chosen], tail):
            return None
        return chosen[-tail][0]


_FLOPS = re.compile(r"FLOP\w*(?:/s)?(?:/GPU)?\)?[\"']?\s*[:=]\s*(?P<rate>\d[\d.]*)")


def _same_work_rate(samples: list[Sample], tail: int) -> bool:
    """Whether the last steps are longer only because each does more (longer sequences, a larger batch).

    Only the printed rate of operations proves it; tokens per second may be an average over the whole run.
    """
    told = [_FLOPS.search(sample.line.full) for sample in samples]
    rates = [float(match["rate"].rstrip(".")) for match in told if match]
    if len(rates) < len(samples) or len(samples) <= tail:
        return False
    return min(rates[-tail:]) > 0.9 * median(rates[:-tail])


_PLAIN_NUMBER = re.compile(r"\d+\.?\d*(?:[eE][-+]?\d+)?")


@dataclass(frozen=True)
class _Shape:
    """Which number of a line is step, loss, norm, seconds and rate (-1: absent), and how many there are."""

    count: int
    places: tuple[int, int, int, int, int]
    unit: float


def _shape_of(text: str) -> _Shape | None:
    """Where the numbers stand; None if the fast way could read them wrongly."""
    if any(pattern.search(text) for pattern in (_SKIPPED, _NANS)) and not _CLEAN_COUNTS.search(text):
        return None
    starts = [match.start() for match in _PLAIN_NUMBER.finditer(text)]
    seconds, unit = None, 1.0
    for pattern, factor in _TIMES:
        seconds = pattern.search(text)
        if seconds:
            unit = factor
            break
    rate = _RATES.search(text) or _RATE_BEFORE.search(text)
    groups = (
        (_STEP.search(text), "step"),
        (_LOSS.search(text), "loss"),
        (_NORM.search(text), "norm"),
        (seconds, "t"),
        (rate, "rate"),
    )
    places = []
    for match, name in groups:
        if match is None:
            places.append(-1)
        elif match.start(name) in starts and "," not in match[name]:
            places.append(starts.index(match.start(name)))
        else:
            return None
    return _Shape(len(starts), (places[0], places[1], places[2], places[3], places[4]), unit)


def _parse(line: Line, text: str) -> Sample | None:
    step = _STEP.search(text)
    loss = _LOSS.search(text)
    if step is None and loss is None:
        return None
    norm = _NORM.search(text)
    seconds = None
    for pattern, unit in _TIMES:
        found = pattern.search(text)
        if found:
            seconds = (number(found["t"]) or 0.0) * unit or None
            break
    rate = _RATES.search(text) or _RATE_BEFORE.search(text)
    if step is None and (loss is None or (norm is None and seconds is None and rate is None and "epoch" not in text)):
        return None
    if loss is None and norm is None and seconds is None and rate is None and "lr" not in text:
        return None
    skipped = _SKIPPED.search(text)
    nans = _NANS.search(text)
    scale = _SCALE.search(text)
    return Sample(
        step=int(step["step"]) if step else None,
        loss=number(loss["loss"]) if loss else None,
        norm=number(norm["norm"]) if norm else None,
        seconds=seconds,
        rate=number(rate["rate"].replace(",", "")) if rate else None,
        line=line,
        skipped=bool(skipped and int(skipped["n"])),
        scale=number(scale["scale"]) if scale else None,
        nan_count=int(nans["n"]) if nans else 0,
    )


def _finding(diagnosis: str, sample: Sample, depth: int) -> Finding:
    line = sample.line
    return Finding(
        diagnosis, line.full.strip()[:MAX_TEXT], depth=depth, time=line.time, position=line.position, source=line.source
    )


def finite(value: float) -> bool:
    return value == value and value not in (float("inf"), float("-inf"))


def number(value: object) -> float | None:
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, (int, float)):
        return float(value)
    try:
        return float(str(value).strip().rstrip("."))
    except ValueError:
        return None


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def as_record(text: str) -> dict[str, object] | None:
    """Read a JSON object line; None if it is none."""
    stripped = text.strip()
    if not (stripped.startswith("{") and stripped.endswith("}")):
        return None
    try:
        record = json.loads(stripped)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None
