"""The plain-PyTorch peer on several GPUs: DistributedDataParallel, or FSDP2, each as its documentation advises."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from .case import CLIP_GRAD, BenchCase
from .peer import PeerGpt
from .programs import load_peer, peer_optimizer, set_rate
from .synthetic import Batches


class DdpPeer:
    """fp32 weights, bfloat16 autocast, whole model compiled, gradients reduced while the last backward pass runs."""

    def __init__(self, case: BenchCase, batches: Batches, weights: Mapping[str, Tensor]) -> None:
        self._case, self._batches = case, batches
        with batches.device:
            model = PeerGpt(case.model)
        load_peer(model, weights)
        self._optimizer = peer_optimizer(model, batches.device)
        ids = [batches.device.index] if batches.device.type == "cuda" else None
        self._ddp = DistributedDataParallel(model, device_ids=ids, gradient_as_bucket_view=True)
        self._run = torch.compile(self._ddp) if batches.device.type == "cuda" else self._ddp

    def step(self, index: int) -> Tensor:
        """Train one step; return the mean loss of this rank's samples."""
        count = self._case.num_microbatches
        total = torch.zeros((), device=self._batches.device)
        for micro in range(count):
            tokens, labels = self._batches.micro_batch(index, micro)
            with self._ddp.no_sync() if micro < count - 1 else contextlib.nullcontext():
                with torch.autocast(self._batches.device.type, torch.bfloat16, enabled=self._case.dtype == "bfloat16"):
                    loss = self._run(tokens, labels) / count
                loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(self._ddp.parameters(), CLIP_GRAD)
        set_rate(self._optimizer, self._case.rate(index))
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return total


class FsdpPeer:
    """FSDP2 per layer with bfloat16 parameters and fp32 reduction, layers compiled.

    `reshard` False keeps the gathered weights from forward to backward pass, which is faster where they fit.
    """

    def __init__(self, case: BenchCase, batches: Batches, weights: Mapping[str, Tensor], reshard: bool) -> None:
        self._case, self._batches = case, batches
        with batches.device:
            model = PeerGpt(case.model)
        load_peer(model, weights)
        short = torch.bfloat16 if case.dtype == "bfloat16" else torch.float32
        # Inputs stay as they are: rotary tables must remain fp32.
        policy = MixedPrecisionPolicy(param_dtype=short, reduce_dtype=torch.float32, cast_forward_inputs=False)
        for layer in model.layers:
            if batches.device.type == "cuda":
                layer.compile()
            fully_shard(layer, mp_policy=policy, reshard_after_forward=reshard)
        self._model: Any = fully_shard(model, mp_policy=policy, reshard_after_forward=reshard)
        self._optimizer = peer_optimizer(model, batches.device)

    def step(self, index: int) -> Tensor:
        """Train one step; return the mean loss of this rank's samples."""
        count = self._case.num_microbatches
        total = torch.zeros((), device=self._batches.device)
        for micro in range(count):
            tokens, labels = self._batches.micro_batch(index, micro)
            self._model.set_requires_gradient_sync(micro == count - 1)
            loss = self._model(tokens, labels) / count
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), CLIP_GRAD)
        set_rate(self._optimizer, self._case.rate(index))
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return total
