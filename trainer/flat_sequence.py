"""Sequence parallelism's collectives as operators that a compiler cannot look into, and their gradients.

A compiled autograd function whose output is a fresh tensor that a collective fills loses its gradient in torch 2.11:
the backward pass goes on with zeros and nothing is said (2.13 is right). Operators with a registered gradient leave
nothing to trace, and run the plain collective, which is ordered on the stream like any kernel.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_groups: dict[str, dist.ProcessGroup] = {}


def group_key(group: dist.ProcessGroup) -> str:
    """Return a name under which the operators find a group: they take numbers, strings and tensors only."""
    name: str = group.group_name
    _groups[name] = group
    return name


@torch.library.custom_op("rackweave::gather_sequence", mutates_args=())
def gather_sequence(part: Tensor, group: str, size: int) -> Tensor:
    """Return the whole sequence (dim 0) of which `size` ranks hold a part each; the gradient is summed and split."""
    whole = part.new_empty((part.shape[0] * size, *part.shape[1:]))
    dist.all_gather_into_tensor(whole, part.contiguous(), group=_groups[group])
    return whole


@gather_sequence.register_fake
def _gather_fake(part: Tensor, group: str, size: int) -> Tensor:
    return part.new_empty((part.shape[0] * size, *part.shape[1:]))


@torch.library.custom_op("rackweave::scatter_sequence", mutates_args=())
def scatter_sequence(whole: Tensor, group: str, size: int) -> Tensor:
    """Return this rank's part of the sum of all ranks' whole sequences; the gradient is gathered."""
    part = whole.new_empty((whole.shape[0] // size, *whole.shape[1:]))
    dist.reduce_scatter_tensor(part, whole.contiguous(), group=_groups[group])
    return part


@scatter_sequence.register_fake
def _scatter_fake(whole: Tensor, group: str, size: int) -> Tensor:
    return whole.new_empty((whole.shape[0] // size, *whole.shape[1:]))


@torch.library.custom_op("rackweave::sum_over_group", mutates_args=())
def sum_over_group(values: Tensor, group: str) -> Tensor:
    """Return the sum over the ranks of a group. Has no gradient of its own."""
    summed = values.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(summed, group=_groups[group])
    return summed


@sum_over_group.register_fake
def _sum_fake(values: Tensor, group: str) -> Tensor:
    return values.new_empty(values.shape)


@torch.library.custom_op("rackweave::share_over_group", mutates_args=())
def share_over_group(parameter: Tensor, group: str) -> Tensor:
    """Return a replicated vector's values for use on a split sequence; its gradient is summed over the group."""
    return parameter.clone()


@share_over_group.register_fake
def _share_fake(parameter: Tensor, group: str) -> Tensor:
    return torch.empty_like(parameter)


def _keep_group(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.where = inputs[1:]


def _gather_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
    return scatter_sequence(gradient, *ctx.where), None, None


def _scatter_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
    return gather_sequence(gradient, *ctx.where), None, None


def _share_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    return sum_over_group(gradient, *ctx.where), None


gather_sequence.register_autograd(_gather_backward, setup_context=_keep_group)
scatter_sequence.register_autograd(_scatter_backward, setup_context=_keep_group)
share_over_group.register_autograd(_share_backward, setup_context=_keep_group)
