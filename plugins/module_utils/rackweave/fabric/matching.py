"""The cheapest one-to-one assignment (Hungarian method with potentials, as in Kuhn 1955 and Munkres 1957)."""

from __future__ import annotations

from collections.abc import Sequence

_INFINITE = 1 << 60


def cheapest_assignment(costs: Sequence[Sequence[int]]) -> list[int]:
    """Return for each row the column it gets; rows must not outnumber columns. Cubic in the rows."""
    rows, columns = len(costs), len(costs[0]) if costs else 0
    row_potential, column_potential = [0] * (rows + 1), [0] * (columns + 1)
    owner = [0] * (columns + 1)  # row (from 1) that holds a column (from 1); 0 is free
    for row in range(1, rows + 1):
        owner[0] = row
        previous = _search(costs, row_potential, column_potential, owner)
        column = previous[0]
        while column:
            owner[column], column = owner[previous[column]], previous[column]
    result = [0] * rows
    for column in range(1, columns + 1):
        if owner[column]:
            result[owner[column] - 1] = column - 1
    return result


def _search(
    costs: Sequence[Sequence[int]], row_potential: list[int], column_potential: list[int], owner: list[int]
) -> list[int]:
    """Grow one alternating tree until it reaches a free column; entry 0 of the result is that column."""
    columns = len(column_potential) - 1
    slack, previous, used = [_INFINITE] * (columns + 1), [0] * (columns + 1), [False] * (columns + 1)
    column = 0
    while True:
        used[column] = True
        row, best, nearest = owner[column], _INFINITE, 0
        for other in range(1, columns + 1):
            if used[other]:
                continue
            reduced = costs[row - 1][other - 1] - row_potential[row] - column_potential[other]
            if reduced < slack[other]:
                slack[other], previous[other] = reduced, column
            if slack[other] < best:
                best, nearest = slack[other], other
        for other in range(columns + 1):
            if used[other]:
                row_potential[owner[other]] += best
                column_potential[other] -= best
            else:
                slack[other] -= best
        column = nearest
        if not owner[column]:
            previous[0] = column
            return previous
