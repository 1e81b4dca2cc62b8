"""The parallel mesh of ranks: sizes along its axes and the one place that knows how ranks are ordered.

Order: tensor fastest, then context, then data, then pipeline (Megatron core's ``tp-cp-ep-dp-pp``).
A contract test compares the groups below with those that the trainer really builds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import NamedTuple

from ..errors import PlanError


class RankCoordinates(NamedTuple):
    """Position of one rank on the mesh; each value counts from zero along its axis."""

    tp_rank: int
    cp_rank: int
    dp_rank: int
    pp_rank: int


@dataclass(frozen=True)
class ParallelSizes:
    """All parallel sizes of a job: how many ranks lie along each axis of the mesh.

    Expert parallelism reuses the data-parallel ranks, so it does not enter the world size.
    """

    tensor_parallel_size: int
    pipeline_parallel_size: int
    data_parallel_size: int
    virtual_pipeline_size: int = 1
    context_parallel_size: int = 1
    expert_parallel_size: int = 1

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise PlanError(f"{field.name}={value!r} must be a whole number of at least 1")

    @property
    def world_size(self) -> int:
        """Number of ranks (one per GPU)."""
        return (
            self.tensor_parallel_size
            * self.context_parallel_size
            * self.data_parallel_size
            * self.pipeline_parallel_size
        )

    @property
    def model_parallel_size(self) -> int:
        """Ranks that hold one copy of the model: tensor x pipeline."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    def coordinates(self, rank: int) -> RankCoordinates:
        """Return where a global rank sits on the mesh.

        Raises:
            PlanError: if the rank lies outside the world.
        """
        if not 0 <= rank < self.world_size:
            raise PlanError(f"rank {rank} lies outside world_size={self.world_size}")
        rest, tp_rank = divmod(rank, self.tensor_parallel_size)
        rest, cp_rank = divmod(rest, self.context_parallel_size)
        pp_rank, dp_rank = divmod(rest, self.data_parallel_size)
        return RankCoordinates(tp_rank, cp_rank, dp_rank, pp_rank)

    def rank_of(self, coordinates: RankCoordinates) -> int:
        """Return the global rank at a position of the mesh (inverse of `coordinates`)."""
        outer = coordinates.pp_rank * self.data_parallel_size + coordinates.dp_rank
        return (
            outer * self.context_parallel_size + coordinates.cp_rank
        ) * self.tensor_parallel_size + coordinates.tp_rank

    def tensor_groups(self) -> list[list[int]]:
        """Return the tensor-parallel groups, each a list of global ranks in order."""
        return self._groups("tp_rank")

    def data_groups(self) -> list[list[int]]:
        """Return the data-parallel groups, each a list of global ranks in order."""
        return self._groups("dp_rank")

    def pipeline_groups(self) -> list[list[int]]:
        """Return the pipeline-parallel groups, each a list of global ranks in stage order."""
        return self._groups("pp_rank")

    def _groups(self, axis: str) -> list[list[int]]:
        groups: dict[RankCoordinates, list[int]] = {}
        for rank, where in self._all_coordinates():
            groups.setdefault(where._replace(**{axis: 0}), []).append(rank)
        return list(groups.values())

    def _all_coordinates(self) -> Iterator[tuple[int, RankCoordinates]]:
        for rank in range(self.world_size):
            yield rank, self.coordinates(rank)
