"""The page of one run: how it ended and why, curves, layout, phases, checkpoints, settings. Pure text in, text out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from html import escape
from typing import Any

from ..run.plan_file import RunPlan
from ..run.progress import Progress, StepPoint, duration
from .layout_picture import layout_picture
from .page import heading, page, paragraph, table, tiles
from .svg import Level, Series, line_chart


@dataclass(frozen=True)
class RunReport:
    """What a page shows; ``attempts`` oldest first, documents as their files hold them.

    ``reference_loss`` is a level to compare the validation loss with: its name and its value in nats.
    """

    run: str
    made_at: str
    attempts: tuple[Progress, ...]
    plan: RunPlan | None = None
    state: str = "UNKNOWN"
    verdict: Mapping[str, Any] | None = None
    submission: Mapping[str, Any] | None = None
    reference_loss: tuple[str, float] | None = None


def render_run_page(report: RunReport) -> str:
    """Return the whole page."""
    parts = [
        f"<h1>Run {escape(report.run)}</h1>",
        paragraph(f"made {report.made_at}{_origin(report.plan)}", "muted"),
        _banner(report),
        tiles(_figures(report)),
        line_chart("Loss", "step", "nats", _loss_series(report.attempts), _levels(report)),
        line_chart("Throughput", "step", "tokens/s", _speed_series(report.attempts), from_zero=True),
    ]
    if any(point.mfu is not None for one in report.attempts for point in one.steps):
        series = [_series("MFU", "a", report.attempts, lambda point: point.mfu)]
        parts.append(line_chart("Model FLOPs utilisation (measured)", "step", "fraction", series, from_zero=True))
    memory = [_series("peak memory of rank 0", "a", report.attempts, lambda point: point.peak_memory_gib)]
    parts.append(line_chart("Memory", "step", "GiB", memory, from_zero=True))
    parts += _expectation_parts(report)
    parts += _layout_parts(report)
    parts += _evidence_parts(report.verdict)
    parts += _attempt_parts(report.attempts)
    return page(f"Rackweave run {report.run}", parts)


def _origin(plan: RunPlan | None) -> str:
    return f", hardware documents: {plan.origin}" if plan else ""


def _banner(report: RunReport) -> str:
    verdict = report.verdict
    if verdict is None:
        return f'<div class="banner">job {escape(report.state.lower())}</div>'
    good = verdict.get("severity") == "info"
    words = str(verdict.get("sentence"))
    action = "" if good else f"<br><b>First action:</b> {escape(str(verdict.get('first_action')))}"
    return f'<div class="banner {"good" if good else "bad"}">{escape(words)}{action}</div>'


def _figures(report: RunReport) -> list[tuple[str, str]]:
    newest = next((one for one in reversed(report.attempts) if one.steps), None)
    figures = [("state", report.state.lower())]
    if newest is None or newest.last is None:
        return [*figures, ("attempts", str(len(report.attempts)))]
    last, target = newest.last, newest.target_step
    figures.append(("step", f"{last.step}" + (f" of {target}" if target is not None else "")))
    if last.loss is not None:
        figures.append(("loss", f"{last.loss:.4f}"))
    if newest.evaluations:
        figures.append(("validation loss", f"{newest.evaluations[-1].loss:.4f}"))
    if last.tokens_per_second is not None:
        figures.append(("tokens/s", f"{last.tokens_per_second:,.0f}"))
    if newest.step_time_s is not None:
        figures.append(("median step", f"{newest.step_time_s:.3g} s"))
    if newest.last_checkpoint is not None:
        figures.append(("checkpoint", f"step {newest.last_checkpoint.step}"))
    return [*figures, ("attempts", str(len(report.attempts)))]


def _series(name: str, style: str, attempts: Iterable[Progress], value: Any) -> Series:
    """One curve over all attempts; where a later attempt repeats a step, the later value counts."""
    points: dict[int, float] = {}
    for attempt in attempts:
        for point in attempt.steps:
            figure = value(point)
            if figure is not None:
                points[point.step] = figure
    return Series(name, style, tuple((float(step), figure) for step, figure in sorted(points.items())))


def _loss(point: StepPoint) -> float | None:
    return point.loss


def _loss_series(attempts: tuple[Progress, ...]) -> list[Series]:
    evaluations = {item.step: item.loss for attempt in attempts for item in attempt.evaluations}
    points = tuple((float(step), loss) for step, loss in sorted(evaluations.items()))
    return [_series("training", "a", attempts, _loss), Series("validation", "b", points, dots=len(points) < 60)]


def _speed_series(attempts: tuple[Progress, ...]) -> list[Series]:
    return [_series("tokens per second, all GPUs", "a", attempts, lambda point: point.tokens_per_second)]


def _levels(report: RunReport) -> list[Level]:
    return [Level(*report.reference_loss)] if report.reference_loss else []


def _layout_parts(report: RunReport) -> list[str]:
    plan, verdict = report.plan, report.verdict or {}
    if plan is None:
        return []
    sizes = plan.document["sizes"]
    words = (
        f"TP {plan.parallel.tensor_parallel_size} × PP {plan.parallel.pipeline_parallel_size} × "
        f"DP {plan.parallel.data_parallel_size} on {len(plan.hosts)} hosts, ZeRO stage {plan.zero_stage}, "
        f"global batch {plan.global_batch_size} = {plan.micro_batch_size} × {plan.num_microbatches} × "
        f"{plan.parallel.data_parallel_size}, sequence length {plan.document['model']['sequence_length']}, "
        f"recompute {sizes['recompute']}"
    )
    picture = layout_picture(plan, verdict.get("ranks", []), verdict.get("hosts", []))
    return [heading("Layout"), paragraph(words), f'<div class="wide">{picture}</div>']


def _expectation_parts(report: RunReport) -> list[str]:
    """Step time and memory as the planner predicted them, beside what was measured."""
    if report.plan is None:
        return []
    predicted = report.plan.document.get("prediction") or {}
    memory = report.plan.document.get("memory") or {}
    newest = next((one for one in reversed(report.attempts) if one.steps), None)
    measured_step = newest.step_time_s if newest else None
    peaks = [point.peak_memory_gib for one in report.attempts for point in one.steps if point.peak_memory_gib]
    rows = [
        _expectation("median step", "s", predicted.get("step_time_s"), measured_step),
        _expectation("peak memory (measured: rank 0)", "GiB", memory.get("allocated_gib"), max(peaks, default=None)),
    ]
    return [heading("Predicted and measured"), table(("", "predicted", "measured", "measured / predicted"), rows)]


def _expectation(name: str, unit: str, predicted: float | None, measured: float | None) -> tuple[str, str, str, str]:
    ratio = f"{measured / predicted:.2f}" if predicted and measured is not None else "-"
    shown = f"{predicted:.3g} {unit}" if predicted is not None else "not predicted"
    return name, shown, f"{measured:.3g} {unit}" if measured is not None else "-", ratio


def _evidence_parts(verdict: Mapping[str, Any] | None) -> list[str]:
    if verdict is None or not verdict.get("evidence"):
        return []
    named = [
        ("class", verdict["diagnosis_class"]),
        ("culprit", verdict["culprit"]),
        ("phase", verdict.get("phase") or "-"),
        ("also seen", ", ".join(verdict.get("others", [])) or "-"),
    ]
    lines = "\n".join(escape(str(line)) for line in verdict["evidence"])
    return [heading("What happened"), table(("", ""), named), f"<pre>{lines}</pre>"]


def _attempt_parts(attempts: tuple[Progress, ...]) -> list[str]:
    parts = []
    for attempt in reversed(attempts):
        parts.append(heading(f"Attempt {attempt.attempt}"))
        if attempt.phases:
            parts.append(table(("phase of rank 0", "entered", "lasted"), _phase_rows(attempt)))
        saved = [(item.step, item.state, item.path, _seconds(item.seconds)) for item in attempt.checkpoints[-12:]]
        if saved:
            parts.append(table(("checkpoint at step", "state", "path", "took"), saved))
        if attempt.unreadable_lines:
            parts.append(paragraph(f"{attempt.unreadable_lines} lines of events.jsonl could not be read", "muted"))
    return parts


def _phase_rows(attempt: Progress) -> list[tuple[str, str, str]]:
    """Start-up phases one by one; what repeats during training is left out after the first dozen."""
    shown = attempt.phases[:12]
    ends = [change.time for change in attempt.phases[1:13]]
    last_step = attempt.steps[-1].time if attempt.steps else None
    ends += [last_step or ""] * (len(shown) - len(ends))
    return [(change.phase, change.time, _between(change.time, end)) for change, end in zip(shown, ends)]


def _between(start: str, end: str) -> str:
    try:
        seconds = (_moment(end) - _moment(start)).total_seconds()
    except ValueError:
        return "-"
    return _seconds(seconds) if seconds >= 0 else "-"


def _moment(value: str) -> datetime:
    # Python 3.9 does not read a trailing Z.
    return datetime.fromisoformat(value[:-1] + "+00:00" if value.endswith("Z") else value)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s" if value < 60 else duration(value)
