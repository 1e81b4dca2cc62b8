"""Reduction, norm, clipping and the AdamW step on flat buffers: one collective a bucket, one kernel a kind.

Independent of the model: it works on any named parameters. Gradients of all backward passes of a step are summed in
fp32 in `main_grads`, either by modules that know it (trainer.flat_modules) or by leaf hooks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from .flat_adamw import AdamWConstants, AdamWKernels, clip_factor, step_scalars
from .flat_layout import Bucket, FlatLayout, Kind, ParameterSpec, plan_flat_layout
from .flat_offload import Home
from .flat_state import ON_DEVICE, RESIDENT, FlatState, Streaming
from .flat_stream import UnitStream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor, nn


@dataclass(frozen=True)
class FlatOptions:
    """`clip_grad` 0 means no clipping; `bucket_numel` counts elements; `home` is where optimizer states live."""

    constants: AdamWConstants
    clip_grad: float
    bucket_numel: int = 40_000_000
    home: Home = ON_DEVICE


@dataclass(frozen=True)
class FlatParameter:
    """A parameter and how it is treated; see ParameterSpec."""

    name: str
    parameter: nn.Parameter
    decayed: bool
    counted: bool
    unit: str = ""


@dataclass(frozen=True)
class FlatGroups:
    """Process groups, None where a group has one rank.

    `data` holds the ranks that see different samples; they share the state if `sharded` (ZeRO 1), else each has all of
    it (ZeRO 0). `model` (tensor x pipeline) shares the gradient norm.
    """

    data: dist.ProcessGroup | None
    model: dist.ProcessGroup | None
    sharded: bool = True

    @property
    def shards(self) -> int:
        """Number of parts of the state."""
        return 1 if self.data is None or not self.sharded else dist.get_world_size(self.data)

    @property
    def shard(self) -> int:
        """The part that this rank owns."""
        return 0 if self.data is None or not self.sharded else dist.get_rank(self.data)


class FlatOptimizer:
    """One per rank, for all parameters that the rank trains."""

    def __init__(
        self,
        parameters: Sequence[FlatParameter],
        groups: FlatGroups,
        options: FlatOptions,
        streaming: Streaming = RESIDENT,
        values: Callable[[str], Tensor] | None = None,
    ) -> None:
        """Adopt the parameters; `values` gives their initial values by name, where they do not hold them themselves."""
        specs = [ParameterSpec(p.name, tuple(p.parameter.shape), p.decayed, p.counted, p.unit) for p in parameters]
        by_name = {p.name: p.parameter for p in parameters}
        self.groups, self._options, self._streaming = groups, options, streaming
        self.layout: FlatLayout = plan_flat_layout(specs, groups.shards, options.bucket_numel)
        own = values or (lambda name: by_name[name].detach())
        self.state = FlatState(self.layout, by_name, groups.shard, streaming, own, options.home)
        views = self.state.parameter_views(self.state.whole_grads)
        self.main_grads: dict[nn.Parameter, Tensor] = {by_name[name]: view for name, view in views.items()}
        self.stream = UnitStream(self.state, groups.data, streaming) if streaming != RESIDENT else None
        self._kernels = AdamWKernels.for_device(self.state.device)
        self._scalars = torch.zeros(3, dtype=torch.float32, device=self.state.device)
        self.replaces = False
        """Whether the first backward pass of a step replaces the gradients of units instead of adding to them."""
        self.steps = 0
        """Optimizer steps taken; Adam's bias correction counts them."""

    def accumulate_by_hooks(self) -> None:
        """Let autograd's own leaf hooks add gradients; for models whose modules were not rewired."""
        for parameter, main_grad in self.main_grads.items():
            parameter.register_post_accumulate_grad_hook(_Accumulate(main_grad))  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def step(self, learning_rate: float, divisor: float = 1.0) -> Tensor:
        """Reduce, clip, update, gather; return the norm of the mean gradient before clipping, on the device.

        Where that norm is not finite nothing is updated; the caller, who looks at it later, must then call `retract`.
        Every rank of the data and model groups must call this.

        Args:
            learning_rate: of this step.
            divisor: loss scale that the gradients carry.
        """
        self.steps += 1
        self._reduce()
        norm = self._total_norm() / divisor
        clip = clip_factor(norm, self._options.clip_grad, divisor)
        for kind in self.layout.shard_kinds():
            self._update(kind, clip, learning_rate)
        self.publish()
        return norm

    def retract(self) -> None:
        """Take back the count of a step that updated nothing."""
        self.steps -= 1

    def clear(self) -> None:
        """Drop the accumulated gradients."""
        self.state.clear()

    def _resident(self, streamed: bool) -> Iterator[tuple[Bucket, int]]:
        for index, bucket in enumerate(self.layout.buckets):
            if not (bucket.unit and streamed):
                yield bucket, index

    def _reduce(self) -> None:
        """Average the gradients over the data-parallel ranks; a sharded rank keeps its own part."""
        state, group = self.state, self.groups.data
        if self.stream is not None:
            self.stream.settle()
        if group is None:
            return
        if not self.groups.sharded:
            dist.all_reduce(state.shard_grads, op=dist.ReduceOp.AVG, group=group)
            return
        for bucket, index in self._resident(self._streaming.gradients):
            own = state.shard_bucket(state.shard_grads, bucket)
            dist.reduce_scatter_tensor(own, state.whole_grads[index], op=dist.ReduceOp.AVG, group=group)
            if not (bucket.unit and self.replaces):
                state.whole_grads[index].zero_()

    @torch.no_grad()
    def publish(self) -> None:
        """Give every data-parallel rank the whole updated weights, those that are resident."""
        state, group = self.state, self.groups.data
        if self.stream is not None:
            self.stream.forget()
        if group is None or not self.groups.sharded:
            return
        for bucket, index in self._resident(self._streaming.weights):
            own = state.shard_bucket(state.shard_weights, bucket)
            dist.all_gather_into_tensor(state.whole_weights[index], own, group=group)

    def _total_norm(self) -> Tensor:
        squares = torch.zeros((), dtype=torch.float32, device=self.state.device)
        for kind in self.layout.shard_kinds():
            if kind.counted:
                piece = self.state.shard_grads[kind.start : kind.start + kind.numel]
                squares += torch.linalg.vector_norm(piece).square()
        if self.groups.data is not None and self.groups.sharded:
            dist.all_reduce(squares, group=self.groups.data)
        if self.groups.model is not None:
            dist.all_reduce(squares, group=self.groups.model)
        return squares.sqrt()

    def _update(self, kind: Kind, clip: Tensor, learning_rate: float) -> None:
        state, constants = self.state, self._options.constants
        decay = constants.weight_decay if kind.decayed else 0.0
        # Streamed gradients are cleared in their shard; resident ones of units by the pass that replaces them.
        replaced = kind.in_units and self.replaces and not self._streaming.gradients
        constants = replace(constants, weight_decay=decay, clear=not replaced)
        step_scalars(learning_rate, constants, self.steps, self._scalars)
        for piece, own in state.visit(kind.start, kind.numel):
            weights, rest, wide = state.shard_weights[piece], own.get("rest"), own.get("wide")
            common = (
                own["exp_avg"],
                own["exp_avg_sq"],
                state.shard_grads[piece],
                self._scalars,
                clip,
                constants,
            )
            if rest is not None:
                self._kernels.halves(weights, rest, *common)
                continue
            self._kernels.full(weights if wide is None else wide, *common)
            if wide is not None:
                weights.copy_(wide)


@dataclass(frozen=True)
class _Accumulate:
    main_grad: Tensor

    @torch.no_grad()
    def __call__(self, parameter: Tensor) -> None:
        assert parameter.grad is not None
        self.main_grad.add_(parameter.grad)
        parameter.grad = None
