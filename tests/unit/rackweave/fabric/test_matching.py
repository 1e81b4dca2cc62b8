"""The cheapest assignment, against trying them all."""

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st
from rackweave.fabric.matching import cheapest_assignment


@given(data=st.data())
def test_no_other_assignment_is_cheaper(data):
    rows = data.draw(st.integers(0, 5))
    columns = data.draw(st.integers(rows, 6))
    costs = [data.draw(st.lists(st.integers(0, 50), min_size=columns, max_size=columns)) for _ in range(rows)]

    chosen = cheapest_assignment(costs)

    assert len(set(chosen)) == rows
    best = min(sum(costs[row][column] for row, column in enumerate(way)) for way in permutations(range(columns), rows))
    assert sum(costs[row][column] for row, column in enumerate(chosen)) == best
