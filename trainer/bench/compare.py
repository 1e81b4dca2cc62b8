"""Run programs on one case after each other in one process, and write what each showed.

Programs are compared in one run, because clocks and temperature of a GPU differ between runs.
"""

from __future__ import annotations

import contextlib
import gc
import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch._C._autograd import DeviceType
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile

from ..flat_engine import Acceleration
from ..flops import model_flops_per_token
from ..mesh import Mesh
from ..model.build import build_stages
from ..model.partition import stage_parameters
from .case import BenchCase, job_of
from .measure import Measurement, measure
from .programs import PeerProgram, deepspeed_program, flat_program
from .synthetic import Batches, SyntheticTokens

# program -> (fused, compiled, graphed); the peer's rows are built elsewhere.
FLAT_PROGRAMS: Mapping[str, Acceleration | None] = {
    "flat": Acceleration(fused=False, compiled=False, graphed=False),
    "flat-fused": Acceleration(fused=True, compiled=False, graphed=False),
    "flat-fused-compiled": Acceleration(fused=True, compiled=True, graphed=False),
    "flat-fused-graphed": Acceleration(fused=True, compiled=False, graphed=True),
    "flat-compiled": Acceleration(fused=False, compiled=True, graphed=False),
    "flat-all": Acceleration(fused=True, compiled=True, graphed=True),
    "trainer": None,
}
ATTENTION: Mapping[str, tuple[SDPBackend, ...]] = {
    "cudnn": (SDPBackend.CUDNN_ATTENTION,),
    "flash": (SDPBackend.FLASH_ATTENTION,),
}


class Program(Protocol):
    """Something that trains a step at a time."""

    def step(self, index: int) -> Tensor:
        """Train one step; return its mean loss."""


@dataclass(frozen=True)
class Span:
    """How long to run: untimed and timed steps, whether to profile one more, what keeps others off (see measure)."""

    warmup: int
    timed: int
    profiled: bool = False
    alone: AbstractContextManager[object] | None = None


@dataclass(frozen=True)
class Row:
    """One measured program."""

    program: str
    case: BenchCase
    measurement: Measurement
    tflops_per_gpu: float
    busy: float | None
    """Share of one profiled step in which at least one kernel ran; None where nothing was profiled."""

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON object."""
        result = asdict(self)
        result["step_time_s"] = self.measurement.step_time_s
        result["versions"] = versions()
        return result

    def line(self) -> str:
        """Return one line for people."""
        shown, memory = self.measurement, self.measurement.max_allocated_gib
        busy = "" if self.busy is None else f"  busy {self.busy:.1%}"
        peak = (
            ""
            if memory is None
            else f"  {memory:6.2f} / {shown.max_reserved_gib:6.2f} / {shown.device_used_gib:6.2f} GiB"
        )
        case = self.case
        return (
            f"{case.name:14s} ga{case.num_microbatches} mb{case.micro_batch_size} z{case.zero_stage} "
            f"{case.recompute:9s} {self.program:24s} {shown.step_time_s * 1e3:9.2f} ms  "
            f"{self.tflops_per_gpu:6.1f} TFLOP/s{peak}  loss {shown.losses[-1]:.4f}{busy}"
        )


def versions() -> dict[str, str]:
    """Return what a figure depends on."""
    import megatron.core

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return {"gpu": gpu, "torch": torch.__version__, "megatron_core": megatron.core.__version__}


def run_program(name: str, case: BenchCase, mesh: Mesh, span: Span, out: Path) -> Row:
    """Build, measure and drop one program. A name is `program` or `program@attention` (see ATTENTION)."""
    program_name, _, attention = name.partition("@")
    chosen = sdpa_kernel(list(ATTENTION[attention])) if attention else contextlib.nullcontext()
    with chosen:
        program = _build(program_name, case, mesh)
        shown = measure(program.step, span.warmup, span.timed, mesh.device, span.alone)
        busy = (
            _profile(program, span.warmup + span.timed, out / f"profile-{case.name}-{name}.txt")
            if span.profiled
            else None
        )
    del program
    forget()
    flops = model_flops_per_token(case.model) * case.tokens_per_step / case.world_size
    row = Row(name, case, shown, flops / shown.step_time_s / 1e12, busy)
    with (out / "rows.jsonl").open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(row.as_dict()) + "\n")
    return row


def _build(name: str, case: BenchCase, mesh: Mesh) -> Program:
    source = SyntheticTokens(case.model.vocab_size, case.model.sequence_length, case.seed)
    batches = Batches(source, case, mesh.where.dp_rank, mesh.device)
    if name in ("peer", "peer-eager"):
        return PeerProgram(case, batches, dict(initial_weights(case, mesh)), compiled=name == "peer")
    if name in ("deepspeed", "deepspeed-compiled"):
        return deepspeed_program(case, batches, mesh, compiled=name == "deepspeed-compiled")
    return flat_program(case, batches, mesh, FLAT_PROGRAMS[name])


def initial_weights(case: BenchCase, mesh: Mesh) -> Iterator[tuple[str, Tensor]]:
    """Yield the trainer's own initial weights, so that the peer starts from the same model."""
    for info in stage_parameters(build_stages(job_of(case, "gloo"), mesh), case.model, 0, 1):
        yield info.name, info.parameter.detach()


def forget() -> None:
    """Give memory and compiled code back, so that the next program starts as the first did."""
    gc.collect()
    torch._dynamo.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _profile(program: Program, index: int, path: Path) -> float | None:
    """Profile one step; write the kernels that took longest, and return the share of time with a kernel running."""
    if not torch.cuda.is_available():
        return None
    torch.cuda.synchronize()
    # One step before the profiled one: the first under a profiler pays for its start.
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as shown:
        program.step(index)
        torch.cuda.synchronize()
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in shown.events()
        if event.device_type == DeviceType.CUDA
    )
    busy, covered_until = 0.0, spans[0][0]
    for start, end in spans:
        busy += max(0.0, end - max(start, covered_until))
        covered_until = max(covered_until, end)
    table = shown.key_averages().table(sort_by="self_device_time_total", row_limit=45, max_name_column_width=90)
    share: float = busy / (covered_until - spans[0][0])
    path.write_text(
        f"kernels cover {share:.2%} of {(covered_until - spans[0][0]) / 1e3:.2f} ms\n{table}\n", encoding="utf-8"
    )
    return share
