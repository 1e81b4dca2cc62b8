"""Robust least squares for the constants: Levenberg-Marquardt on log ratios, with a prior on each constant.

Standard library only, so that `rackweave score --cross-validate` refits wherever the package runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Vector = list[float]
Matrix = list[list[float]]
_STEP = 1e-3


@dataclass(frozen=True)
class Prior:
    """What is believed of a constant before the fit.

    Attributes:
        kind: `share` lies between 0 and 1 (fitted as its logit), `positive` above 0 (fitted as its logarithm).
        centre: the most plausible value.
        spread: one standard deviation on the fitted scale.
    """

    kind: str
    centre: float
    spread: float

    def to_scale(self, value: float) -> float:
        """Return a value on the fitted scale."""
        return math.log(value / (1 - value)) if self.kind == "share" else math.log(value)

    def from_scale(self, position: float) -> float:
        """Return the value at a position of the fitted scale."""
        if self.kind == "share":
            return 1 / (1 + math.exp(-position))
        return math.exp(position)


@dataclass(frozen=True)
class Problem:
    """A fit: named constants, residuals as a function of their values, and a weight for each residual."""

    names: tuple[str, ...]
    priors: tuple[Prior, ...]
    residuals: Callable[[dict[str, float]], Vector]
    weights: Vector
    tolerance: float

    def values(self, positions: Vector) -> dict[str, float]:
        """Return the constants at a point of the fitted scale."""
        return {name: prior.from_scale(position) for name, prior, position in zip(self.names, self.priors, positions)}

    def positions(self, values: dict[str, float]) -> Vector:
        """Return the point of the fitted scale that constants lie at."""
        return [prior.to_scale(values[name]) for name, prior in zip(self.names, self.priors)]

    def at(self, positions: Vector) -> Vector:
        """Return the residuals at a point."""
        return self.residuals(self.values(positions))

    def jacobian(self, positions: Vector, base: Vector) -> Matrix:
        """Return one column of derivatives per constant."""
        columns = []
        for index in range(len(positions)):
            moved = list(positions)
            moved[index] += _STEP
            columns.append([(after - before) / _STEP for after, before in zip(self.at(moved), base)])
        return columns

    def robust_weights(self, residuals: Vector, keep: Sequence[bool] | None) -> Vector:
        """Return weights that grow a residual's influence only linearly past the tolerance (soft L1)."""
        found = [
            weight / math.sqrt(1 + (residual / self.tolerance) ** 2)
            for weight, residual in zip(self.weights, residuals)
        ]
        return found if keep is None else [weight if kept else 0.0 for weight, kept in zip(found, keep)]

    def cost(self, positions: Vector, residuals: Vector, keep: Sequence[bool] | None = None) -> float:
        """Return the robust cost, prior included."""
        scale = self.tolerance**2
        total = sum(
            weight * 2 * scale * (math.sqrt(1 + residual * residual / scale) - 1)
            for weight, residual, kept in zip(self.weights, residuals, keep or [True] * len(residuals))
            if kept
        )
        return total + sum(
            ((position - prior.to_scale(prior.centre)) / prior.spread) ** 2 * scale
            for position, prior in zip(positions, self.priors)
        )


def improve(
    problem: Problem,
    positions: Vector,
    jacobian: Matrix,
    residuals: Vector,
    damping: float,
    keep: Sequence[bool] | None = None,
) -> Vector:
    """Return the point after one damped Gauss-Newton step."""
    weights = problem.robust_weights(residuals, keep)
    matrix, right = _assemble(problem, positions, jacobian, residuals, weights, damping)
    return [position + min(1.0, max(-1.0, step)) for position, step in zip(positions, solve(matrix, right))]


def _assemble(
    problem: Problem, positions: Vector, columns: Matrix, residuals: Vector, weights: Vector, damping: float
) -> tuple[Matrix, Vector]:
    """Return the lower triangle and the right side of the normal equations."""
    used = [index for index, weight in enumerate(weights) if weight > 0]
    weighted = [[column[index] * weights[index] for index in used] for column in columns]
    plain = [[column[index] for index in used] for column in columns]
    kept = [residuals[index] for index in used]
    count = len(positions)
    matrix = [[sum(map(_product, weighted[row], plain[column])) for column in range(row + 1)] for row in range(count)]
    right = [-sum(map(_product, weighted[row], kept)) for row in range(count)]
    scale = problem.tolerance**2
    for index, prior in enumerate(problem.priors):
        stiffness = scale / prior.spread**2
        matrix[index][index] = (matrix[index][index] + stiffness) * (1 + damping)
        right[index] -= stiffness * (positions[index] - prior.to_scale(prior.centre))
    return matrix, right


def _product(first: float, second: float) -> float:
    return first * second


def solve(lower: Matrix, right: Vector) -> Vector:
    """Solve a symmetric positive definite system given by its lower triangle (Cholesky)."""
    count = len(right)
    factor: Matrix = [[0.0] * count for _ in range(count)]
    for row in range(count):
        for column in range(row + 1):
            rest = lower[row][column] - sum(map(_product, factor[row][:column], factor[column][:column]))
            if row == column:
                factor[row][row] = math.sqrt(max(rest, 1e-30))
            else:
                factor[row][column] = rest / factor[column][column]
    forward: Vector = []
    for row in range(count):
        forward.append((right[row] - sum(map(_product, factor[row][:row], forward))) / factor[row][row])
    solution = [0.0] * count
    for row in reversed(range(count)):
        rest = forward[row] - sum(factor[later][row] * solution[later] for later in range(row + 1, count))
        solution[row] = rest / factor[row][row]
    return solution


def fit(problem: Problem, start: dict[str, float], rounds: int = 40) -> dict[str, float]:
    """Return the constants of least robust cost, from a starting point."""
    positions = problem.positions(start)
    residuals = problem.at(positions)
    cost, damping = problem.cost(positions, residuals), 1e-2
    for _ in range(rounds):
        jacobian = problem.jacobian(positions, residuals)
        gained = 0.0
        for _attempt in range(6):
            trial = improve(problem, positions, jacobian, residuals, damping)
            trial_residuals = problem.at(trial)
            trial_cost = problem.cost(trial, trial_residuals)
            if trial_cost < cost:
                gained = cost - trial_cost
                positions, residuals, cost = trial, trial_residuals, trial_cost
                damping = max(damping / 5, 1e-6)
                break
            damping *= 6
        if gained < 1e-5 * cost:
            break
    return problem.values(positions)


@dataclass(frozen=True)
class NormalEquations:
    """The quadratic form of a fit at a point: matrix (lower triangle), and what each residual adds to it."""

    matrix: Matrix
    rows: Matrix
    weights: Vector
    residuals: Vector


def normal_equations(problem: Problem, positions: Vector) -> NormalEquations:
    """Return the normal equations of the robust fit at a point, prior included."""
    residuals = problem.at(positions)
    columns = problem.jacobian(positions, residuals)
    weights = problem.robust_weights(residuals, None)
    matrix, _ = _assemble(problem, positions, columns, residuals, weights, 0.0)
    return NormalEquations(matrix, [list(row) for row in zip(*columns)], weights, residuals)


def downdated(problem: Problem, positions: Vector, equations: NormalEquations, left_out: Sequence[int]) -> Vector:
    """Return the point refitted without some residuals: two Newton steps, the second with residuals worked out anew."""
    matrix = [list(row) for row in equations.matrix]
    for index in left_out:
        slope, weight = equations.rows[index], equations.weights[index]
        for row, value in enumerate(slope):
            scaled, line = weight * value, matrix[row]
            for column in range(row + 1):
                line[column] -= scaled * slope[column]
    gone = set(left_out)
    first = _stepped(problem, positions, equations, matrix, equations.residuals, gone)
    return _stepped(problem, first, equations, matrix, problem.at(first), gone)


def _stepped(
    problem: Problem,
    positions: Vector,
    equations: NormalEquations,
    matrix: Matrix,
    residuals: Vector,
    gone: set[int],
) -> Vector:
    """Return the point after one step with a given matrix and the gradient of the kept residuals."""
    weights = problem.robust_weights(residuals, None)
    kept = [index for index in range(len(residuals)) if index not in gone]
    pulls = [weights[index] * residuals[index] for index in kept]
    slopes = [equations.rows[index] for index in kept]
    right = [-sum(map(_product, column, pulls)) for column in zip(*slopes)] or [0.0] * len(positions)
    scale = problem.tolerance**2
    for index, prior in enumerate(problem.priors):
        right[index] -= scale / prior.spread**2 * (positions[index] - prior.to_scale(prior.centre))
    return [position + min(1.0, max(-1.0, step)) for position, step in zip(positions, solve(matrix, right))]
