"""How a rank ends: the reason, its exit code and `result/<rank>.json`."""

from __future__ import annotations

import json
import logging
import os
import sys
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any, NoReturn

from .errors import RetryError, SavedAndExit, StopError

RESULT_SCHEMA = "rackweave.result/1"


class Exit(Enum):
    """End of a rank, with the exit code that the launcher acts on."""

    DONE = 0
    STOP = 64
    RETRY = 75
    RETRY_ELSEWHERE = 76
    SAVED = 77

    @property
    def label(self) -> str:
        """The name used in result files: `done`, `stop`, ..."""
        return self.name.lower()


@dataclass(frozen=True)
class Result:
    """Content of `result/<rank>.json`."""

    rank: int
    host: str
    exit: Exit
    reason: str
    phase: str | None
    step: int | None
    blames: tuple[int, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON object."""
        values = asdict(self)
        if not self.blames:
            del values["blames"]
        return {"schema": RESULT_SCHEMA, **values, "exit": self.exit.label, "code": self.exit.value}


def classify(error: BaseException) -> Exit:
    """Return the end that an exception means; an unknown exception is the program's own fault, so `STOP`."""
    if isinstance(error, SavedAndExit):
        return Exit.SAVED
    if isinstance(error, StopError):
        return Exit.STOP
    if isinstance(error, (RetryError, ConnectionError)) or _is_communication_failure(error):
        return Exit.RETRY
    return Exit.STOP


def _is_communication_failure(error: BaseException) -> bool:
    """Tell a failed peer from an own fault; torch raises a bare RuntimeError for both, so gloo is known by its text."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if kinds & {"DistBackendError", "DistNetworkError", "DistStoreError"}:
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and ("gloo/transport" in text or "Connection closed by peer" in text)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a small JSON file so that a reader sees the old content or the new one, never half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(content, sort_keys=True) + "\n", encoding="utf-8")
    temporary.replace(path)


def write_result(attempt: Path, result: Result) -> None:
    """Write `result/<rank>.json`; the first result of a rank stays, a later one would describe the aftermath."""
    path = attempt / "result" / f"{result.rank}.json"
    if not path.exists():
        write_json(path, result.as_dict())


def leave(code: int) -> NoReturn:
    """End this process at once: all is written, and the libraries' own shutdown takes seconds of every process.

    It may also abort, where their threads are still at work.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
