"""The programs that a bench compares, each as an object with `step(index) -> loss`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from ..engine import Engine
from ..flat_engine import Acceleration, FlatEngine, compile_layers
from ..mesh import Mesh
from ..model.build import build_stages
from ..model.partition import stage_parameters
from .case import CLIP_GRAD, LEARNING_RATE, BenchCase, job_of
from .peer import PeerGpt, peer_name
from .synthetic import Batches


@torch.no_grad()
def load_peer(model: PeerGpt, weights: Mapping[str, Tensor]) -> None:
    """Give the peer the trainer's initial weights."""
    own = dict(model.named_parameters())
    for name, value in weights.items():
        own.pop(peer_name(name)).copy_(value)
    if own:
        raise ValueError(f"no initial weight for {', '.join(own)}")


def peer_optimizer(model: nn.Module, device: torch.device) -> torch.optim.AdamW:
    """Return AdamW with the trainer's settings, fused on a GPU; weight decay on matrices only."""
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=(0.9, 0.95), eps=1e-8, fused=device.type == "cuda")


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of all parameters."""
    for group in optimizer.param_groups:
        group["lr"] = rate


class PeerProgram:
    """Plain PyTorch on one device."""

    def __init__(self, case: BenchCase, batches: Batches, weights: Mapping[str, Tensor], compiled: bool) -> None:
        self._case, self._batches = case, batches
        device = batches.device
        with device:
            self._model = PeerGpt(case.model)
        load_peer(self._model, weights)
        self._optimizer = peer_optimizer(self._model, device)
        self._run: Callable[[Tensor, Tensor], Tensor] = torch.compile(self._model) if compiled else self._model

    def step(self, index: int) -> Tensor:
        """Train one step; return its mean loss."""
        total = torch.zeros((), device=self._batches.device)
        for micro in range(self._case.num_microbatches):
            tokens, labels = self._batches.micro_batch(index, micro)
            with torch.autocast(self._batches.device.type, torch.bfloat16, enabled=self._case.dtype == "bfloat16"):
                loss = self._run(tokens, labels) / self._case.num_microbatches
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), CLIP_GRAD)
        set_rate(self._optimizer, self._case.rate(index))
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return total


class TrainerProgram:
    """The trainer's own model, an engine and its micro-batches, without its data and telemetry; one pipeline stage."""

    def __init__(self, case: BenchCase, batches: Batches, engine: Engine) -> None:
        self._case, self._batches, self.engine = case, batches, engine

    def _micro_batch(self, tokens: Tensor, labels: Tensor) -> Tensor:
        if isinstance(self.engine, FlatEngine) and self.engine.micro_batch is not None:
            return self.engine.micro_batch(tokens, labels)
        loss = self.engine.forward(0, tokens, labels)
        self.engine.backward(loss / self._case.num_microbatches)
        return loss.detach()

    def step(self, index: int) -> Tensor:
        """Train one step; return its mean loss."""
        total = torch.zeros((), device=self._batches.device)
        for micro in range(self._case.num_microbatches):
            total += self._micro_batch(*self._batches.micro_batch(index, micro))
        self.engine.step(self._case.rate(index))
        return total / self._case.num_microbatches


def flat_program(case: BenchCase, batches: Batches, mesh: Mesh, acceleration: Acceleration | None) -> TrainerProgram:
    """Return the trainer behind its flat engine; without an acceleration, with the one that it chooses itself."""
    job = job_of(case, "gloo")
    stages = build_stages(job, mesh)
    infos = list(stage_parameters(stages, case.model, mesh.where.tp_rank, case.tensor_parallel_size))
    return TrainerProgram(case, batches, FlatEngine(job, mesh, stages, infos, acceleration))


def deepspeed_program(case: BenchCase, batches: Batches, mesh: Mesh, compiled: bool) -> TrainerProgram:
    """Return the trainer behind DeepSpeed's engine."""
    from ..deepspeed_engine import DeepSpeedZero

    job = job_of(case, "nccl" if batches.device.type == "cuda" else "gloo")
    stages = build_stages(job, mesh)
    infos = list(stage_parameters(stages, case.model, mesh.where.tp_rank, case.tensor_parallel_size))
    if compiled:
        for stage in stages:
            compile_layers(stage)
    return TrainerProgram(case, batches, DeepSpeedZero(job, mesh, stages, infos))
