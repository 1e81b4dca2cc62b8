"""The training loop: it reads like the recipe, and calls objects for everything else."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from .checkpoint.keeper import CheckpointKeeper
from .config import JobConfig
from .data.samples import Sampler
from .engine import Engine, learning_rate
from .errors import SavedAndExit, StopError
from .exporters import Exporter
from .flops import model_flops_per_token
from .guard import Action, Judgement, LossGuard
from .mesh import Mesh
from .nonfinite import ranks_with_damaged_weights
from .requests import ExitRequests
from .schedule import Schedule
from .telemetry import EventLog, PhaseMarker
from .waiting import OwnTime

MOST_RANKS_TOLD = 4096  # a step event names the own seconds of each rank up to this many: about 13 bytes a rank


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
    guard: LossGuard
    exporters: Sequence[Exporter] = ()
    own_time: OwnTime = field(default_factory=lambda: OwnTime(torch.device("cpu")))


@dataclass(frozen=True)
class _Facts:
    """What all ranks agreed on after a step."""

    loss: float
    exit_requested: bool
    rank_seconds: dict[str, float] | None


def run_training(parts: LoopParts, first_step: int) -> int:
    """Train from `first_step` (steps done so far) to the planned number of steps; return the steps done.

    Raises:
        SavedAndExit: after a save on request.
        StopError: if the loss is no number.
    """
    train = parts.job.train
    step = first_step
    for exporter in parts.exporters:
        exporter.begin(first_step)
    while step < train.steps:
        facts, judgement = _one_step(parts, step)
        if judgement.action is Action.ROLL_BACK:
            step = _roll_back(parts, step, judgement)
            continue
        step += 1
        if facts.exit_requested:
            parts.checkpoints.save(step, wait=True)
            raise SavedAndExit(f"saved step {step} on request")
        if train.evaluation.interval and step % train.evaluation.interval == 0:
            evaluate(parts, step)
        if train.checkpoint.interval and step % train.checkpoint.interval == 0 and step < train.steps:
            parts.checkpoints.save(step, wait=False)
        parts.own_time.restart()
    if step > first_step:
        if not train.evaluation.interval or step % train.evaluation.interval:
            evaluate(parts, step)
        parts.checkpoints.save(step, wait=True)
    return step


def _one_step(parts: LoopParts, step: int) -> tuple[_Facts, Judgement]:
    """Run one step; return what the ranks agreed on, and what the guard made of it."""
    began = time.perf_counter()
    losses = parts.schedule.train(parts.train_sampler, step)
    rate = learning_rate(parts.job.train.optimizer, step)
    facts = _agree(parts, losses)
    judgement = parts.guard.judge(step + 1, facts.loss)
    norm = float("nan")
    if judgement.action is Action.APPLY:
        parts.marker.set("optimizer_step", step)
        parts.checkpoints.before_step()
        report = parts.engine.step(rate)
        norm = report.grad_norm
        judgement = parts.guard.judge_norm(step + 1, norm, applied=not report.skipped)
    else:
        parts.engine.skip()
    _tell(parts, step + 1, judgement)
    seconds = time.perf_counter() - began
    record = _step_record(parts, step + 1, facts.loss, norm, rate, seconds)
    sections = {} if facts.rank_seconds is None else {"rank_seconds": facts.rank_seconds}
    parts.events.write("step", **record, **sections)
    for exporter in parts.exporters:
        exporter.step(record)
    return facts, judgement


def _tell(parts: LoopParts, step: int, judgement: Judgement) -> None:
    """Say what the guard made of a step, and which ranks' weights are the cause, where they are; maybe stop."""
    if judgement.action is Action.APPLY:
        return
    ranks = ranks_with_damaged_weights(parts.schedule.stages, parts.mesh.device)
    reason = judgement.reason
    if ranks:
        reason += f"; of all ranks only {', '.join(map(str, ranks))} held weights that are no numbers"
    parts.events.write("guard", step=step, action=judgement.action.value, reason=reason)
    if judgement.action is Action.STOP:
        raise StopError(reason, ranks)


def _roll_back(parts: LoopParts, step: int, judgement: Judgement) -> int:
    """Load the newest whole checkpoint and move the data position past the batch of `step`; return the steps done."""
    parts.checkpoints.settle()
    chosen = parts.checkpoints.choose()
    if chosen is None:
        raise StopError(f"{judgement.reason}; there is no checkpoint to roll back to")
    done = parts.checkpoints.load(chosen)
    parts.checkpoints.skip_samples((step + 1 - done) * parts.job.plan.sizes.global_batch_size)
    parts.train_sampler.offset = parts.checkpoints.sample_offset
    parts.guard.rolled_back()
    return done


def _agree(parts: LoopParts, losses: list[torch.Tensor]) -> _Facts:
    """Share the mean loss of the global batch, requests to exit and each rank's own seconds; one small all-reduce.

    Only the last stage has losses, and its tensor ranks have the same ones: tensor rank 0 speaks for them.
    """
    mesh, own = parts.mesh, parts.own_time.lap()
    told = own is not None and mesh.world_size <= MOST_RANKS_TOLD
    facts = torch.zeros(3 + (mesh.world_size if told else 0), dtype=torch.float32, device=mesh.device)
    if losses and mesh.where.tp_rank == 0:
        facts[0] = torch.stack([loss.float() for loss in losses]).sum()
        facts[1] = float(len(losses))
    facts[2] = float(parts.requests.pending())
    if own is not None and told:
        facts[3 + mesh.rank] = own
    dist.all_reduce(facts)
    parts.own_time.restart()
    total, count, requested, *seconds = facts.tolist()
    rank_seconds = {str(rank): round(value, 4) for rank, value in enumerate(seconds)} if told else None
    return _Facts(total / count, requested > 0, rank_seconds)


def _step_record(
    parts: LoopParts, step: int, loss: float, grad_norm: float, rate: float, seconds: float
) -> dict[str, object]:
    sizes, model = parts.job.plan.sizes, parts.job.plan.model
    tokens_per_second = sizes.global_batch_size * model.sequence_length / seconds
    per_gpu = tokens_per_second / sizes.world_size
    peak = parts.job.train.telemetry.peak_flops_per_second
    return {
        "step": step,
        "loss": loss if math.isfinite(loss) else None,
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
    for exporter in parts.exporters:
        exporter.evaluation(step, loss)
    return loss


def _peak_memory_gib(device: torch.device) -> float:
    """Return the highest memory use of this process: allocated on the GPU, resident on the CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
