"""GELU for short dtypes: the exact function to fp32 rounding, with one exponential shared by value and derivative."""

from __future__ import annotations

from typing import Any

import torch

# Abramowitz & Stegun 1964, 7.1.26: erfc(z) = exp(-z^2) * t * polynomial(t), t = 1 / (1 + P z), z >= 0; error <= 1.5e-7.
P = 0.3275911
COEFFICIENTS = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
ROOT_HALF = 0.7071067811865476
DENSITY = 0.3989422804014327
"""1 / sqrt(2 pi)."""


def _normal(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the standard normal's distribution function at x, and exp(-x^2 / 2)."""
    t = 1.0 / (1.0 + (P * ROOT_HALF) * x.abs())
    polynomial = torch.zeros_like(t)
    for coefficient in reversed(COEFFICIENTS):
        polynomial = (polynomial + coefficient) * t
    exponential = torch.exp(-0.5 * x * x)
    tail = 0.5 * polynomial * exponential
    return torch.where(x >= 0, 1.0 - tail, tail), exponential


class FastGeluFunction(torch.autograd.Function):
    """x * Phi(x), for bfloat16 and float16; the compiler turns each direction into one kernel."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """Return GELU(x) in x's dtype."""
        ctx.save_for_backward(x)
        wide = x.float()
        return (wide * _normal(wide)[0]).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> torch.Tensor:
        """Return the gradient: Phi(x) + x * phi(x) times the incoming one."""
        (x,) = ctx.saved_tensors
        wide = x.float()
        distribution, exponential = _normal(wide)
        slope = distribution + wide * (DENSITY * exponential)
        gradient: torch.Tensor = (grad_outputs[0].float() * slope).to(x.dtype)
        return gradient


def fast_gelu(x: torch.Tensor) -> torch.Tensor:
    """Return GELU(x); see FastGeluFunction."""
    result: torch.Tensor = FastGeluFunction.apply(x)  # type: ignore[no-untyped-call]
    return result
