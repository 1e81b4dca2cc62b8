"""ZeRO 2 and 3 on flat buffers: units of parameters that are gathered before they are used and reduced after.

A unit (the matrices of one layer) always uses the same buffer, so addresses never change: compiled code and CUDA
graphs keep working, and what autograd saved in the forward pass is valid again once the unit is gathered once more.
Communication runs on its own stream, one unit ahead of the computation.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .flat_state import TURNS, FlatState, Streaming

if TYPE_CHECKING:
    from collections.abc import Sequence


class UnitStream:
    """Moves units in and out for one rank; every data-parallel rank must use units in the same order."""

    def __init__(self, state: FlatState, group: dist.ProcessGroup | None, streaming: Streaming) -> None:
        self._state, self._group, self._streaming = state, group, streaming
        self._units = {b.unit: index for index, b in enumerate(state.layout.buckets) if b.unit}
        self._order = list(self._units)
        self.replaces = False
        """Whether every backward pass replaces what a unit's buffer holds, so that it need not be emptied."""
        self._held: list[int | None] = [None] * TURNS
        self._last: int | None = None
        cuda = state.device.type == "cuda"
        self._side = torch.cuda.Stream() if cuda else None  # type: ignore[no-untyped-call]
        self._ready: list[Any] = [None] * TURNS
        self._drained: list[Any] = [None] * TURNS

    @property
    def gradients(self) -> bool:
        """Whether gradients are streamed."""
        return self._streaming.gradients

    def attach(self, layers: Sequence[nn.Module], names: Sequence[str]) -> None:
        """Hook the layers, in the order of use, to their units."""
        for layer, name in zip(layers, names):
            hooks = _LayerHooks(self, self._order.index(name))
            layer.register_forward_pre_hook(hooks.before)
            layer.register_forward_hook(hooks.after)

    def need(self, unit: int) -> None:
        """Make a unit's weights present, and start to fetch the one that is used next."""
        if self._streaming.weights:
            backward = self._last is not None and unit <= self._last
            self._fetch(unit)
            self._wait(self._ready[unit % TURNS])
            following = unit - 1 if backward else unit + 1
            if 0 <= following < len(self._order):
                self._fetch(following)
        self._last = unit

    def claim(self, unit: int) -> None:
        """Wait until the buffer of a unit's gradients is empty."""
        if self._streaming.gradients:
            self._wait(self._drained[unit % TURNS])

    @torch.no_grad()
    def release(self, unit: int) -> None:
        """Reduce a unit's gradients into this rank's shard, and empty their buffer."""
        if not self._streaming.gradients:
            return
        state, bucket_index = self._state, self._units[self._order[unit]]
        bucket, whole = state.layout.buckets[bucket_index], state.whole_grads[bucket_index]
        own = state.shard_bucket(state.shard_grads, bucket)
        with self._aside():
            if self._group is None:
                own.add_(whole)
            else:
                part = torch.empty_like(own)
                dist.reduce_scatter_tensor(part, whole, op=dist.ReduceOp.AVG, group=self._group)
                own.add_(part)
            if not self.replaces:
                whole.zero_()
            self._drained[unit % TURNS] = self._mark()

    def begin(self) -> None:
        """Forget what is held and waited for: at the start of a micro-batch, so that each moves the same (CUDA graphs).

        Whatever was started before must have been settled.
        """
        self._held = [None] * TURNS
        self._ready = [None] * TURNS
        self._drained = [None] * TURNS
        self._last = None

    def forget(self) -> None:
        """Drop the weights that are held, because the shards have changed."""
        self.settle()
        self.begin()

    def settle(self) -> None:
        """Let the computation wait for everything that was started."""
        if self._side is not None:
            torch.cuda.current_stream().wait_stream(self._side)

    @torch.no_grad()
    def _fetch(self, unit: int) -> None:
        turn = unit % TURNS
        if self._held[turn] == unit:
            return
        state, bucket_index = self._state, self._units[self._order[unit]]
        bucket, whole = state.layout.buckets[bucket_index], state.whole_weights[bucket_index]
        own = state.shard_bucket(state.shard_weights, bucket)
        with self._aside():
            if self._group is None:
                whole.copy_(own)
            else:
                dist.all_gather_into_tensor(whole, own, group=self._group)
            self._ready[turn] = self._mark()
        self._held[turn] = unit

    @contextlib.contextmanager
    def _aside(self) -> Any:
        """Run on the communication stream, after what the computation has launched so far."""
        if self._side is None:
            yield
            return
        self._side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._side):
            yield

    def _mark(self) -> Any:
        return None if self._side is None else self._side.record_event()

    def _wait(self, event: Any) -> None:
        if event is not None:
            torch.cuda.current_stream().wait_event(event)


class _LayerHooks:
    def __init__(self, stream: UnitStream, unit: int) -> None:
        self._stream, self._unit = stream, unit

    def before(self, layer: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        self._stream.need(self._unit)
        if not torch.is_grad_enabled():
            return inputs
        return (_AfterBackward.apply(inputs[0], self._stream, self._unit), *inputs[1:])  # type: ignore[no-untyped-call]

    def after(self, layer: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return output
        marked: Tensor = _BeforeBackward.apply(output, self._stream, self._unit)  # type: ignore[no-untyped-call]
        return marked


class _AfterBackward(torch.autograd.Function):
    """Identity on a layer's input: its backward runs when the layer's own has ended."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, stream: UnitStream, unit: int) -> Tensor:
        ctx.stream, ctx.unit = stream, unit
        return hidden.view_as(hidden)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        ctx.stream.release(ctx.unit)
        return grad_outputs[0], None, None


class _BeforeBackward(torch.autograd.Function):
    """Identity on a layer's output: its backward runs when the layer's own is about to start."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, stream: UnitStream, unit: int) -> Tensor:
        ctx.stream, ctx.unit = stream, unit
        return hidden.view_as(hidden)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        ctx.stream.need(ctx.unit)
        ctx.stream.claim(ctx.unit)
        return grad_outputs[0], None, None
