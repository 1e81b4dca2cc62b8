"""Process groups: the world, Megatron's groups, one CPU group for control, and what DeepSpeed wants to know."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from rackweave.plan.layout import RankCoordinates

from .config import SizesConfig
from .errors import StopError

DEFAULT_RNG_SPREAD = 100_003
"""Distance of the dropout seeds of two ranks; prime, far above Megatron's offset for tensor ranks (2718)."""


@dataclass(frozen=True)
class Mesh:
    """This rank's place and groups. `control` is a gloo group of all ranks, for small facts and checkpoints."""

    rank: int
    world_size: int
    where: RankCoordinates
    device: torch.device
    tensor: dist.ProcessGroup
    pipeline: dist.ProcessGroup
    data: dist.ProcessGroup
    model: dist.ProcessGroup
    control: dist.ProcessGroup
    sizes: SizesConfig

    def gather(self, fact: object) -> list[Any]:
        """Return every rank's small picklable fact, in rank order; every rank must call this."""
        facts: list[Any] = [None] * self.world_size
        dist.all_gather_object(facts, fact, group=self.control)
        return facts


def build_mesh(sizes: SizesConfig, rank: int, device: torch.device, backend: str, timeout_s: float) -> Mesh:
    """Initialise the world and Megatron's groups, all with the same time-out; every rank must call this."""
    from megatron.core import parallel_state

    timeout = timedelta(seconds=timeout_s)
    if not dist.is_initialized():
        dist.init_process_group(backend=backend, timeout=timeout)
    virtual = sizes.virtual_pipeline_size if sizes.virtual_pipeline_size > 1 else None
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=sizes.tensor_parallel_size,
        pipeline_model_parallel_size=sizes.pipeline_parallel_size,
        virtual_pipeline_model_parallel_size=virtual,
        # Megatron counts in minutes; its default of 30 would keep a job with a dead peer for half an hour.
        distributed_timeout_minutes=timeout_s / 60,
        create_gloo_process_groups=False,
    )
    mesh = Mesh(
        rank=rank,
        world_size=sizes.world_size,
        where=sizes.parallel.coordinates(rank),
        device=device,
        tensor=parallel_state.get_tensor_model_parallel_group(),
        pipeline=parallel_state.get_pipeline_model_parallel_group(),
        data=parallel_state.get_data_parallel_group(),
        model=parallel_state.get_model_parallel_group(),
        control=dist.new_group(backend="gloo", timeout=timeout),
        sizes=sizes,
    )
    _check_groups(mesh)
    return mesh


def _check_groups(mesh: Mesh) -> None:
    """Raise StopError if Megatron ordered the ranks otherwise than the plan: hosts would hold the wrong parts."""
    parallel = mesh.sizes.parallel
    planned = {
        "tensor": (mesh.tensor, parallel.tensor_groups()),
        "data": (mesh.data, parallel.data_groups()),
        "pipeline": (mesh.pipeline, parallel.pipeline_groups()),
    }
    for axis, (group, groups) in planned.items():
        found = dist.get_process_group_ranks(group)
        if found not in groups:
            raise StopError(f"rank {mesh.rank} got the {axis}-parallel group {found}, which the plan does not have")


def seed_mesh(mesh: Mesh, seed: int) -> None:
    """Seed this rank's generators: equal over tensor ranks for replicated activations, different for split ones."""
    from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed

    own = seed + DEFAULT_RNG_SPREAD * (1 + mesh.where.dp_rank + mesh.where.pp_rank * mesh.sizes.data_parallel_size)
    torch.manual_seed(own)
    model_parallel_cuda_manual_seed(own)


def close_mesh() -> None:
    """Destroy all groups; call it on a clean end only, since it may wait for peers."""
    from megatron.core import parallel_state

    parallel_state.destroy_model_parallel()
    if dist.is_initialized():
        dist.destroy_process_group()


class DeepSpeedMpu:
    """Megatron's groups under the names that DeepSpeed asks for; its "model parallel" is tensor x pipeline.

    It must not define `get_sequence_parallel_*`: those mean Ulysses to DeepSpeed.
    """

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh

    def get_model_parallel_group(self) -> dist.ProcessGroup:
        return self._mesh.model

    def get_model_parallel_rank(self) -> int:
        return dist.get_rank(self._mesh.model)

    def get_model_parallel_world_size(self) -> int:
        return self._mesh.sizes.parallel.model_parallel_size

    def get_tensor_model_parallel_group(self) -> dist.ProcessGroup:
        return self._mesh.tensor

    def get_tensor_model_parallel_rank(self) -> int:
        return self._mesh.where.tp_rank

    def get_tensor_model_parallel_world_size(self) -> int:
        return self._mesh.sizes.tensor_parallel_size

    def get_tensor_model_parallel_src_rank(self) -> int:
        return dist.get_global_rank(self._mesh.tensor, 0)

    def get_pipeline_model_parallel_group(self) -> dist.ProcessGroup:
        return self._mesh.pipeline

    def get_pipeline_model_parallel_rank(self) -> int:
        return self._mesh.where.pp_rank

    def get_pipeline_model_parallel_world_size(self) -> int:
        return self._mesh.sizes.pipeline_parallel_size

    def get_data_parallel_group(self) -> dist.ProcessGroup:
        return self._mesh.data

    def get_data_parallel_rank(self) -> int:
        return self._mesh.where.dp_rank

    def get_data_parallel_world_size(self) -> int:
        return self._mesh.sizes.data_parallel_size

    def get_data_parallel_group_ranks(self) -> list[int]:
        return dist.get_process_group_ranks(self._mesh.data)
