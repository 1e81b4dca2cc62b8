"""`python -m trainer --attempt DIR`: one rank of a training job, started by torchrun."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Callable

from .config import JobConfig, read_job
from .environment import LaunchEnvironment, read_environment
from .errors import StopError, TrainerError
from .outcome import Exit, Result, classify, write_result

LOG = logging.getLogger("trainer")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one rank; return its exit code."""
    attempt = _parse(arguments)
    environment: LaunchEnvironment | None = None
    try:
        environment = read_environment()
        _log_to_stderr(environment.rank)
        job = read_job(attempt)
    except StopError as error:
        return _refuse(attempt, environment, error)
    return _run(job, environment)


def _run(job: JobConfig, environment: LaunchEnvironment) -> int:
    """Run the job with its outputs open; whatever happens, `result/<rank>.json` says how it ended."""
    from .platform import prepare_platform

    prepare_platform(cuda=job.train.backend == "nccl")
    # Megatron is imported by these modules, so they may be loaded only now.
    from .job import Reporting, run_job
    from .requests import ExitRequests
    from .telemetry import EventLog, PhaseMarker

    marker = PhaseMarker(job.attempt / "phase" / f"{environment.rank}.json", environment.rank, environment.host)
    events = EventLog(job.attempt / "events.jsonl", environment.rank, writer=environment.rank == 0)

    def finish(end: Exit, reason: str) -> None:
        write_result(job.attempt, Result(environment.rank, environment.host, end, reason, marker.phase, marker.step))
        events.write("end", exit=end.label, code=end.value, reason=reason, step=marker.step)

    def ended_by_signal() -> None:
        finish(Exit.RETRY, f"ended by SIGTERM in phase {marker.phase}")
        os._exit(Exit.RETRY.value)

    reporting = Reporting(events, marker, ExitRequests(job.attempt, environment.rank == 0, ended_by_signal))
    return _recorded(lambda: run_job(job, environment, reporting), finish, environment.rank)


def _recorded(run: Callable[[], int], finish: Callable[[Exit, str], None], rank: int) -> int:
    """Run under torchrun's error recorder; turn every end into a result, and a failure into an immediate exit."""
    from torch.distributed.elastic.multiprocessing.errors import record

    try:
        done = record(run)()
        finish(Exit.DONE, f"step {done} reached")
    except BaseException as error:
        end = classify(error)
        finish(end, _sentence(error))
        if rank == 0 or not isinstance(error, TrainerError):
            LOG.error("%s: %s", end.label, _sentence(error))
        if not isinstance(error, TrainerError):
            traceback.print_exception(error)
        if end is Exit.SAVED:
            return int(end.value)
        sys.stderr.flush()
        # Interpreter shutdown would wait for communicators whose peers may be gone; the launcher is waiting for us.
        os._exit(end.value)
        raise
    return Exit.DONE.value


def _refuse(attempt: Path, environment: LaunchEnvironment | None, error: StopError) -> int:
    """Say why the job cannot start; only rank 0 speaks, but every rank leaves its result."""
    if environment is None or environment.rank == 0:
        sys.stderr.write(f"trainer: {error}\n")
    if environment is not None and attempt.is_dir():
        write_result(attempt, Result(environment.rank, environment.host, Exit.STOP, str(error), "start", None))
    return Exit.STOP.value


def _sentence(error: BaseException) -> str:
    if isinstance(error, TrainerError):
        return str(error)
    first_line = (str(error).strip() or "no message").splitlines()[0]
    return f"{type(error).__name__}: {first_line}"


def _log_to_stderr(rank: int) -> None:
    logging.basicConfig(
        level=logging.INFO if rank == 0 else logging.WARNING,
        format=f"%(asctime)s rank {rank} %(name)s: %(message)s",
        stream=sys.stderr,
    )


def _parse(arguments: Sequence[str] | None) -> Path:
    parser = argparse.ArgumentParser(prog="python -m trainer", description=__doc__)
    parser.add_argument("--attempt", type=Path, required=True, metavar="DIR", help="the attempt directory")
    path: Path = parser.parse_args(arguments).attempt
    return path


if __name__ == "__main__":
    sys.exit(main())
