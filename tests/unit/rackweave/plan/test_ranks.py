"""Rank order and groups of the mesh."""

import pytest
from rackweave.errors import PlanError
from rackweave.plan.layout import ParallelSizes


def test_tensor_ranks_are_neighbours_then_data_then_pipeline():
    sizes = ParallelSizes(2, 2, 2)
    assert sizes.tensor_groups() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert sizes.data_groups() == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert sizes.pipeline_groups() == [[0, 4], [1, 5], [2, 6], [3, 7]]


@pytest.mark.parametrize("sizes", [ParallelSizes(8, 2, 2), ParallelSizes(2, 3, 4, context_parallel_size=2)])
def test_coordinates_and_rank_are_inverse(sizes):
    assert [sizes.rank_of(sizes.coordinates(rank)) for rank in range(sizes.world_size)] == list(range(sizes.world_size))


def test_a_size_of_zero_is_refused_by_name():
    with pytest.raises(PlanError, match="pipeline_parallel_size=0"):
        ParallelSizes(1, 0, 1)


def test_a_rank_outside_the_world_is_refused():
    with pytest.raises(PlanError, match="rank 8 lies outside world_size=8"):
        ParallelSizes(2, 2, 2).coordinates(8)
