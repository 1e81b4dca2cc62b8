"""`python -m trainer --attempt DIR`: one rank of a training job, started by torchrun."""

from __future__ import annotations

import argparse
import contextlib
import logging
import mmap
import os
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Callable

from .config import JobConfig, read_job, runs_flat
from .environment import LaunchEnvironment, read_environment
from .errors import StopError, TrainerError
from .outcome import Exit, Result, classify, leave, write_result
from .versions import check_versions

if TYPE_CHECKING:
    from .memory import MemoryMeter
    from .telemetry import EventLog, PhaseMarker

LOG = logging.getLogger("trainer")
PARACHUTE_BYTES = 1 << 26


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one rank; return its exit code."""
    attempt = _parse(arguments)
    environment: LaunchEnvironment | None = None
    try:
        environment = read_environment()
        _log_to_stderr(environment.rank)
        job = read_job(attempt)
        check_versions(runs_flat(job.plan.sizes.zero_stage, job.train.engine))
    except StopError as error:
        return _refuse(attempt, environment, error)
    return _run(job, environment)


def _run(job: JobConfig, environment: LaunchEnvironment) -> int:
    """Run the job with its outputs open; whatever happens, `result/<rank>.json` says how it ended."""
    from .platform import prepare_platform

    prepare_platform(
        cuda=job.train.backend == "nccl", deepspeed=not runs_flat(job.plan.sizes.zero_stage, job.train.engine)
    )
    # Megatron is imported by these modules, so they may be loaded only now.
    # The last one only so that a report of exhausted memory need not load it.
    from . import failure  # noqa: F401
    from .job import Reporting, run_job
    from .memory import MemoryMeter
    from .requests import ExitRequests
    from .telemetry import EventLog, PhaseMarker

    try:
        marker = PhaseMarker(job.attempt / "phase" / f"{environment.rank}.json", environment.rank, environment.host)
        events = EventLog(job.attempt / "events.jsonl", environment.rank, writer=environment.rank == 0)
    except OSError as error:
        return _refuse(
            job.attempt, environment, StopError(f"the attempt directory {job.attempt} cannot be written: {error}")
        )
    device = "cpu" if job.train.backend == "gloo" else f"cuda:{environment.local_rank}"
    ending = _Ending(job, environment, marker, events, MemoryMeter(device, job.train.memory_limit_gib), device)

    def ended_by_signal() -> None:
        # A rank that is explaining its own failure knows more than this signal, its launcher's answer to a failure.
        if not ending.explaining.is_set():
            ending.write(Exit.RETRY, f"ended by SIGTERM in phase {marker.phase}")
            os._exit(Exit.RETRY.value)

    requests = ExitRequests(job.attempt, environment.rank == 0, ended_by_signal)
    reporting = Reporting(events, marker, requests, ending.meter)
    return _recorded(lambda: run_job(job, environment, reporting), ending)


@dataclass(frozen=True)
class _Ending:
    """Writes how this rank ended."""

    job: JobConfig
    environment: LaunchEnvironment
    marker: PhaseMarker
    events: EventLog
    meter: MemoryMeter
    device: str
    explaining: threading.Event = field(default_factory=threading.Event)
    parachute: mmap.mmap = field(default_factory=lambda: mmap.mmap(-1, PARACHUTE_BYTES, mmap.MAP_PRIVATE))
    """Private memory that nobody touches, so it costs nothing until it is given up."""

    def write(self, end: Exit, reason: str, blames: tuple[int, ...] = ()) -> None:
        """Write the result, and the event that closes the log."""
        phase, step = self.marker.phase, self.marker.step
        rank, host = self.environment.rank, self.environment.host
        try:
            write_result(self.job.attempt, Result(rank, host, end, reason, phase, step, blames))
            self.events.write("end", exit=end.label, code=end.value, reason=reason, step=step)
        except (OSError, StopError) as error:
            # The exit code still says how it ended; a full disk must not turn it into another one.
            LOG.error("how this rank ended cannot be written: %s", error)

    def explain(self, error: BaseException, end: Exit) -> str:
        """Return the sentence for a failure, after writing what helps to understand it."""
        from .failure import Where, dump_collectives, is_out_of_memory, report_out_of_memory

        self.explaining.set()
        rank, host = self.environment.rank, self.environment.host
        where = Where(self.job.attempt, rank, host, self.marker.phase, self.marker.step, self.device)
        if is_out_of_memory(error, self.meter):
            # Room for the report itself.
            self.parachute.close()
            return report_out_of_memory(where, error, self.job, self.meter)
        if end is Exit.RETRY:
            dump_collectives(where)
        if isinstance(error, TrainerError):
            return str(error)
        first_line = (str(error).strip() or "no message").splitlines()[0]
        return f"{type(error).__name__}: {first_line}"


@contextlib.contextmanager
def _error_file_in_one_piece() -> Iterator[None]:
    """Let torchrun see the error file of this rank only when it is whole.

    When one rank has ended, torchrun reads the error files of all, and one that is just being written is no JSON: then
    torchrun itself ends, and the exit code of the rank that began it is lost (torch 2.13).
    """
    name = "TORCHELASTIC_ERROR_FILE"
    path = os.environ.get(name)
    if path is None:
        yield
        return
    part = os.environ[name] = f"{path}.part"
    try:
        yield
    finally:
        os.environ[name] = path
        with contextlib.suppress(OSError):  # nothing failed, or nothing could be written
            os.replace(part, path)


def _recorded(run: Callable[[], int], ending: _Ending) -> int:
    """Run under torchrun's error recorder; turn every end into a result, and a failure into an immediate exit."""
    from torch.distributed.elastic.multiprocessing.errors import record

    try:
        with _error_file_in_one_piece():
            done = record(run)()
        ending.write(Exit.DONE, f"step {done} reached")
    except BaseException as error:
        end = classify(error)
        sentence = ending.explain(error, end)
        ending.write(end, sentence, error.blames if isinstance(error, StopError) else ())
        if ending.environment.rank == 0 or not isinstance(error, TrainerError):
            LOG.error("%s: %s", end.label, sentence)
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
        with contextlib.suppress(OSError):  # the sentence is what matters, and it may be about this very directory
            write_result(attempt, Result(environment.rank, environment.host, Exit.STOP, str(error), "start", None))
    return Exit.STOP.value


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
    leave(main())
