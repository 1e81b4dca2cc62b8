"""Vocabulary-parallel cross entropy fused with the output projection.

The logits are made a piece at a time and overwritten by their own gradient in the forward pass: no fp32 logits, no
softmax kept, no second product in the backward pass. Weight gradients go to the flat fp32 buffer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from .flat_linear import accumulate_product

if TYPE_CHECKING:
    from collections.abc import Callable


def softmax_gradient_(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the losses (n,) of whole-vocabulary logits (n, v); overwrite the logits by d loss / d logits."""
    values = logits.float()
    normaliser = torch.logsumexp(values, dim=-1)
    target = values.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    columns = torch.arange(logits.shape[-1], device=logits.device)
    gradient = torch.exp(values - normaliser.unsqueeze(-1)) - (columns == labels.unsqueeze(-1)).float()
    losses = normaliser - target
    logits.copy_(gradient)
    return losses


def split_softmax_gradient_(logits: torch.Tensor, labels: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """The same where each rank of `group` holds an equal run of columns; every rank must call this."""
    width = logits.shape[-1]
    first = dist.get_rank(group) * width
    values = logits.float()
    highest = values.amax(dim=-1)
    dist.all_reduce(highest, op=dist.ReduceOp.MAX, group=group)
    exponentials = torch.exp(values - highest.unsqueeze(-1))
    local = labels - first
    mine = (local >= 0) & (local < width)
    local = local.clamp(0, width - 1).unsqueeze(-1)
    target = torch.where(mine, values.gather(-1, local).squeeze(-1) - highest, 0.0)
    sums = torch.stack([exponentials.sum(dim=-1), target])
    dist.all_reduce(sums, group=group)
    gradient = exponentials.div_(sums[0].unsqueeze(-1))
    gradient.scatter_add_(-1, local, -mine.float().unsqueeze(-1))
    logits.copy_(gradient)
    return sums[0].log() - sums[1]


@dataclass(frozen=True)
class LossHead:
    """How the fused loss is computed.

    `group` is the tensor-parallel group, None where the whole vocabulary is here. `chunk` is the number of tokens whose
    logits exist in fp32 at a time where the kernel is not compiled. `room` is memory that is idle from the forward pass
    of the loss to its backward pass (layers' gradients, before the first of a step come); it is left holding zeros.
    """

    group: dist.ProcessGroup | None
    chunk: int
    whole: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = softmax_gradient_
    room: torch.Tensor | None = None

    def logits(self, rows: int, columns: int, like: torch.Tensor) -> tuple[torch.Tensor, bool]:
        """Return memory for logits (rows, columns) of the type of `like`, and whether it is the room's."""
        needed = rows * columns * like.element_size()
        if self.room is None or self.room.nbytes < needed:
            return torch.empty(rows, columns, dtype=like.dtype, device=like.device), False
        return self.room.view(torch.uint8)[:needed].view(like.dtype).view(rows, columns), True

    def gradient_(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return losses; overwrite logits by their gradient."""
        if self.group is None:
            return self.whole(logits, labels)
        return split_softmax_gradient_(logits, labels, self.group)


class FlatCrossEntropyFunction(torch.autograd.Function):
    """Per-token losses of hidden states against labels."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        main_grad: torch.Tensor,
        labels: torch.Tensor,
        head: LossHead,
    ) -> torch.Tensor:
        """Return losses (n,) in fp32 of hidden (n, h), weight (v / tp, h) and labels (n,)."""
        gradients, ctx.borrowed = head.logits(hidden.shape[0], weight.shape[0], hidden)
        losses = []
        for start in range(0, hidden.shape[0], head.chunk):
            piece = slice(start, start + head.chunk)
            torch.mm(hidden[piece], weight.t(), out=gradients[piece])
            losses.append(head.gradient_(gradients[piece], labels[piece]))
        ctx.save_for_backward(hidden, weight)
        # Not among the saved: in the room they share the version of the layers' gradients.
        ctx.main_grad, ctx.gradients = main_grad, gradients
        return torch.cat(losses)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor, None, None, None, None]:
        """Scale the kept gradient by each token's own; a row factor commutes with both products."""
        hidden, weight = ctx.saved_tensors
        gradients, ctx.gradients = ctx.gradients, None
        factor = grad_outputs[0].unsqueeze(-1)
        grad_hidden = gradients @ weight
        accumulate_product(ctx.main_grad, gradients, (hidden * factor).to(hidden.dtype), True)
        if ctx.borrowed:
            gradients.zero_()
        return (grad_hidden * factor).to(hidden.dtype), None, None, None, None


def flat_cross_entropy(
    hidden: torch.Tensor, weight: torch.Tensor, main_grad: torch.Tensor, labels: torch.Tensor, head: LossHead
) -> torch.Tensor:
    """Return per-token losses (n,), fp32, of hidden (n, h), weight (v / tp, h) and labels (n,).

    Over a tensor group the hidden gradient is this rank's part of a sum: pass `hidden` through Megatron's
    `copy_to_tensor_model_parallel_region` or flat_sequence's `gather_sequence`, whose backward passes sum it.
    """
    losses: torch.Tensor = FlatCrossEntropyFunction.apply(  # type: ignore[no-untyped-call]
        hidden, weight, main_grad, labels, head
    )
    return losses
