"""Arithmetic of global batch, micro-batch and accumulation."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import PlanError


@dataclass(frozen=True)
class BatchPlan:
    """How a global batch is cut; all three count sequences, except the number of passes."""

    global_batch_size: int
    micro_batch_size: int
    num_microbatches: int


def plan_batch(global_batch_size: int, micro_batch_size: int, data_parallel_size: int) -> BatchPlan:
    """Split a global batch into micro-batches.

    Raises:
        PlanError: if a size is not positive, or micro_batch_size * data_parallel_size does not
            divide global_batch_size.
    """
    sizes = {
        "global_batch_size": global_batch_size,
        "micro_batch_size": micro_batch_size,
        "data_parallel_size": data_parallel_size,
    }
    for name, value in sizes.items():
        if value < 1:
            raise PlanError(f"{name}={value} must be at least 1")
    samples_per_pass = micro_batch_size * data_parallel_size
    if global_batch_size % samples_per_pass:
        raise PlanError(
            f"global_batch_size={global_batch_size} is not a multiple of "
            f"micro_batch_size={micro_batch_size} * data_parallel_size={data_parallel_size}"
        )
    return BatchPlan(global_batch_size, micro_batch_size, global_batch_size // samples_per_pass)
