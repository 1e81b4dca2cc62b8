"""Weight gradients added straight into a flat fp32 buffer, inside the backward pass and inside compiled regions.

A matrix product with bfloat16 operands and an fp32 accumulator adds to the buffer in its epilogue: no bfloat16
gradient tensor, no second pass, no hook per parameter. Megatron-core reaches the same with an Apex extension.
"""

from __future__ import annotations

from typing import Any

import torch


def _supports_fp32_accumulation() -> bool:
    return hasattr(torch.ops.aten.addmm, "dtype_out")


def _add_product(target: torch.Tensor, left: torch.Tensor, right: torch.Tensor, keep: bool) -> None:
    """Add `left.t() @ right` to `target`, or replace it where `keep` is False.

    Shapes: left (n, a), right (n, b), target (a, b); target in fp32 or in the operands' type.
    """
    beta = 1 if keep else 0
    if target.dtype == left.dtype:
        target.addmm_(left.t(), right, beta=beta)
    elif left.is_cuda and _supports_fp32_accumulation():
        torch.ops.aten.addmm.dtype_out(target, left.t(), right, torch.float32, beta=beta, out=target)
    elif keep:
        target.add_(left.t() @ right)
    else:
        target.copy_(left.t() @ right)


_product_operator = torch.library.custom_op("rackweave::accumulate_product", mutates_args=("target",))(_add_product)


@_product_operator.register_fake
def _accumulate_product_fake(target: torch.Tensor, left: torch.Tensor, right: torch.Tensor, keep: bool) -> None:
    return None


def accumulate_product(target: torch.Tensor, left: torch.Tensor, right: torch.Tensor, keep: bool) -> None:
    """Add `left.t() @ right` to `target`, or replace it where `keep` is False.

    A compiler sees an operator; where none looks on, the plain function spares the host its dispatch (and a process
    that compiles nothing the import of the compiler).
    """
    (_product_operator if torch.compiler.is_compiling() else _add_product)(target, left, right, keep)


def accumulate_rows(target: torch.Tensor, rows: torch.Tensor) -> None:
    """Add the sum over all but the last dim of `rows` to `target`.

    Opaque to the compiler on purpose: fused, a bias gradient would make it compute the activation's backward twice,
    once for the sum and once for the matrix product that needs the same values in memory.
    """
    (_rows_operator if torch.compiler.is_compiling() else _add_rows)(target, rows)


def _add_rows(target: torch.Tensor, rows: torch.Tensor) -> None:
    target.add_(rows.reshape(-1, rows.shape[-1]).sum(dim=0, dtype=target.dtype))


_rows_operator = torch.library.custom_op("rackweave::accumulate_rows", mutates_args=("target",))(_add_rows)


@_rows_operator.register_fake
def _accumulate_rows_fake(target: torch.Tensor, rows: torch.Tensor) -> None:
    return None


class FlatLinearFunction(torch.autograd.Function):
    """`x @ weight.t()` whose weight gradient goes to `main_grad` and nowhere else."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, main_grad: torch.Tensor, keep: bool) -> torch.Tensor:
        """Return (..., out) of x (..., in) and weight (out, in)."""
        ctx.save_for_backward(x, weight)
        ctx.main_grad, ctx.keep = main_grad, keep
        return x @ weight.t()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        """Return the input's gradient; put the weight's into the buffer."""
        x, weight = ctx.saved_tensors
        grad = grad_outputs[0]
        accumulate_product(ctx.main_grad, grad.reshape(-1, grad.shape[-1]), x.reshape(-1, x.shape[-1]), ctx.keep)
        return grad @ weight, None, None, None


class SinkFunction(torch.autograd.Function):
    """The parameter itself; its gradient goes to `main_grad` and nowhere else. For norm weights and embeddings."""

    @staticmethod
    def forward(ctx: Any, parameter: torch.Tensor, main_grad: torch.Tensor) -> torch.Tensor:
        """Return the parameter's values: of a vector a copy, which costs nothing and may go through any other function.

        (The compiler refuses a view that another custom function hands on as it is, as Megatron's mappings do.)
        """
        ctx.main_grad = main_grad
        return parameter.clone() if parameter.ndim == 1 else parameter.view_as(parameter)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[None, None]:
        """Add the gradient to the buffer."""
        ctx.main_grad.add_(grad_outputs[0])
        return None, None


class BiasFunction(torch.autograd.Function):
    """`x + bias` whose bias gradient goes to `main_grad` and nowhere else."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, bias: torch.Tensor, main_grad: torch.Tensor) -> torch.Tensor:
        """Return x (..., n) plus bias (n)."""
        ctx.main_grad = main_grad
        return x + bias

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """Pass the gradient on; add its sum to the buffer."""
        accumulate_rows(ctx.main_grad, grad_outputs[0])
        return grad_outputs[0], None, None


def flat_linear(x: torch.Tensor, weight: torch.Tensor, main_grad: torch.Tensor, keep: bool) -> torch.Tensor:
    """Return `x @ weight.t()`; its backward pass adds the weight's gradient to `main_grad`, or replaces that."""
    result: torch.Tensor = FlatLinearFunction.apply(x, weight, main_grad, keep)  # type: ignore[no-untyped-call]
    return result


def sink(parameter: torch.Tensor, main_grad: torch.Tensor) -> torch.Tensor:
    """Return the parameter, with its gradient added to `main_grad` in the backward pass."""
    result: torch.Tensor = SinkFunction.apply(parameter, main_grad)  # type: ignore[no-untyped-call]
    return result


def add_bias(x: torch.Tensor, bias: torch.Tensor, main_grad: torch.Tensor) -> torch.Tensor:
    """Return `x + bias`, with the bias's gradient added to `main_grad` in the backward pass."""
    result: torch.Tensor = BiasFunction.apply(x, bias, main_grad)  # type: ignore[no-untyped-call]
    return result
