"""The page of one run: how it ended and why, curves, layout, phases, checkpoints, settings. Pure text in, text out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

from ..run.clock import moment
from ..run.plan_file import RunPlan
from ..run.progress import Progress, StepPoint, duration
from .layout_picture import layout_picture
from .page import heading, page, paragraph, table, tiles
from .svg import Level, Series, line_chart
from .timeline import time_spent, timeline

BAD_ENDS = ("CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY")


@dataclass(frozen=True)
class RunReport:
    """What a page shows; ``attempts`` oldest first, documents as their files hold them.

    ``reference_loss`` is a level to compare the validation loss with: its name and its value in nats. ``incidents`` are
    the verdicts of attempts that ended badly, oldest first. ``unread`` says in sentences what could not be read.
    """

    run: str
    made_at: str
    attempts: tuple[Progress, ...]
    plan: RunPlan | None = None
    state: str = "UNKNOWN"
    verdict: Mapping[str, Any] | None = None
    submission: Mapping[str, Any] | None = None
    reference_loss: tuple[str, float] | None = None
    incidents: tuple[Mapping[str, Any], ...] = ()
    unread: tuple[str, ...] = ()


def render_run_page(report: RunReport) -> str:
    """Return the whole page."""
    parts = [
        f"<h1>Run {escape(report.run)}</h1>",
        paragraph(f"made {report.made_at}{_origin(report.plan)}", "muted"),
        _banner(report),
        *(paragraph(f"Not shown, since it cannot be read: {sentence}", "muted") for sentence in report.unread),
        tiles(_figures(report)),
        line_chart("Loss", "step", "nats", _loss_series(report.attempts), _levels(report)),
        line_chart("Throughput", "step", "tokens/s", _speed_series(report.attempts), from_zero=True),
    ]
    if any(point.mfu is not None for one in report.attempts for point in one.steps):
        series = [_series("MFU", "a", report.attempts, lambda point: point.mfu)]
        parts.append(line_chart("Model FLOPs utilisation (measured)", "step", "fraction", series, from_zero=True))
    memory = [_series("peak memory of rank 0 (measured)", "a", report.attempts, lambda point: point.peak_memory_gib)]
    parts.append(line_chart("Memory", "step", "GiB", memory, from_zero=True))
    parts += _time_parts(report)
    parts += _expectation_parts(report)
    parts += _layout_parts(report)
    parts += _incident_parts(report)
    parts += _checkpoint_parts(report.attempts)
    parts += _attempt_parts(report.attempts)
    return page(f"Rackweave run {report.run}", [_scrollable(part) for part in parts])


def _scrollable(part: str) -> str:
    """Let a chart keep a readable size on a narrow screen."""
    return f'<div class="wide">{part}</div>' if part.startswith("<svg") else part


def _origin(plan: RunPlan | None) -> str:
    return f", hardware documents: {plan.origin}" if plan else ""


def _banner(report: RunReport) -> str:
    verdict = report.verdict
    if verdict is None:
        words = f"job {report.state.lower()}"
        if report.state == "UNKNOWN":
            words += ": it is not over yet, or nobody watched its end; `rackweave diagnose` says what its logs hold"
        return f'<div class="banner">{escape(words)}</div>'
    # Who cancels a job gives no cause, so the severity alone would call that a good end.
    good = verdict.get("severity") == "info" and verdict.get("state") not in BAD_ENDS
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
    ratio = time_spent(report.attempts).ratio
    if ratio is not None:
        figures.append(("effective time", f"{ratio:.1%}"))
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
    plan = report.plan
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
    ranks, hosts = _blamed(_incidents(report))
    marked = [
        paragraph("⚠ marks what an incident below names: " + ", ".join([*(f"rank {rank}" for rank in ranks), *hosts]))
    ]
    picture = layout_picture(plan, ranks, hosts)
    return [
        heading("Layout"),
        paragraph(words),
        *(marked if ranks or hosts else []),
        f'<div class="wide">{picture}</div>',
    ]


def _incidents(report: RunReport) -> list[Mapping[str, Any]]:
    """All verdicts of bad ends; the newest is among them, whoever kept it."""
    newest = report.verdict
    known = [item.get("attempt") for item in report.incidents]
    bad = newest is not None and newest.get("severity") != "info"
    return [*report.incidents, *([newest] if newest is not None and bad and newest.get("attempt") not in known else [])]


def _blamed(incidents: Iterable[Mapping[str, Any]]) -> tuple[list[int], list[str]]:
    """Ranks and hosts that incidents name, in their fields or in the culprit's words."""
    ranks: dict[int, None] = {}
    hosts: dict[str, None] = {}
    for item in incidents:
        words = str(item.get("culprit", "")).split(",")
        ranks.update(dict.fromkeys(item.get("ranks", [])))
        ranks.update(dict.fromkeys(int(word[5:]) for word in words if word.startswith("rank:") and word[5:].isdigit()))
        hosts.update(dict.fromkeys(item.get("hosts", [])))
        hosts.update(dict.fromkeys(word[5:] for word in words if word.startswith("host:")))
    return list(ranks), list(hosts)


def _time_parts(report: RunReport) -> list[str]:
    """Where the time went: a picture, and the figure that operators are measured by."""
    bad = [str(item.get("attempt")) for item in _incidents(report)]
    spent = time_spent(report.attempts)
    parts = [timeline(report.attempts, bad)]
    if spent.ratio is not None:
        rest = max(0.0, spent.total_s - spent.useful_s - spent.repeated_s)
        words = (
            f"Effective-time ratio {spent.ratio:.1%} (measured): {duration(spent.useful_s)} of steps that count in "
            f"{duration(spent.total_s)} from the first event to the last; {duration(spent.repeated_s)} of steps done "
            f"twice, {duration(rest)} of starting, waiting, evaluating and saving."
        )
        parts.append(paragraph(words))
    return parts


def _checkpoint_parts(attempts: tuple[Progress, ...]) -> list[str]:
    """Each checkpoint once, with the furthest state it reached, and what training waited for it."""
    rows: dict[int, dict[str, Any]] = {}
    for attempt in attempts:
        for item in attempt.checkpoints:
            row = rows.setdefault(item.step, {"states": [], "stall": None, "path": item.path})
            row["states"].append(item.state)
            row["stall"] = item.seconds if item.state == "saved" else row["stall"]
    if not rows:
        return []
    shown = sorted(rows.items())[-16:]
    cells = [
        (step, ", ".join(dict.fromkeys(row["states"])), "yes" if "validated" in row["states"] else "no",
         _seconds(row["stall"]), row["path"])
        for step, row in shown
    ]  # fmt: skip
    return [
        heading("Checkpoints"),
        table(("step", "states", "validated", "training waited", "path"), cells),
    ]


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


def _incident_parts(report: RunReport) -> list[str]:
    """Every bad end with its evidence, the newest first."""
    parts = []
    for verdict in reversed(_incidents(report)):
        named = [
            ("what", verdict.get("sentence", "-")),
            ("class", verdict["diagnosis_class"]),
            ("culprit", verdict["culprit"]),
            ("phase", verdict.get("phase") or "-"),
            ("also seen", ", ".join(verdict.get("others", [])) or "-"),
            ("first action", verdict.get("first_action", "-")),
        ]
        parts += [heading(f"Incident in attempt {verdict.get('attempt') or '-'}"), table(("", ""), named)]
        if verdict.get("evidence"):
            lines = "\n".join(escape(str(line)) for line in verdict["evidence"])
            parts.append(f"<pre>{lines}</pre>")
    return parts


def _attempt_parts(attempts: tuple[Progress, ...]) -> list[str]:
    parts = []
    for attempt in reversed(attempts):
        parts.append(heading(f"Attempt {attempt.attempt}"))
        if attempt.phases:
            parts.append(table(("start-up phase of rank 0", "entered (UTC)", "lasted"), _phase_rows(attempt)))
        elif not attempt.steps:
            words = "it left no events, and no step that its logs report; `rackweave diagnose` says what they hold"
            parts.append(paragraph(words, "muted"))
        if attempt.clock.jumps_s:
            back = max(attempt.clock.jumps_s)
            words = f"the clock of this attempt jumped back by up to {duration(back)} ({len(attempt.clock.jumps_s)}×)"
            parts.append(paragraph(f"{words}; its time goes on from where it was", "muted"))
        if attempt.unreadable_lines:
            parts.append(paragraph(f"{attempt.unreadable_lines} lines of events.jsonl could not be read", "muted"))
    return parts


def _phase_rows(attempt: Progress) -> list[tuple[str, str, str]]:
    """The phases up to the first step, one by one; what comes after them is in the picture of times."""
    begun = attempt.steps[0].time if attempt.steps else None
    shown = [change for change in attempt.phases if begun is None or change.time < begun][:12]
    ends = [change.time for change in shown[1:]] + [begun or ""]
    return [(change.phase, _clock(change.time), _between(change.time, end)) for change, end in zip(shown, ends)]


def _clock(value: str) -> str:
    """A time as the table shows it, without parts of a second; a text that is no time stays as it is."""
    return value[:19].replace("T", " ") if moment(value) is not None else value


def _between(start: str, end: str) -> str:
    begun, ended = moment(start), moment(end)
    if begun is None or ended is None or ended < begun:
        return "-"
    return _seconds(ended - begun)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s" if value < 60 else duration(value)
