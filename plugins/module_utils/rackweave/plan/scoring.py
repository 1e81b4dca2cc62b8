"""How far predictions are from published measurements: step time by source, memory by kind, memory labels, ranking."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import PlanError
from .constants import Constants
from .memory import GIB, StageMemory, peak_memory
from .row_cells import UnscorableRow
from .rows import COLUMNS, MEMORY_KINDS, MeasuredRow, read_row
from .step_time import step_time

TOTALS = {"max_allocated": "allocated", "max_reserved": "reserved", "nvidia_smi": "nvidia_smi"}
_MIN_LAYOUTS = 6


@dataclass(frozen=True)
class Table:
    """Rows that can be scored, and why the others cannot."""

    rows: tuple[MeasuredRow, ...]
    total: int
    unscored: Mapping[str, int]


@dataclass(frozen=True)
class Scored:
    """One row with its predictions; None where nothing was measured to compare with."""

    row: MeasuredRow
    step_s: float | None
    memory_gib: float | None
    fits: bool


def read_table(lines: Iterable[Mapping[str, str]], columns: Sequence[str]) -> Table:
    """Read all rows of a table.

    Raises:
        PlanError: if a column is missing or a cell malformed; the sentence names row and column.
    """
    missing = [name for name in COLUMNS if name not in columns]
    if missing:
        raise PlanError(f"the table lacks the columns {', '.join(missing)}")
    rows: list[MeasuredRow] = []
    unscored: dict[str, int] = {}
    total = 0
    for position, cells in enumerate(lines, start=2):
        total += 1
        try:
            row = read_row(cells, position)
        except UnscorableRow as reason:
            unscored[str(reason)] = unscored.get(str(reason), 0) + 1
            continue
        if row.step_unscored:
            unscored[row.step_unscored] = unscored.get(row.step_unscored, 0) + 1
        rows.append(row)
    return Table(tuple(rows), total, unscored)


def settled(row: MeasuredRow, constants: Constants) -> MeasuredRow:
    """Settle what a source leaves out of ZeRO and recomputation: the least that fits.

    Recomputation is none, else that of norms and activation functions, else `partial`: published recipes then
    recompute a little more or keep activations on the host, at about the same speed.
    """
    choices = [row]
    if row.layout.recompute == "auto":
        kinds = ("none", "elementwise", "partial")
        choices = [replace(row, layout=replace(row.layout, recompute=kind)) for kind in kinds]
    if "zero" in row.inferred:
        sharded = [replace(choice, layout=replace(choice.layout, zero_stage=1)) for choice in choices]
        choices = [item for pair in zip(choices, sharded) for item in pair]
    memory = predicted_memory(choices[-1], constants)
    if memory.weights + memory.gradients > row.machine.memory_bytes:
        # At the stated stage the model itself exceeds the GPU: what ran was sharded fully.
        whole = replace(row.layout, zero_stage=3, engine="fsdp", recompute="partial")
        return replace(row, layout=whole, inferred=(*row.inferred, "zero"))
    for choice in choices:
        if predicted_memory(choice, constants).needed <= choice.machine.memory_bytes:
            return choice
    return choices[-1]


def predicted_memory(row: MeasuredRow, constants: Constants) -> StageMemory:
    """Return the memory of the rank whose figure the source gives: the last one, or the worst."""
    return peak_memory(row.model, row.layout, row.software, constants, last_only=row.last_rank)


def predicted_step(row: MeasuredRow, constants: Constants) -> float:
    """Return the predicted seconds of one step."""
    return step_time(row.model, row.layout, row.machine, row.software, constants).total


def predict(row: MeasuredRow, constants: Constants) -> Scored:
    """Return the predictions for one row."""
    memory = predicted_memory(row, constants)
    gib = None
    if row.memory_gib is not None:
        gib = float(getattr(memory, TOTALS[row.memory_kind])) / GIB
    step = predicted_step(row, constants) if row.step_s is not None else None
    return Scored(row, step, gib, memory.needed <= row.machine.memory_bytes)


def report(table: Table, scored: Sequence[Scored]) -> dict[str, Any]:
    """Return the scores as `rackweave score --json` prints them; percent, null where a figure cannot be had."""
    groups = _by(scored, lambda item: item.row.group if item.step_s is not None else None)
    steps = {name: _error(_pairs(items, "step_s")) for name, items in groups.items()}
    kinds = _by(scored, lambda item: item.row.memory_kind if item.memory_gib is not None else None)
    apart = [entry["mape"] for name, entry in steps.items() if name != "vts"]
    everything = [entry["mape"] for entry in steps.values()]
    return {
        "rows": table.total,
        "scored": table.total - sum(table.unscored.values()),
        "unscored": dict(table.unscored),
        "inferred": sum(1 for item in scored if item.row.inferred),
        "step": {
            "groups": steps,
            "balanced_mape": _mean(everything),
            "balanced_mape_without_vts": _mean(apart),
        },
        "memory": {kind: _error(_pairs(kinds.get(kind, []), "memory_gib")) for kind in MEMORY_KINDS},
        "oom": _labels(scored),
        "ranking": ranking(scored),
    }


def _by(scored: Iterable[Scored], key: Callable[[Scored], Any]) -> dict[Any, list[Scored]]:
    found: dict[Any, list[Scored]] = {}
    for item in scored:
        name = key(item)
        if name is not None:
            found.setdefault(name, []).append(item)
    return found


def _pairs(items: Iterable[Scored], name: str) -> list[tuple[float, float]]:
    return [(getattr(item, name), getattr(item.row, name)) for item in items]


def _error(pairs: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Return count, mean absolute and mean signed relative error in percent."""
    if not pairs:
        return {"n": 0, "mape": None, "bias": None}
    errors = [100 * (predicted / measured - 1) for predicted, measured in pairs]
    return {
        "n": len(errors),
        "mape": round(statistics.fmean(map(abs, errors)), 3),
        "bias": round(statistics.fmean(errors), 3),
    }


def _mean(values: Sequence[float]) -> float | None:
    return round(statistics.fmean(values), 3) if values else None


def _labels(scored: Iterable[Scored]) -> dict[str, int]:
    """Count layouts reported not to fit, those predicted so, and false alarms among those that ran."""
    labels = [item for item in scored if item.row.out_of_memory]
    ran = [item for item in scored if not item.row.out_of_memory and item.row.ran]
    return {
        "labels": len(labels),
        "caught": sum(1 for item in labels if not item.fits),
        "false": sum(1 for item in ran if not item.fits),
    }


def ranking(scored: Iterable[Scored]) -> dict[str, Any]:
    """Return how well predictions order the measured layouts of each job with at least six of them."""
    jobs = _by(scored, lambda item: item.row.job if item.step_s is not None else None)
    found: list[dict[str, Any]] = []
    for job, items in jobs.items():
        layouts = _by(items, lambda item: item.row.layout)
        if len(layouts) < _MIN_LAYOUTS:
            continue
        predicted = [statistics.median(item.step_s or 0.0 for item in group) for group in layouts.values()]
        measured = [statistics.median(item.row.step_s or 0.0 for item in group) for group in layouts.values()]
        pick = min(range(len(predicted)), key=predicted.__getitem__)
        found.append(
            {
                "job": " ".join(map(str, job)),
                "layouts": len(layouts),
                "spearman": round(spearman(predicted, measured), 3),
                "regret": round(100 * (measured[pick] / min(measured) - 1), 3),
            }
        )
    regrets = [entry["regret"] for entry in found]
    return {
        "jobs": found,
        "mean_regret": _mean(regrets),
        "worst_regret": max(regrets, default=None),
        "worst_spearman": min((entry["spearman"] for entry in found), default=None),
    }


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the rank correlation of two sequences, ties sharing their mean rank."""
    ranks = [_ranks(first), _ranks(second)]
    means = [statistics.fmean(values) for values in ranks]
    apart = [[value - mean for value in values] for values, mean in zip(ranks, means)]
    scale = math.sqrt(sum(value * value for value in apart[0]) * sum(value * value for value in apart[1]))
    return sum(map(lambda one, other: one * other, *apart)) / scale if scale else 0.0


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end + 1 < len(order) and values[order[end + 1]] == values[order[start]]:
            end += 1
        for position in range(start, end + 1):
            ranks[order[position]] = (start + end) / 2
        start = end + 1
    return ranks
