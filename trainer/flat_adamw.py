"""AdamW on flat tensors: decay, moments, update, clip and the bfloat16 copy in one pass over memory.

The fp32 master weight is not stored beside its bfloat16 copy: the copy holds the upper half of its bits (rounded to
nearest) and an int16 tensor the signed rest, so that both together are the fp32 weight, bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class AdamWConstants:
    """Hyperparameters that do not change during a run."""

    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    weight_decay: float = 0.1
    clear: bool = True
    """Set the gradient to zero after use; False where the next step's first backward pass replaces it."""


def merge_halves(upper: torch.Tensor, rest: torch.Tensor) -> torch.Tensor:
    """Return the fp32 tensor whose bits are `upper` (bfloat16) and `rest` (int16)."""
    bits = (upper.view(torch.int16).to(torch.int32) << 16) + rest.to(torch.int32)
    return bits.view(torch.float32)


def split_halves(master: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (bfloat16 rounded to nearest, ties away from zero; int16 rest) of a finite fp32 tensor."""
    bits = master.view(torch.int32)
    upper = (bits + 0x8000) >> 16
    rest = bits - (upper << 16)
    return upper.to(torch.int16).view(torch.bfloat16), rest.to(torch.int16)


def step_scalars(learning_rate: float, constants: AdamWConstants, step: int, out: torch.Tensor) -> torch.Tensor:
    """Write what changes from step to step into `out`: learning rate, bias corrections (the second as a root)."""
    correction1 = 1 - constants.beta1**step
    correction2 = (1 - constants.beta2**step) ** 0.5
    return out.copy_(torch.tensor([learning_rate, correction1, correction2], dtype=torch.float32), non_blocking=True)


@dataclass(frozen=True)
class Moments:
    """AdamW's two running means, and the gradient that they take in; fp32 tensors of one shape."""

    exp_avg: torch.Tensor
    exp_avg_sq: torch.Tensor
    grad: torch.Tensor


def _updated(
    master: torch.Tensor, state: Moments, scalars: torch.Tensor, clip: torch.Tensor, constants: AdamWConstants
) -> torch.Tensor:
    """Return the new master weights; step the moments in place and, if the constants say so, clear the gradient.

    A `clip` that is not finite (an overflow anywhere in the model) leaves weights and moments as they are: the choice
    is made on the device, so the host need not wait for the norm before it launches the step.
    """
    keep = ~torch.isfinite(clip)
    grad = state.grad * clip
    learning_rate, correction1, correction2 = scalars[0], scalars[1], scalars[2]
    exp_avg = state.exp_avg + (grad - state.exp_avg) * (1 - constants.beta1)
    exp_avg_sq = state.exp_avg_sq * constants.beta2 + grad * grad * (1 - constants.beta2)
    decayed = master * (1 - learning_rate * constants.weight_decay)
    denominator = exp_avg_sq.sqrt() / correction2 + constants.epsilon
    new = decayed - (learning_rate / correction1) * (exp_avg / denominator)
    new = torch.where(keep, master, new)
    state.exp_avg.copy_(torch.where(keep, state.exp_avg, exp_avg))
    state.exp_avg_sq.copy_(torch.where(keep, state.exp_avg_sq, exp_avg_sq))
    if constants.clear:
        state.grad.zero_()
    return new


def adamw_halves(
    upper: torch.Tensor,
    rest: torch.Tensor,
    exp_avg: torch.Tensor,
    exp_avg_sq: torch.Tensor,
    grad: torch.Tensor,
    scalars: torch.Tensor,
    clip: torch.Tensor,
    constants: AdamWConstants,
) -> None:
    """Step a bfloat16 weight and its int16 rest in place."""
    state = Moments(exp_avg, exp_avg_sq, grad)
    new_upper, new_rest = split_halves(_updated(merge_halves(upper, rest), state, scalars, clip, constants))
    upper.copy_(new_upper)
    rest.copy_(new_rest)


def adamw_full(
    master: torch.Tensor,
    exp_avg: torch.Tensor,
    exp_avg_sq: torch.Tensor,
    grad: torch.Tensor,
    scalars: torch.Tensor,
    clip: torch.Tensor,
    constants: AdamWConstants,
) -> None:
    """Step an fp32 weight in place."""
    master.copy_(_updated(master, Moments(exp_avg, exp_avg_sq, grad), scalars, clip, constants))


def clip_factor(norm: torch.Tensor, max_norm: float, divisor: float) -> torch.Tensor:
    """Return what summed gradients are multiplied by: 1 / divisor and min(1, max_norm / norm), as DeepSpeed has it.

    Args:
        norm: of the gradients after division; a norm that is not finite makes the factor not finite.
        max_norm: 0 turns clipping off.
        divisor: what the gradients carry besides their mean, e.g. a loss scale.
    """
    excess = torch.ones_like(norm) if max_norm <= 0 else ((norm + 1e-6) / max_norm).clamp(min=1.0)
    factor = 1.0 / (excess * divisor)
    # An infinite norm would give the finite factor 0; it must stay recognisable.
    return torch.where(torch.isfinite(norm), factor, norm)


@dataclass(frozen=True)
class AdamWKernels:
    """The two update functions, compiled for a GPU or as they are."""

    halves: Callable[..., None]
    full: Callable[..., None]

    @classmethod
    def for_device(cls, device: torch.device) -> AdamWKernels:
        """Compile on CUDA: written out, the update is a dozen passes over memory instead of one."""
        if device.type != "cuda":
            return cls(adamw_halves, adamw_full)
        return cls(torch.compile(adamw_halves, dynamic=False), torch.compile(adamw_full, dynamic=False))
