"""One model in every layout of a few GPUs, beside DDP and FSDP2: losses, speed and memory in one table.

Run under torchrun; all layouts run in the same processes, so that imports and NCCL's start are paid once.
"""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from megatron.core.pipeline_parallel import schedules
from torch import Tensor

from ..config import ModelConfig
from ..data.samples import Batch
from ..engine import build_engine
from ..flops import model_flops_per_token
from ..mesh import Mesh, build_mesh, seed_mesh
from ..model.build import build_stages
from ..schedule import Schedule
from ..telemetry import PhaseMarker
from .case import TIMEOUT_S, BenchCase, job_of
from .compare import Program, forget, initial_weights, versions
from .measure import Measurement, measure
from .spread_peer import DdpPeer, FsdpPeer
from .synthetic import Batches, SyntheticTokens

PEERS = ("ddp", "fsdp2", "fsdp2-keep")


@dataclass(frozen=True)
class LayoutRow:
    """One layout or peer; memory is the largest of all ranks, in GiB."""

    program: str
    case: BenchCase
    step_time_s: float
    tokens_per_second: float
    tflops_per_gpu: float
    max_allocated_gib: float | None
    max_reserved_gib: float | None
    device_used_gib: float | None
    losses: tuple[float, ...]

    def mfu(self, peak_flops_per_second: float | None) -> float | None:
        """Return model FLOPs utilization, or None where no peak is known."""
        return None if peak_flops_per_second is None else self.tflops_per_gpu * 1e12 / peak_flops_per_second

    def line(self, peak_flops_per_second: float | None = None) -> str:
        """Return one line for people."""
        case = self.case
        share = self.mfu(peak_flops_per_second)
        used = "" if share is None else f"MFU {share:.1%} "
        name = f"tp{case.tensor_parallel_size} pp{case.pipeline_parallel_size} dp{case.data_parallel_size}"
        extra = f"vp{case.virtual_pipeline_size} z{case.zero_stage} {'sp' if case.sequence_parallel else '--'}"
        extra += "" if case.offload == "none" else f" {case.offload}"
        memory = (
            "" if self.max_allocated_gib is None else f"{self.max_allocated_gib:7.2f} {self.device_used_gib:7.2f} GiB"
        )
        return (
            f"{self.program:18s} {name} {extra} mb{case.micro_batch_size} ga{case.num_microbatches:<3d} "
            f"{self.step_time_s * 1e3:9.1f} ms {self.tokens_per_second:10.0f} tok/s {self.tflops_per_gpu:7.1f} TFLOP/s "
            f"{used}{memory} losses {self.losses[0]:.4f} .. {self.losses[-1]:.4f}"
        )


@dataclass(frozen=True)
class _SyntheticSampler:
    """What trainer.schedule asks of a sampler."""

    batches: Batches

    def micro_batch(self, step: int, index: int) -> Batch:
        tokens, labels = self.batches.micro_batch(step, index)
        return Batch(np.asarray(tokens.cpu()), np.asarray(labels.cpu()))


class LayoutProgram:
    """The trainer with Megatron's schedule in any layout."""

    def __init__(self, case: BenchCase, batches: Batches, mesh: Mesh, out: Path) -> None:
        job = job_of(case, str(dist.get_backend()))
        self._case = case
        self._stages = build_stages(job, mesh)
        self._engine = build_engine(job, mesh, self._stages)
        marker = PhaseMarker(out / "phase" / f"{mesh.rank}.json", mesh.rank, "bench")
        self._schedule = Schedule(job, mesh, self._engine, self._stages, marker)
        # On the CPU: the schedule moves each micro-batch itself.
        self._sampler: Any = _SyntheticSampler(replace(batches, device=torch.device("cpu")))
        self._device, self._counts = mesh.device, mesh.where.tp_rank == 0

    def step(self, index: int) -> Tensor:
        """Train one step; return this rank's share of the mean loss, zero on ranks that have none."""
        losses = self._schedule.train(self._sampler, index)
        self._engine.step(self._case.rate(index))
        if not losses or not self._counts:
            return torch.zeros((), device=self._device)
        return torch.stack([loss.detach().float() for loss in losses]).mean()


def layouts_of(model: ModelConfig, world: int, micro_batch: int, global_batch: int) -> Iterator[tuple[str, BenchCase]]:
    """Yield the layouts that a world of 2, 4 or 8 ranks allows, then the peers."""

    def case(tp: int, pp: int, **changes: Any) -> BenchCase:
        dp = world // (tp * pp)
        base = BenchCase(model.name, model, micro_batch, global_batch // (micro_batch * dp))
        return replace(base, tensor_parallel_size=tp, pipeline_parallel_size=pp, data_parallel_size=dp, **changes)

    yield "data", case(1, 1, zero_stage=1)
    yield "ddp", case(1, 1)
    yield "fsdp2-keep", case(1, 1)
    yield "data", case(1, 1, zero_stage=3)
    yield "tensor", case(world, 1, sequence_parallel=True)
    yield "pipeline", case(1, world)
    yield "data", case(1, 1, zero_stage=2)
    yield "tensor", case(world, 1)
    yield "virtual-pipeline", case(1, min(world, 4), virtual_pipeline_size=2)
    yield "fsdp2", case(1, 1)
    if world >= 4:
        yield "tensor+pipeline", case(world // 2, 2, sequence_parallel=True)
        yield "tensor+data", case(2, 1, sequence_parallel=True)
        yield "tensor+pipeline", case(world // 2, 2)
    if world >= 8:
        yield "3d", case(2, 2, sequence_parallel=True)
        yield "3d", case(2, 2)


def run_all(
    cases: Iterator[tuple[str, BenchCase]],
    out: Path,
    steps: tuple[int, int],
    tell: Callable[[str], None],
    deadline: float,
) -> list[LayoutRow]:
    """Run what fits before `deadline` (time.time()); a layout that fails on any rank is reported and left out."""
    rows: list[LayoutRow] = []
    for name, case in cases:
        if _late(deadline):
            tell(f"{name}: not run, no time left")
            continue
        began = time.time()
        row, problem = try_layout(name, case, out, steps)
        if row is None:
            tell(f"{name}: {problem}")
            continue
        rows.append(row)
        tell(f"{row.line()}  ({time.time() - began:.0f} s)")
        if dist.get_rank() == 0:
            with (out / "layouts.jsonl").open("a", encoding="utf-8") as stream:
                stream.write(json.dumps({**asdict(row), "versions": versions()}) + "\n")
    return rows


def try_layout(name: str, case: BenchCase, out: Path, steps: tuple[int, int]) -> tuple[LayoutRow | None, str]:
    """Measure one layout; where it fails, return what to say instead, and leave the traceback in a file."""
    row, problem = None, ""
    try:
        row = run_layout(name, case, out, steps)
    except Exception:  # noqa: BLE001 - one failing layout must not waste the machines
        problem = traceback.format_exc()
    forget()
    if row is None:
        (out / f"failed-{name}-{dist.get_rank()}.txt").write_text(problem, encoding="utf-8")
        problem = f"failed: {problem.strip().splitlines()[-1][:300]}"
    return row, problem


def offload_cost(row: LayoutRow, resident: LayoutRow, peak_flops_per_second: float | None) -> str:
    """Return the same job without offloading, and what offloading costs and saves."""
    speed = row.tokens_per_second / resident.tokens_per_second
    text = f"{resident.line(peak_flops_per_second)}\noffload {row.case.offload}: {speed:.3f} of the tokens/s without it"
    with_it, without = row.mfu(peak_flops_per_second), resident.mfu(peak_flops_per_second)
    if with_it is not None and without is not None:
        text += f", MFU {with_it:.1%} instead of {without:.1%}"
    if row.max_allocated_gib is not None and resident.max_allocated_gib is not None:
        text += f", {resident.max_allocated_gib - row.max_allocated_gib:.2f} GiB less allocated"
    return text


def _late(deadline: float) -> bool:
    late: list[Any] = [time.time() > deadline]
    dist.broadcast_object_list(late)
    return bool(late[0])


def run_layout(name: str, case: BenchCase, out: Path, steps: tuple[int, int]) -> LayoutRow:
    """Measure one layout, or one of the PEERS; every rank must call this. `steps`: untimed, timed."""
    mesh = _mesh(case)
    source = SyntheticTokens(case.model.vocab_size, case.model.sequence_length, case.seed)
    # The schedule's seam is global and would keep a finished program, and its memory, alive.
    seam = schedules.backward_step
    try:
        program = _program(name, case, Batches(source, case, mesh.where.dp_rank, mesh.device), mesh, out)
        shown = measure(program.step, *steps, mesh.device)
    finally:
        schedules.backward_step = seam
    return _row(name, case, shown, mesh)


def _program(name: str, case: BenchCase, batches: Batches, mesh: Mesh, out: Path) -> Program:
    if name not in PEERS:
        return LayoutProgram(case, batches, mesh, out)
    weights = dict(initial_weights(case, mesh))
    if name == "ddp":
        return DdpPeer(case, batches, weights)
    return FsdpPeer(case, batches, weights, reshard=name == "fsdp2")


def _mesh(case: BenchCase) -> Mesh:
    from megatron.core import parallel_state

    if parallel_state.is_initialized():
        parallel_state.destroy_model_parallel()
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
    backend = "nccl" if cuda else "gloo"
    mesh = build_mesh(job_of(case, backend).plan.sizes, dist.get_rank(), device, backend, TIMEOUT_S)
    seed_mesh(mesh, case.seed)
    return mesh


def _row(name: str, case: BenchCase, shown: Measurement, mesh: Mesh) -> LayoutRow:
    facts = mesh.gather((shown.losses, shown.max_allocated_gib, shown.max_reserved_gib, shown.device_used_gib))
    # Peers: every rank has a loss of its own samples; layouts: one tensor rank of the last stage of each replica.
    losses = tuple(sum(values) / case.data_parallel_size for values in zip(*(fact[0] for fact in facts)))
    allocated, reserved, used = (None if facts[0][i] is None else max(fact[i] for fact in facts) for i in (1, 2, 3))
    seconds = shown.step_time_s
    flops = model_flops_per_token(case.model) * case.tokens_per_step / case.world_size
    tokens_per_second, tflops = case.tokens_per_step / seconds, flops / seconds / 1e12
    return LayoutRow(name, case, seconds, tokens_per_second, tflops, allocated, reserved, used, losses)
