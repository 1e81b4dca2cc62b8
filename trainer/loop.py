"""The training loop: it reads like the recipe, and calls objects for everything else."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist

from .checkpoint.keeper import CheckpointKeeper
from .config import JobConfig
from .data.samples import Sampler
from .engine import Engine, learning_rate
from .errors import SavedAndExit, StopError
from .flops import model_flops_per_token
from .mesh import Mesh
from .requests import ExitRequests
from .schedule import Schedule
from .telemetry import EventLog, PhaseMarker


@dataclass(frozen=True)
class LoopParts:
    """What the loop works with; built by trainer.job."""

    job: JobConfig
    mesh: Mesh
    engine: Engine
    schedule: Schedule
    train_sampler: Sampler
    validation_sampler: Sampler | None
    checkpoints: CheckpointKeeper
    events: EventLog
    marker: PhaseMarker
    requests: ExitRequests


@dataclass(frozen=True)
class _Facts:
    """What all ranks agreed on after a step."""

    loss: float
    exit_requested: bool


def run_training(parts: LoopParts, first_step: int) -> int:
    """Train from `first_step` (steps done so far) to the planned number of steps; return the steps done.

    Raises:
        SavedAndExit: after a save on request.
        StopError: if the loss is no number.
    """
    train = parts.job.train
    step = first_step
    while step < train.steps:
        began = time.perf_counter()
        facts = _one_step(parts, step, began)
        step += 1
        if facts.exit_requested:
            parts.checkpoints.save(step, wait=True)
            raise SavedAndExit(f"saved step {step} on request")
        if train.evaluation.interval and step % train.evaluation.interval == 0:
            evaluate(parts, step)
        if train.checkpoint.interval and step % train.checkpoint.interval == 0 and step < train.steps:
            parts.checkpoints.save(step, wait=False)
    if step > first_step:
        if not train.evaluation.interval or step % train.evaluation.interval:
            evaluate(parts, step)
        parts.checkpoints.save(step, wait=True)
    return step


def _one_step(parts: LoopParts, step: int, began: float) -> _Facts:
    losses = parts.schedule.train(parts.train_sampler, step)
    rate = learning_rate(parts.job.train.optimizer, step)
    facts = _agree(parts, losses)
    if not math.isfinite(facts.loss):
        raise StopError(f"the loss of step {step + 1} is {facts.loss}")
    parts.marker.set("optimizer_step", step)
    parts.checkpoints.before_step()
    report = parts.engine.step(rate)
    seconds = time.perf_counter() - began
    parts.events.write("step", **_step_record(parts, step + 1, facts.loss, report.grad_norm, rate, seconds))
    return facts


def _agree(parts: LoopParts, losses: list[torch.Tensor]) -> _Facts:
    """Share the mean loss of the global batch and any request to exit; one small all-reduce of the world.

    Only the last stage has losses, and its tensor ranks have the same ones: tensor rank 0 speaks for them.
    """
    mesh = parts.mesh
    facts = torch.zeros(3, dtype=torch.float32, device=mesh.device)
    if losses and mesh.where.tp_rank == 0:
        facts[0] = torch.stack([loss.float() for loss in losses]).sum()
        facts[1] = float(len(losses))
    facts[2] = float(parts.requests.pending())
    dist.all_reduce(facts)
    total, count, requested = facts.tolist()
    return _Facts(total / count, requested > 0)


def _step_record(
    parts: LoopParts, step: int, loss: float, grad_norm: float, rate: float, seconds: float
) -> dict[str, object]:
    sizes, model = parts.job.plan.sizes, parts.job.plan.model
    tokens_per_second = sizes.global_batch_size * model.sequence_length / seconds
    per_gpu = tokens_per_second / sizes.world_size
    peak = parts.job.train.telemetry.peak_flops_per_second
    return {
        "step": step,
        "loss": loss,
        "grad_norm": grad_norm if math.isfinite(grad_norm) else None,
        "lr": rate,
        "tokens_per_second": tokens_per_second,
        "tokens_per_second_per_gpu": per_gpu,
        "mfu": None if peak is None else per_gpu * model_flops_per_token(model) / peak,
        "peak_memory_gib": _peak_memory_gib(parts.mesh.device),
        "step_time_s": seconds,
    }


def evaluate(parts: LoopParts, step: int) -> float | None:
    """Return the mean loss over the fixed validation batches, and write it as an event; None without a split."""
    sampler = parts.validation_sampler
    if sampler is None:
        return None
    began = time.perf_counter()
    parts.marker.set("evaluate", step)
    parts.engine.train(False)
    losses: list[torch.Tensor] = []
    for batch in range(parts.job.train.evaluation.batches):
        losses += parts.schedule.evaluate(sampler, batch)
    parts.engine.train(True)
    loss = _agree(parts, losses).loss
    parts.events.write("evaluation", step=step, validation_loss=loss, seconds=time.perf_counter() - began)
    return loss


def _peak_memory_gib(device: torch.device) -> float:
    """Return the highest memory use of this process: allocated on the GPU, resident on the CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
