"""Rectangles cover a flat run exactly, wherever it begins and ends."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer.checkpoint.rectangles import RowBlock, cut


@given(
    rows=st.integers(1, 7),
    columns=st.integers(1, 7),
    ends=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    blocks=st.integers(1, 2),
    tp=st.integers(1, 3),
)
def test_a_run_of_a_matrix_is_covered_once_by_at_most_three_rectangles_a_block(
    rows: int, columns: int, ends: tuple[float, float], blocks: int, tp: int
) -> None:
    rows *= blocks
    start, stop = sorted(int(end * rows * columns) for end in ends)
    local = torch.arange(rows * columns, dtype=torch.float32)
    half = rows // blocks
    table = [RowBlock(block * half, block * half * tp + half * (tp - 1), half) for block in range(blocks)]
    whole = torch.full((rows * tp, columns + 2), -1.0)
    found = list(cut(local[start:stop], start, (rows, columns), table, column_start=2))
    for rectangle in found:
        top, left = rectangle.offsets
        height, width = rectangle.tensor.shape
        place = whole[top : top + height, left : left + width]
        assert (place == -1.0).all()
        place.copy_(rectangle.tensor)
    held = torch.cat([whole[block.global_start : block.global_start + half, 2:] for block in table]).flatten()
    assert torch.equal(held[start:stop], local[start:stop])
    assert (held[:start] == -1.0).all()
    assert (held[stop:] == -1.0).all()
    assert len(found) <= 3 * blocks


def test_rectangles_are_views_of_the_run() -> None:
    run = torch.zeros(7)
    for rectangle in cut(run, 2, (3, 4), [RowBlock(0, 0, 3)], 0):
        rectangle.tensor.fill_(1.0)
    assert run.sum() == 7
