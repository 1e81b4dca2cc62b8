"""Which rank holds weights that are no number, asked only once a loss or a gradient norm is none.

A NaN reaches every rank within the step in which it arises, through the gradients; the weights of that moment still
tell where it came from, since they are looked at before such a step is applied.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn


def ranks_with_damaged_weights(stages: Iterable[nn.Module], device: torch.device) -> tuple[int, ...]:
    """Return the ranks whose own weights hold NaN or infinity; every rank of the world must call this.

    Nobody is returned where more than half of the ranks do: the damage has spread then, and tells no origin.
    """
    own = any(
        not bool(torch.isfinite(parameter).all())
        for stage in stages
        for parameter in stage.parameters()
        if parameter.numel()
    )
    flags = torch.zeros(dist.get_world_size(), dtype=torch.float32, device=device)
    flags[dist.get_rank()] = float(own)
    dist.all_reduce(flags)
    ranks = tuple(int(rank) for rank in torch.nonzero(flags).flatten().tolist())
    return ranks if 2 * len(ranks) <= len(flags) else ()
