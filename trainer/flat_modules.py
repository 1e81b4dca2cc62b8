"""Rewire a built stage so that every gradient lands in the flat fp32 buffer inside the backward pass itself.

A module keeps its class's behaviour; only how it reads its own parameters changes. No autograd hook is left, so the
layers compile whole and a micro-batch can be captured as one CUDA graph.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from megatron.core.tensor_parallel import (
    ColumnParallelLinear,
    RowParallelLinear,
    copy_to_tensor_model_parallel_region,
    reduce_from_tensor_model_parallel_region,
)
from torch import Tensor, nn

from .flat_activation import fast_gelu
from .flat_linear import add_bias, flat_linear, sink
from .flat_loss import LossHead, flat_cross_entropy
from .flat_sequence import gather_sequence, group_key, scatter_sequence, share_over_group
from .model.layers import Mlp, ParallelNorm, RowLinear
from .model.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Mapping


class Accumulation:
    """Whether the gradients that a backward pass finds in the buffers are to be kept.

    Layers read it in the forward pass, so that compiled code and graphs exist for both cases.
    """

    def __init__(self) -> None:
        self.keep = True


def route_gradients(
    stage: Stage, main_grads: Mapping[nn.Parameter, Tensor], head: LossHead, accumulation: Accumulation
) -> None:
    """Send the gradients of all parameters in `main_grads` there; parameters that are not in it are left alone.

    Matrices of layers replace what the buffer holds where `accumulation` says so; all others always add.
    """
    for module in list(stage.modules()):
        own = {name: main_grads[p] for name, p in module.named_parameters(recurse=False) if p in main_grads}
        if own:
            _adopt(module, own, accumulation)
    if stage.output_layer is not None:
        _adopt_head(stage, main_grads, head)


def _adopt(module: nn.Module, own: Mapping[str, Tensor], accumulation: Accumulation) -> None:
    kind = type(module)
    # Only these classes themselves: one built on them (an adapter) computes something else.
    fused = {ColumnParallelLinear: FlatColumn, RowParallelLinear: FlatRow, RowLinear: FlatRow, ParallelNorm: FlatNorm}
    base: type = fused.get(kind, kind) if "weight" in own else kind
    module.__class__ = _reading_class(base, tuple(own))
    if isinstance(module, FlatNorm):
        module.tensor_group = group_key(module._group)  # type: ignore[assignment]
    if isinstance(module, (FlatColumn, FlatRow)):
        # A number and a string, so that a compiled layer need not ask a process group.
        module.tensor_size, module.tensor_group = module.tp_group.size(), group_key(module.tp_group)
        module.accumulation = accumulation
    for name, grad in own.items():
        # Set past nn.Module: a plain tensor attribute, neither parameter nor buffer.
        object.__setattr__(module, f"main_grad_{name}", grad)


@functools.cache
def _reading_class(base: type, names: tuple[str, ...]) -> type:
    """Return `base` with parameters read through `sink`; one class, so that equal layers share compiled code."""
    return type(f"Sinking{base.__name__}", (base,), {name: property(_reader(name)) for name in names})


def _reader(name: str) -> Any:
    def read(module: nn.Module) -> Tensor:
        parameter = module._parameters[name]
        assert parameter is not None
        return sink(parameter, getattr(module, f"main_grad_{name}"))

    return read


class FlatColumn(ColumnParallelLinear):
    """Column-parallel linear with a fused weight gradient."""

    def forward(self, hidden: Tensor, weight: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Return (output, bias to add later or None), as Megatron's own layer does."""
        if weight is not None:
            output: tuple[Tensor, Tensor | None] = super().forward(hidden, weight=weight)
            return output
        if self.sequence_parallel:
            hidden = gather_sequence(hidden, self.tensor_group, self.tensor_size)
        else:
            hidden = _copy_to_group(hidden, self.tp_group, self.tensor_size)
        result = flat_linear(hidden, self._parameters["weight"], self.main_grad_weight, self.accumulation.keep)
        if self.skip_bias_add or self._parameters.get("bias") is None:
            return result, self.bias
        return add_bias(result, self._parameters["bias"], self.main_grad_bias), None


class FlatRow(RowParallelLinear):
    """Row-parallel linear with a fused weight gradient.

    Its bias is added here, after the sum over the tensor group, or by the caller where the sequence is split.
    """

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return (output summed over the tensor group, bias or None)."""
        result = flat_linear(hidden, self._parameters["weight"], self.main_grad_weight, self.accumulation.keep)
        if self.sequence_parallel:
            result = scatter_sequence(result, self.tensor_group, self.tensor_size)
        elif self.tensor_size > 1:
            result = reduce_from_tensor_model_parallel_region(result, group=self.tp_group)
        if self._parameters.get("bias") is not None and not self.sequence_parallel:
            return add_bias(result, self._parameters["bias"], self.main_grad_bias), None
        bias = self.bias
        if bias is not None and self.sequence_parallel:
            bias = share_over_group(bias, self.tensor_group)
        return result, bias


class FlatNorm(ParallelNorm):
    """Norm whose parameters' gradients are summed over the tensor group by an opaque operator."""

    def _shared(self, parameter: Tensor) -> Tensor:
        return share_over_group(parameter, self.tensor_group) if self._sequence_parallel else parameter


def _copy_to_group(hidden: Tensor, group: torch.distributed.ProcessGroup, size: int) -> Tensor:
    if size == 1:
        return hidden
    copied: Tensor = copy_to_tensor_model_parallel_region(hidden, group=group)
    return copied


def _adopt_head(stage: Stage, main_grads: Mapping[nn.Parameter, Tensor], head: LossHead) -> None:
    assert stage.output_layer is not None
    # A tied head on the stage of the embedding has no weight of its own.
    owns = stage.output_layer._parameters.get("weight") is not None
    owner = stage.output_layer if owns or stage.embedding is None else stage.embedding.word_embeddings
    weight = owner._parameters["weight"]
    if weight is None or weight not in main_grads:
        return
    object.__setattr__(stage, "flat_head", (weight, main_grads[weight], head))
    stage.__class__ = FlatStage


class FlatStage(Stage):
    """A last stage whose output projection and loss are one fused operation."""

    def _head(self, hidden: Tensor, labels: Tensor | None) -> Tensor:
        if labels is None:
            return super()._head(hidden, labels)
        fused: tuple[Tensor, Tensor, LossHead] = self.__dict__["flat_head"]
        weight, main_grad, head = fused
        assert self.output_layer is not None, "only the last stage has a head"
        group = self.output_layer.tp_group
        if self.config.sequence_parallel:
            hidden = gather_sequence(hidden, group_key(group), group.size())
        else:
            hidden = _copy_to_group(hidden, group, group.size())
        if not torch.is_grad_enabled():
            head = replace(head, room=None)  # no backward pass will empty it
        losses = flat_cross_entropy(hidden.flatten(0, 1), weight, main_grad, labels.transpose(0, 1).reshape(-1), head)
        return losses.mean()


def use_fast_gelu(stage: Stage) -> None:
    """Let feed-forward blocks of a short dtype compute GELU with the cheaper error function; see flat_activation."""
    for module in stage.modules():
        if type(module) is Mlp and not module._gated:
            module.__class__ = FastGeluMlp


class FastGeluMlp(Mlp):
    """Feed-forward block whose GELU costs half as many instructions."""

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return (output, bias or None) like its base."""
        inner, _ = self.linear_fc1(hidden)
        output: tuple[Tensor, Tensor | None] = self.linear_fc2(fast_gelu(inner))
        return output
