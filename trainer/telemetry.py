"""What a running job says: events.jsonl (rank 0 of the world writes it) and one phase marker per rank."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from .errors import StopError

EVENT_SCHEMA = "rackweave.event/1"
PHASE_SCHEMA = "rackweave.phase/1"
PHASES = (
    "start",
    "nccl_init",
    "model_build",
    "checkpoint_load",
    "optimizer_init",
    "forward",
    "backward",
    "optimizer_step",
    "save",
    "evaluate",
    "end",
)
MARKER_INTERVAL_S = 0.5


def now() -> str:
    """Return the time as ISO 8601, UTC, with milliseconds."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


class EventLog:
    """Appends one JSON object a line to events.jsonl; silent on every rank but the writer."""

    def __init__(self, path: Path, rank: int, writer: bool) -> None:
        self._rank = rank
        self._file = path.open("a", encoding="utf-8") if writer else None
        self._lock = threading.Lock()

    def write(self, kind: str, **fields: Any) -> None:
        """Write one event; a line reaches the file whole, since it is one write of a line-sized buffer.

        Raises:
            StopError: if it cannot be written (a full disk): a job that nobody can follow does not go on.
        """
        if self._file is None:
            return
        record = {"schema": EVENT_SCHEMA, "time": now(), "kind": kind, "rank": self._rank, **fields}
        with self._lock:
            try:
                self._file.write(json.dumps(record) + "\n")
                self._file.flush()
            except OSError as error:
                raise StopError(f"{self._file.name} cannot be written: {error}") from error

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


class PhaseMarker:
    """Keeps `phase/<rank>.json` at most half a second behind the truth.

    The training thread only sets attributes; a thread writes the file when they changed. So the marker costs nothing
    per micro-batch, and it is right also when the training thread hangs in a collective.
    """

    def __init__(self, path: Path, rank: int, host: str) -> None:
        self._path = path
        self._fixed = {"schema": PHASE_SCHEMA, "rank": rank, "host": host, "pid": os.getpid()}
        self._state: tuple[str, int | None, int | None, float] = ("start", None, None, time.time())
        self._written: tuple[str, int | None, int | None, float] | None = None
        self._stop = threading.Event()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._write()
        self._thread = threading.Thread(target=self._follow, name="phase-marker", daemon=True)
        self._thread.start()

    @property
    def phase(self) -> str:
        """The current phase."""
        return self._state[0]

    @property
    def step(self) -> int | None:
        """The step in progress, or None before the first."""
        return self._state[1]

    def set(self, phase: str, step: int | None = None, micro_batch: int | None = None) -> None:
        """Note where this rank is; `micro_batch` counts from zero within the step."""
        self._state = (phase, step, micro_batch, time.time())

    def close(self) -> None:
        """Write the last state and end the thread."""
        self._stop.set()
        self._thread.join()
        self._write()

    def _follow(self) -> None:
        while not self._stop.wait(MARKER_INTERVAL_S):
            # A full disk ends the job where events are written; here the next half second may see room again.
            with contextlib.suppress(OSError):
                self._write()

    def _write(self) -> None:
        state = self._state
        if state == self._written:
            return
        phase, step, micro_batch, changed = state
        when = datetime.fromtimestamp(changed, timezone.utc).isoformat(timespec="milliseconds")
        content = {**self._fixed, "phase": phase, "step": step, "micro_batch": micro_batch, "time": when}
        temporary = self._path.with_name(f".{self._path.name}")
        temporary.write_text(json.dumps(content) + "\n", encoding="utf-8")
        temporary.replace(self._path)
        self._written = state
