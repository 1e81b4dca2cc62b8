"""``events.jsonl``: one JSON object a line, appended by the job while others read.

The last line may be half written, and a file system may return a torn line after a crash: the first waits for more,
the second is counted and skipped, since a watcher must not die of its job's log.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PHASES = (
    "nccl_init",
    "model_build",
    "checkpoint_load",
    "optimizer_init",
    "forward",
    "backward",
    "optimizer_step",
    "save",
    "evaluate",
)
# What the launcher's own check leaves before the program starts; see roles/training_job/files/inside.py.
ENVIRONMENT = "environment"


@dataclass(frozen=True)
class Event:
    """One record of a job; ``fields`` holds everything beside time, kind and rank."""

    time: str
    kind: str
    rank: int | None
    fields: Mapping[str, Any]

    def number(self, name: str) -> float | None:
        """Return a numeric field, or None where it is absent, null, not a number or not finite."""
        value = self.fields.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return None
        # A whole number in JSON may be larger than any float.
        return float(value) if abs(value) <= sys.float_info.max else None

    @property
    def step(self) -> int | None:
        """The training step that the record speaks of, if any."""
        value = self.fields.get("step")
        return value if isinstance(value, int) and not isinstance(value, bool) else None


@dataclass(frozen=True)
class EventBatch:
    """What one piece of the file held: its events, and how many of its bytes are read for good."""

    events: tuple[Event, ...]
    consumed_bytes: int
    unreadable_lines: int


def parse_events(piece: bytes) -> EventBatch:
    """Read the complete lines of a piece of ``events.jsonl``; an unfinished last line is left for the next piece."""
    end = piece.rfind(b"\n") + 1
    events = []
    unreadable = 0
    for line in piece[:end].splitlines():
        if not line.strip():
            continue
        event = parse_event(line)
        if event is None:
            unreadable += 1
        else:
            events.append(event)
    return EventBatch(tuple(events), end, unreadable)


def job_is_silent(piece: bytes) -> bool:
    """Say whether a file, or its beginning, holds nothing of the program itself: not every program writes events."""
    return all(event.kind == ENVIRONMENT for event in parse_events(piece).events)


def parse_event(line: bytes) -> Event | None:
    """Return the event of one line, or None for a line that is none (torn, or not an object with time and kind)."""
    try:
        value = json.loads(line.decode("utf-8", errors="replace"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or not isinstance(value.get("time"), str) or not isinstance(value.get("kind"), str):
        return None
    rank = value.get("rank")
    fields = {name: item for name, item in value.items() if name not in ("time", "kind", "rank", "schema")}
    return Event(value["time"], value["kind"], rank if isinstance(rank, int) else None, fields)
