"""The tensors behind a FlatLayout: weights, gradients and AdamW state, and the parameters as views of them.

Weights and gradients are whole on every rank (ZeRO 0 and 1); the optimizer state is the rank's own shard.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .flat_adamw import merge_halves, split_halves

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .flat_layout import Bucket, FlatLayout, Fragment


class FlatState:
    """Buffers of one rank. With one shard, a shard tensor is the whole tensor itself, not a copy.

    fp32 master weights are the weights themselves (fp32), the weights and an int16 rest (bfloat16, see
    trainer.flat_adamw), or a tensor of their own (float16).
    """

    def __init__(
        self, layout: FlatLayout, parameters: Mapping[str, torch.nn.Parameter], shard: int, dtype: torch.dtype
    ) -> None:
        device = next(iter(parameters.values())).device
        self.layout = layout
        self.shard = shard
        self.weights = torch.zeros(layout.numel, dtype=dtype, device=device)
        self.main_grads = torch.zeros(layout.numel, dtype=torch.float32, device=device)
        self.exp_avg = torch.zeros(layout.shard_numel, dtype=torch.float32, device=device)
        self.exp_avg_sq = torch.zeros_like(self.exp_avg)
        self.shard_weights = self._shard_of(self.weights)
        self.shard_grads = self._shard_of(self.main_grads)
        self.rest = torch.zeros_like(self.exp_avg, dtype=torch.int16) if dtype == torch.bfloat16 else None
        self.wide = torch.zeros_like(self.exp_avg) if dtype == torch.float16 else None
        self._adopt(parameters)

    def _shard_of(self, whole: torch.Tensor) -> torch.Tensor:
        if self.layout.shards == 1:
            return whole
        return torch.zeros(self.layout.shard_numel, dtype=whole.dtype, device=whole.device)

    def view(self, flat: torch.Tensor, start: int, shape: tuple[int, ...]) -> torch.Tensor:
        """Return a parameter-shaped view of a whole flat tensor."""
        return flat[start : start + torch.Size(shape).numel()].view(shape)

    @torch.no_grad()
    def _adopt(self, parameters: Mapping[str, torch.nn.Parameter]) -> None:
        """Copy the parameters in, keep what their type drops, and make each a view of the buffer."""
        owned: dict[str, list[Fragment]] = {}
        for piece in self.layout.fragments(self.shard):
            owned.setdefault(piece.name, []).append(piece)
        for slot in self.layout.slots():
            parameter = parameters[slot.spec.name]
            original = parameter.detach().reshape(-1)
            target = self.view(self.weights, slot.start, slot.spec.shape)
            target.view(-1).copy_(original)
            parameter.data = target
            for piece in owned.get(slot.spec.name, []):
                values = original[piece.parameter_start : piece.parameter_start + piece.numel]
                self._set_master(piece.shard_start, values.float())

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
            return merge_halves(self.shard_weights, self.rest)
        return self.shard_weights if self.wide is None else self.wide

    def whole_bucket(self, flat: torch.Tensor, bucket: Bucket) -> torch.Tensor:
        """Return a bucket of a whole tensor."""
        return flat[bucket.start : bucket.start + bucket.numel]

    def shard_bucket(self, flat: torch.Tensor, bucket: Bucket) -> torch.Tensor:
        """Return this rank's part of a bucket, in a shard tensor."""
        start = bucket.start // self.layout.shards
        return flat[start : start + bucket.numel // self.layout.shards]
