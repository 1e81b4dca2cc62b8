"""The attempt directory: names of its files, and readers of the small ones.

``runs/<run>/attempts/<job id>.<restart>/``; copies of the run files never change, outputs are append-only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import DocumentError
from .schema import Flag, ListOf, Nullable, Number, Record, Text, Whole, read_document

ATTEMPT_SCHEMA = "rackweave.attempt/1"
RESULT_SCHEMA = "rackweave.result/1"
EXIT_SCHEMA = "rackweave.exit/1"
END_SCHEMA = "rackweave.end/1"
JOB_SCHEMA = "rackweave.job/1"

RUN_FILES = (
    "plan.json",
    "train.json",
    "ds_config.json",
    "megatron.args",
    "job.sbatch",
    "launch.sh",
    "launch.py",
    "supervise.py",
    "inside.py",
    "runtime.sh",
    "runtime.conf",
    "waivers.json",
)
STOP_FILE = "save-and-exit"

_NAME = re.compile(r"(\d+)\.(\d+)")

_ATTEMPT = Record(
    {
        "schema": Text((ATTEMPT_SCHEMA,)),
        "run": Text(),
        "job_id": Text(),
        "restart": Whole(),
        "hosts": ListOf(Text(), 1),
        "started": Text(),
        "world_size": Whole(),
    },
    optional=("world_size",),
)

_RESULT = Record(
    {
        "schema": Text((RESULT_SCHEMA,)),
        "rank": Whole(),
        "host": Text(),
        "exit": Text(("done", "stop", "retry", "retry_elsewhere", "saved")),
        "code": Whole(),
        "reason": Nullable(Text()),
        "phase": Nullable(Text()),
        "step": Nullable(Whole()),
        "blames": ListOf(Whole()),
    },
    optional=("blames",),
)

_EXIT = Record(
    {
        "schema": Text((EXIT_SCHEMA,)),
        "host": Text(),
        "node_rank": Nullable(Whole()),
        "code": Whole(),
        "reason": Text(),
        "launcher_code": Nullable(Whole(-255)),
        "terminated": Flag(),
        "time": Text(),
        "ranks": ListOf(
            Record(
                {
                    "rank": Whole(),
                    "pid": Nullable(Whole(1)),
                    "gone": Nullable(Text()),
                    "exit_code": Nullable(Whole(-255)),
                    "state": Nullable(Text()),
                    "stopped": Nullable(Text()),
                    "result": Flag(),
                }
            )
        ),
    }
)

_END = Record(
    {
        "schema": Text((END_SCHEMA,)),
        "code": Whole(),
        "reason": Text(),
        "srun_code": Nullable(Whole()),
        "requeued": Flag(),
        "time": Text(),
    }
)

_JOB = Record(
    {
        "schema": Text((JOB_SCHEMA,)),
        "run": Text(),
        "job_id": Text(),
        "submitted": Text(),
        "switches": Record({"stop_ok": Flag(), "requeue_ok": Flag(), "drain_ok": Flag()}),
        "save_seconds": Nullable(Number(0.0)),
    },
    optional=("save_seconds",),
)


@dataclass(frozen=True, order=True)
class AttemptName:
    """Job id and how often Slurm had restarted it; sorts in the order in which attempts were made."""

    job_id: int
    restart: int

    def __str__(self) -> str:
        return f"{self.job_id}.{self.restart}"


@dataclass(frozen=True)
class RankResult:
    """How one rank ended, in its own words; ``blames`` are ranks that it knows to have begun it."""

    rank: int
    host: str
    exit: str
    code: int
    reason: str | None
    phase: str | None
    step: int | None
    blames: tuple[int, ...] = ()


def parse_attempt_name(name: str) -> AttemptName | None:
    """Return the parts of an attempt directory's name, or None for another entry of that directory."""
    match = _NAME.fullmatch(name)
    return AttemptName(int(match.group(1)), int(match.group(2))) if match else None


def sort_attempts(names: list[str]) -> tuple[str, ...]:
    """Return the attempt names among directory entries, oldest first."""
    return tuple(str(name) for name in sorted(filter(None, map(parse_attempt_name, names))))


def parse_attempt(text: str, where: str = "attempt.json") -> dict[str, Any]:
    """Read ``attempt.json``; DocumentError if it does not follow its schema."""
    return read_document(text, ATTEMPT_SCHEMA, _ATTEMPT, where)


def parse_result(text: str, where: str = "result") -> RankResult:
    """Read ``result/<rank>.json``; DocumentError if it does not follow its schema."""
    document = read_document(text, RESULT_SCHEMA, _RESULT, where)
    document["blames"] = tuple(document.get("blames", ()))
    return RankResult(**{name: document[name] for name in RankResult.__dataclass_fields__})


def parse_exit(text: str, where: str = "exit.json") -> dict[str, Any]:
    """Read ``logs/<host>/exit.json``, how the launcher of one host ended; DocumentError if it breaks its schema."""
    return read_document(text, EXIT_SCHEMA, _EXIT, where)


def parse_end(text: str, where: str = "end.json") -> dict[str, Any]:
    """Read ``end.json``, how the batch script ended; DocumentError if it does not follow its schema."""
    return read_document(text, END_SCHEMA, _END, where)


def parse_job(text: str, where: str = "job.json") -> dict[str, Any]:
    """Read ``job.json``, the last submission of a run; DocumentError if it does not follow its schema."""
    return read_document(text, JOB_SCHEMA, _JOB, where)


def read_results(texts: Mapping[str, str]) -> tuple[dict[int, RankResult], tuple[str, ...]]:
    """Read many result files by name; one that cannot be read is named in the second part, and is no result."""
    results: dict[int, RankResult] = {}
    broken = []
    for name, text in texts.items():
        try:
            result = parse_result(text, name)
        except DocumentError as error:
            broken.append(str(error))
        else:
            results[result.rank] = result
    return results, tuple(broken)
