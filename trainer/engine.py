"""What owns gradients, clipping and the optimizer step; the only place where framework vocabulary is translated.

Two engines share one interface: DeepSpeed (ZeRO 1-3) and a flat buffer (ZeRO 0 and 1), which a test proves equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from .config import JobConfig, OptimizerConfig, runs_flat
from .mesh import Mesh
from .model.init import LocalTensor, fill
from .model.partition import ParameterInfo, stage_parameters
from .model.stage import Stage

STATE_KINDS = ("master", "exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class StepReport:
    """What an optimizer step did: norm of the gradient before clipping, and whether weights were left alone."""

    grad_norm: float
    skipped: bool


@dataclass(frozen=True)
class Fragment:
    """A run of a local parameter that this rank owns: elements [start, start + n) of the flattened local tensor.

    `states` maps `master`, `exp_avg` and `exp_avg_sq` to flat float32 views; writing to them changes the engine.
    """

    info: ParameterInfo
    start: int
    states: Mapping[str, Tensor]


class Engine(Protocol):
    """One per rank. All methods are collective over the groups that they touch: every rank calls them in step."""

    name: str

    def forward(self, chunk: int, tokens: Tensor, labels: Tensor | None) -> Tensor:
        """Run a model chunk."""

    @property
    def micro_batch(self) -> Callable[[Tensor, Tensor], Tensor] | None:
        """Forward and backward of the whole model in one call that returns the loss, or None if there is no such thing.

        Its gradients are divided by the number of micro-batches. Only where the model has one stage.
        """

    def backward(self, scalar: Tensor) -> None:
        """Back-propagate from a scalar, already divided by the number of micro-batches."""

    def step(self, learning_rate: float) -> StepReport:
        """Reduce, clip and apply the accumulated gradients."""

    def train(self, training: bool) -> None:
        """Switch dropout on or off."""

    def fragments(self) -> Iterator[Fragment]:
        """Yield all state that this rank owns."""

    def counters(self) -> dict[str, float]:
        """Return what a checkpoint needs beside the fragments: optimizer steps taken, loss scale."""

    def refresh(self, counters: Mapping[str, float]) -> None:
        """Take fragments as written by a loader: recast working weights, set the counters."""

    def skip(self) -> None:
        """Drop the accumulated gradients."""


@dataclass(frozen=True)
class Filling:
    """All hollow parameters of a rank, frozen ones included, and where their values come from."""

    infos: Sequence[ParameterInfo]
    weights: LocalTensor


class StageList(nn.Module):
    """This rank's chunks as one module, so that one engine owns them all."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages)

    def forward(self, chunk: int, tokens: Tensor, labels: Tensor | None) -> Tensor:
        output: Tensor = self.stages[chunk](tokens, labels)
        return output


def is_flat(job: JobConfig) -> bool:
    """Tell whether the job runs on the flat buffer."""
    return runs_flat(job.plan.sizes.zero_stage, job.train.engine)


def partitions_while_building(job: JobConfig) -> bool:
    """Tell whether the engine puts hollow parameters where it wants them, so that no rank ever holds them whole."""
    return is_flat(job) or job.plan.sizes.zero_stage == 3


def build_engine(job: JobConfig, mesh: Mesh, stages: Sequence[Stage], weights: LocalTensor | None = None) -> Engine:
    """Return the engine of the plan: DeepSpeed, or the flat buffer where ZeRO 0 or `engine: flat` asks for it.

    Args:
        weights: values of parameters that are still hollow; only where `partitions_while_building`.
    """
    parameters = list(stage_parameters(stages, job.plan.model, mesh.where.tp_rank, mesh.sizes.tensor_parallel_size))
    infos = [info for info in parameters if info.parameter.requires_grad]
    if is_flat(job):
        from .flat_engine import FlatEngine

        if weights is not None:
            fill([info for info in parameters if not info.parameter.requires_grad], weights)
        return FlatEngine(job, mesh, stages, infos, weights=weights)
    from .deepspeed_engine import DeepSpeedZero

    return DeepSpeedZero(job, mesh, stages, infos, None if weights is None else Filling(parameters, weights))


def decays(info: ParameterInfo) -> bool:
    """Tell whether weight decay applies: to matrices, not to norms and biases."""
    return len(info.global_shape) > 1


def learning_rate(config: OptimizerConfig, step: int) -> float:
    """Return the learning rate of an optimizer step, counted from zero; a pure function, so it needs no checkpoint."""
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    if config.schedule == "constant":
        return config.learning_rate
    progress = min(1.0, (step - config.warmup_steps) / (config.decay_steps - config.warmup_steps))
    shape = 0.5 * (1.0 + math.cos(math.pi * progress)) if config.schedule == "cosine" else 1.0 - progress
    return config.minimum_learning_rate + (config.learning_rate - config.minimum_learning_rate) * shape


def sum_tied_gradients(stages: Sequence[Stage], pipeline_size: int) -> None:
    """Add the gradients of the two copies of a tied embedding, on first and last pipeline stage."""
    if pipeline_size == 1:
        return
    from megatron.core import parallel_state

    for stage in stages:
        weight = stage.shared_embedding_weight()
        if weight is not None:
            gradient = weight.grad
            assert gradient is not None, "the schedule has run"
            torch.distributed.all_reduce(gradient, group=parallel_state.get_embedding_group())
