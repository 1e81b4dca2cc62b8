"""Sequence parallelism's two mappings between a split and a whole sequence, in a form that compiles without a break.

Megatron's own take buffers and devices from module state, which the compiler cannot follow; the mathematics are equal.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def _gather(part: Tensor, group: dist.ProcessGroup, size: int) -> Tensor:
    whole = torch.empty((part.shape[0] * size, *part.shape[1:]), dtype=part.dtype, device=part.device)
    dist.all_gather_into_tensor(whole, part.contiguous(), group=group)
    return whole


def _reduce_scatter(whole: Tensor, group: dist.ProcessGroup, size: int) -> Tensor:
    part = torch.empty((whole.shape[0] // size, *whole.shape[1:]), dtype=whole.dtype, device=whole.device)
    dist.reduce_scatter_tensor(part, whole.contiguous(), group=group)
    return part


class _GatherSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, group: dist.ProcessGroup, size: int) -> Tensor:
        ctx.group, ctx.size = group, size
        return _gather(part, group, size)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        return _reduce_scatter(grad_outputs[0], ctx.group, ctx.size), None, None


class _ScatterSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, whole: Tensor, group: dist.ProcessGroup, size: int) -> Tensor:
        ctx.group, ctx.size = group, size
        return _reduce_scatter(whole, group, size)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        return _gather(grad_outputs[0], ctx.group, ctx.size), None, None


def gather_sequence(part: Tensor, group: dist.ProcessGroup, size: int) -> Tensor:
    """Return the whole sequence (dim 0) of which `size` ranks hold a part each; the gradient is summed and split."""
    whole: Tensor = _GatherSequence.apply(part, group, size)  # type: ignore[no-untyped-call]
    return whole


def scatter_sequence(whole: Tensor, group: dist.ProcessGroup, size: int) -> Tensor:
    """Return this rank's part of the sum of all ranks' whole sequences; the gradient is gathered."""
    part: Tensor = _ScatterSequence.apply(whole, group, size)  # type: ignore[no-untyped-call]
    return part
