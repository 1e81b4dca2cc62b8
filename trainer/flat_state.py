"""The tensors behind a FlatLayout: weights, gradients and AdamW state, and the parameters as views of them.

The state is the rank's own shard. Whole weights and gradients of a bucket are resident (ZeRO 0 and 1), or lie in one
of a few buffers that buckets take turns in (ZeRO 2: gradients, ZeRO 3: weights too; see trainer.flat_stream).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from .flat_adamw import merge_halves, split_halves
from .flat_offload import Home, visit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from .flat_layout import Bucket, FlatLayout

TURNS = 2
"""Buffers that units take turns in: one in use, one being filled or emptied."""


@dataclass(frozen=True)
class Streaming:
    """Which whole tensors of units are not resident."""

    gradients: bool = False
    weights: bool = False


RESIDENT = Streaming()
ON_DEVICE = Home()


class FlatState:
    """Buffers of one rank. With one shard, a resident whole tensor is the shard itself, not a copy.

    fp32 master weights are the weights themselves (fp32), the weights and an int16 rest (bfloat16, see
    trainer.flat_adamw), or a tensor of their own (float16).
    """

    def __init__(
        self,
        layout: FlatLayout,
        parameters: Mapping[str, torch.nn.Parameter],
        shard: int,
        streaming: Streaming,
        values: Callable[[str], torch.Tensor],
        home: Home = ON_DEVICE,
    ) -> None:
        some = next(iter(parameters.values()))
        self.layout, self.shard, self.dtype, self.device = layout, shard, some.dtype, some.device
        self.shard_weights = self._zeros(layout.shard_numel, some.dtype)
        self.shard_grads = self._zeros(layout.shard_numel, torch.float32)
        self._home = home
        self.exp_avg = self._state("exp_avg", torch.float32)
        self.exp_avg_sq = self._state("exp_avg_sq", torch.float32)
        self.rest = self._state("rest", torch.int16) if some.dtype == torch.bfloat16 else None
        self.wide = self._state("wide", torch.float32) if some.dtype == torch.float16 else None
        self.whole_weights = self._whole(self.shard_weights, streaming.weights)
        self.whole_grads = self._whole(self.shard_grads, streaming.gradients)
        self._adopt(parameters, streaming.weights, values)

    def _zeros(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(numel, dtype=dtype, device=self.device)

    def _state(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        return self._home.zeros(name, self.layout.shard_numel, dtype, self.device)

    def visit(self, start: int, numel: int) -> Iterator[tuple[slice, dict[str, torch.Tensor]]]:
        """Yield this shard's optimizer states in pieces, on the device wherever they live; see flat_offload.visit."""
        states = {"exp_avg": self.exp_avg, "exp_avg_sq": self.exp_avg_sq, "rest": self.rest, "wide": self.wide}
        present = {name: state for name, state in states.items() if state is not None}
        return visit(present, start, numel, self.device, self._home)

    def _whole(self, own: torch.Tensor, streamed: bool) -> tuple[torch.Tensor, ...]:
        """Return each bucket's whole tensor."""
        units = [bucket for bucket in self.layout.buckets if bucket.unit and streamed]
        longest = max((bucket.numel for bucket in units), default=0)
        turns = [self._zeros(longest, own.dtype) for _ in range(TURNS if units else 0)]
        whole: list[torch.Tensor] = []
        for bucket in self.layout.buckets:
            if bucket.unit and streamed:
                whole.append(turns[units.index(bucket) % TURNS][: bucket.numel])
            elif self.layout.shards == 1:
                whole.append(self.shard_bucket(own, bucket))
            else:
                whole.append(self._zeros(bucket.numel, own.dtype))
        return tuple(whole)

    def parameter_views(self, whole: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return parameter-shaped views of the buckets' whole tensors, by parameter name."""
        return {
            slot.spec.name: tensor[slot.start - bucket.start : slot.end - bucket.start].view(slot.spec.shape)
            for bucket, tensor in zip(self.layout.buckets, whole)
            for slot in bucket.slots
        }

    @torch.no_grad()
    def _adopt(
        self,
        parameters: Mapping[str, torch.nn.Parameter],
        streamed: bool,
        values: Callable[[str], torch.Tensor],
    ) -> None:
        """Make each parameter a view of its bucket and give it its values; one parameter is in memory beside them.

        `data` keeps the version counters of both apart.
        """
        pieces = {piece.name: piece for piece in self.layout.fragments(self.shard)}
        views = self.parameter_views(self.whole_weights)
        for slot in self.layout.slots():
            name = slot.spec.name
            resident, piece = not (slot.spec.unit and streamed), pieces.get(name)
            if resident or piece is not None:
                whole = values(name).to(self.dtype)
                if resident:
                    views[name].copy_(whole)
                if piece is not None:
                    part = whole.reshape(-1)[piece.parameter_start : piece.parameter_start + piece.numel]
                    self._set_master(piece.shard_start, part.to(self.exp_avg.device).float())
                del whole
            parameters[name].data = views[name]

    @torch.no_grad()
    def _set_master(self, start: int, values: torch.Tensor) -> None:
        piece = slice(start, start + values.numel())
        if self.rest is not None:
            upper, rest = split_halves(values)
            self.shard_weights[piece].copy_(upper)
            self.rest[piece].copy_(rest)
            return
        self.shard_weights[piece].copy_(values)
        if self.wide is not None:
            self.wide[piece].copy_(values)

    def set_master(self, values: torch.Tensor) -> None:
        """Replace this shard's fp32 weights; the weights of other shards must be gathered before the next forward."""
        self._set_master(0, values)

    @torch.no_grad()
    def master(self) -> torch.Tensor:
        """Return this shard's fp32 weights: a new tensor where they are kept in halves, else the state itself."""
        if self.rest is not None:
            return merge_halves(self.shard_weights.to(self.rest.device), self.rest)
        return self.shard_weights if self.wide is None else self.wide

    def shard_bucket(self, flat: torch.Tensor, bucket: Bucket) -> torch.Tensor:
        """Return this rank's part of a bucket, in a shard tensor."""
        start = bucket.start // self.layout.shards
        return flat[start : start + bucket.numel // self.layout.shards]

    def idle_gradients(self) -> torch.Tensor | None:
        """Return this rank's gradients of units: unread until the first backward pass of a step reaches a layer.

        None where the rank has no units.
        """
        first = self.layout.shard_kinds()[0]
        return self.shard_grads[first.start : first.start + first.numel] if first.in_units else None

    def gradients(self) -> list[torch.Tensor]:
        """Return every tensor that holds gradients; buckets may be views of the first."""
        return [self.shard_grads, *self.whole_grads]

    def clear(self) -> None:
        """Set all gradients to zero."""
        for tensor in self.gradients():
            tensor.zero_()
