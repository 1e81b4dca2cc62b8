"""Fits of the constants to measured rows: on all of them, and leaving out one family at a time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

from .constants import Constants
from .fitting import Prior, Problem, Vector, downdated, fit, normal_equations
from .priors import MEMORY_PRIORS, STEP_PRIORS
from .rows import MeasuredRow
from .scoring import TOTALS, Scored, predict, predicted_memory, predicted_step

Family = tuple[str, int, int, int, int]
_TOLERANCE = 0.03  # residuals past three percent count linearly, as in the mean absolute error
_GROUP_POWER = 0.6  # a source of n rows weighs n^0.4: more rows say more, but not in proportion
# Toy models on one host (`vts`) are no job that anybody plans; `vtm` times many layouts of one job, which is what
# ranking layouts rests on.
_GROUP_WEIGHTS = {"vts": 0.1, "vtm": 4.0}


def step_rows(rows: Sequence[MeasuredRow]) -> list[MeasuredRow]:
    """Return the rows whose step time was measured."""
    return [row for row in rows if row.step_s is not None]


def memory_rows(rows: Sequence[MeasuredRow]) -> list[MeasuredRow]:
    """Return the rows whose memory was measured."""
    return [row for row in rows if row.memory_gib is not None]


def step_problem(rows: Sequence[MeasuredRow], base: Constants) -> Problem:
    """Return the fit of the time constants to rows with a measured step."""
    return _problem(rows, base, STEP_PRIORS, _step_residual, [row.group for row in rows])


def memory_problem(rows: Sequence[MeasuredRow], base: Constants) -> Problem:
    """Return the fit of the memory constants to rows with a measured peak."""
    groups = [row.memory_kind + row.group for row in rows]
    return _problem(rows, base, MEMORY_PRIORS, _memory_residual, groups)


def fit_all(rows: Sequence[MeasuredRow], start: Constants) -> Constants:
    """Return the constants fitted to all rows."""
    timed, sized = step_rows(rows), memory_rows(rows)
    memory = fit(memory_problem(sized, start), _subset(start, MEMORY_PRIORS)) if sized else {}
    steps = fit(step_problem(timed, start), _subset(start, STEP_PRIORS)) if timed else {}
    return start.with_values({**steps, **memory})


def cross_validated(rows: Sequence[MeasuredRow], fitted: Constants) -> list[Scored]:
    """Return predictions for each row from constants refitted without its whole family.

    The refit starts from the fit on all rows and takes two Newton steps without the family's rows, which is what a
    full refit comes to (a test compares them).
    """
    families: dict[Family, list[int]] = {}
    for index, row in enumerate(rows):
        families.setdefault(row.family, []).append(index)
    timed, sized = step_rows(rows), memory_rows(rows)
    steps = _leave_out(step_problem(timed, fitted), _subset(fitted, STEP_PRIORS), timed) if timed else {}
    memory = _leave_out(memory_problem(sized, fitted), _subset(fitted, MEMORY_PRIORS), sized) if sized else {}
    found: list[Scored | None] = [None] * len(rows)
    for family, members in families.items():
        constants = fitted.with_values({**steps.get(family, {}), **memory.get(family, {})})
        for index in members:
            found[index] = predict(rows[index], constants)
    return [item for item in found if item is not None]


def _leave_out(
    problem: Problem, start: dict[str, float], rows: Sequence[MeasuredRow]
) -> dict[Family, dict[str, float]]:
    positions = problem.positions(start)
    equations = normal_equations(problem, positions)
    families: dict[Family, list[int]] = {}
    for index, row in enumerate(rows):
        families.setdefault(row.family, []).append(index)
    return {
        family: problem.values(downdated(problem, positions, equations, members))
        for family, members in families.items()
    }


def _problem(
    rows: Sequence[MeasuredRow],
    base: Constants,
    priors: dict[str, Prior],
    residual: Callable[[MeasuredRow, Constants], float],
    groups: Sequence[str],
) -> Problem:
    sizes = Counter(groups)

    def residuals(values: dict[str, float]) -> Vector:
        constants = base.with_values(values)
        return [residual(row, constants) for row in rows]

    weights = [float(sizes[group] ** -_GROUP_POWER) * _GROUP_WEIGHTS.get(group, 1.0) for group in groups]
    return Problem(tuple(priors), tuple(priors.values()), residuals, weights, _TOLERANCE)


def _step_residual(row: MeasuredRow, constants: Constants) -> float:
    return math.log(predicted_step(row, constants) / (row.step_s or 1.0))


def _memory_residual(row: MeasuredRow, constants: Constants) -> float:
    found = getattr(predicted_memory(row, constants), TOTALS[row.memory_kind])
    return math.log(found / 2**30 / (row.memory_gib or 1.0))


def _subset(constants: Constants, priors: dict[str, Prior]) -> dict[str, float]:
    return {name: getattr(constants, name) for name in priors}
