"""`python -m trainer.bench`: steps of a planned job on synthetic data; with `allreduce`: a sweep over message sizes.

Both run under torchrun; rank 0 writes to standard output.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..config import JobConfig, read_job
from ..environment import read_environment
from ..errors import StopError
from ..outcome import leave
from .case import BenchCase, gpt_like
from .local import start

if TYPE_CHECKING:
    from ..mesh import Mesh


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one rank; return its exit code (64: the configuration is wrong, one sentence on rank 0)."""
    parser = argparse.ArgumentParser(prog="python -m trainer.bench", description=__doc__)
    parser.add_argument("what", nargs="?", choices=("steps", "allreduce"), default="steps")
    parser.add_argument("--attempt", type=Path, help="directory with plan.json and train.json; `steps` needs it")
    parser.add_argument("--untimed", type=int, default=3, help="steps before the clock starts")
    parser.add_argument("--timed", type=int, default=10, help="steps that are timed")
    parser.add_argument("--calls", type=int, default=200, help="most calls per message size")
    parser.add_argument("--out", type=Path, default=Path("bench"), help="directory for JSON results")
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.WARNING)
    try:
        _check(given)
        return _allreduce(given) if given.what == "allreduce" else _steps(given)
    except (StopError, OSError) as error:
        if _speaks():
            logging.getLogger("trainer.bench").error("%s", error)
        return 64


def _check(given: argparse.Namespace) -> None:
    for name, least in {"untimed": 0, "timed": 1, "calls": 1}.items():
        if getattr(given, name) < least:
            raise StopError(f"--{name} {getattr(given, name)} must be at least {least}")
    given.out.mkdir(parents=True, exist_ok=True)


def _speaks() -> bool:
    """Tell whether this is rank 0, or a process that no launcher gave a rank."""
    try:
        return read_environment().rank == 0
    except StopError:
        return True


def case_of(job: JobConfig) -> BenchCase:
    """Return what a planned job would run, without its data."""
    sizes, train = job.plan.sizes, job.train
    return BenchCase(
        name=job.plan.run,
        model=job.plan.model,
        micro_batch_size=sizes.micro_batch_size,
        num_microbatches=sizes.num_microbatches,
        zero_stage=sizes.zero_stage,
        recompute=sizes.recompute,
        dtype=train.dtype,
        engine=train.engine,
        seed=train.seed,
        tensor_parallel_size=sizes.tensor_parallel_size,
        pipeline_parallel_size=sizes.pipeline_parallel_size,
        data_parallel_size=sizes.data_parallel_size,
        virtual_pipeline_size=sizes.virtual_pipeline_size,
        sequence_parallel=sizes.sequence_parallel,
        offload=sizes.offload,
        offload_directory=train.offload_directory,
    )


def _steps(given: argparse.Namespace) -> int:
    if given.attempt is None:
        raise StopError("--attempt is missing: the bench measures a planned job")
    job = read_job(given.attempt)
    case = case_of(job)
    world_size = read_environment().world_size
    if world_size != case.world_size:
        raise StopError(f"the plan is for world_size={case.world_size}, torchrun started {world_size} processes")
    mesh = start(case)
    # Megatron may be imported only after the platform is prepared.
    from .layouts import offload_cost, run_layout, try_layout

    span = (given.untimed, given.timed)
    row = run_layout("plan", case, given.out, span)
    peak = job.train.telemetry.peak_flops_per_second
    shown, text = {**asdict(row), "mfu": row.mfu(peak)}, row.line(peak)
    if case.offload != "none":
        # What offloading costs is only seen beside the same job without it.
        resident, problem = try_layout("resident", replace(case, offload="none"), given.out, span)
        shown["resident"] = None if resident is None else {**asdict(resident), "mfu": resident.mfu(peak)}
        text += f"\n{problem if resident is None else offload_cost(row, resident, peak)}"
    _tell(mesh, given.out / "steps.json", shown, text)
    return 0


def _allreduce(given: argparse.Namespace) -> int:
    world_size = read_environment().world_size
    model = gpt_like("none", layers=1, hidden=128, sequence=1)
    mesh = start(BenchCase("allreduce", model, 1, 1, data_parallel_size=world_size))
    from . import allreduce

    result = allreduce.sweep(mesh.device, given.calls)
    _tell(mesh, given.out / "allreduce.json", {"time": allreduce.now(), **asdict(result)}, allreduce.table(result))
    return 0


def _tell(mesh: Mesh, path: Path, content: dict[str, object], text: str) -> None:
    if mesh.rank == 0:
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        sys.stdout.write(text + "\n")


if __name__ == "__main__":
    leave(main())
