"""Files of an attempt directory: events, results, phases, placement; which rank left no word."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

from .evidence import MAX_TEXT, Finding
from .prefix import parse_time

_LOG = re.compile(r"(?:^|/)logs/(?P<host>[^/]+)/(?:(?P<rank>\d+)/)?[^/]+$")
_DEEP_LOG = re.compile(r"(?:^|/)logs/(?P<host>[^/]+)/.+$")
_EVIDENCE = re.compile(r"(?:^|/)evidence/(?P<host>[^/]+)/(?:\d+/)?(?P<name>[^/]+)$")
_NUMBERED = re.compile(r"(?:^|/)(?P<kind>result|phase|placement)/(?P<rank>\d+)\.json$")
# Files of an attempt that are inputs or answers, not evidence.
_SKIP = re.compile(
    r"(?:^|/)(?:plan\.json|train\.json|ds_config\.json|job\.sbatch|launch\.sh|verdict\.json|status\.json|report\.html)$"
    r"|(?:^|/)(?:nccl|alive|checkpoints|\.git)/|\.(?:pt|distcp|safetensors|bin|idx|npy|png|svg|html|py|pyc|so)$"
)


@dataclass(frozen=True)
class FileRole:
    """What a file of an attempt directory is, told from its relative path."""

    kind: str
    host: str | None = None
    rank: int | None = None


def role_of(path: str) -> FileRole:
    """Classify a relative path: ``log``, ``events``, ``result``, ``phase``, ``placement``, ``attempt``,
    ``collectors``, ``flight`` (a flight-recorder dump) or ``skip``."""
    name = path.rsplit("/", 1)[-1]
    if _SKIP.search(path):
        return FileRole("skip")
    numbered = _NUMBERED.search(path)
    if numbered:
        return FileRole(numbered["kind"], rank=int(numbered["rank"]))
    if name == "events.jsonl":
        return FileRole("events")
    if name == "attempt.json":
        return FileRole("attempt")
    evidence = _EVIDENCE.search(path)
    if evidence and name == "collectors.json":
        return FileRole("collectors", evidence["host"])
    if re.search(
        r"(?:(?:flight|fr_trace|nccl_trace|comm_lib_trace|_dump_|fr_dump)[\w.-]*?\d+|\d\.(?:pickle|"
        r"pkl))(?:\.pickle|\.pkl)?$",
        name,
    ):
        rank = re.search(r"(\d+)(?:\.(?:pickle|pkl))?$", name)
        return FileRole("flight", evidence["host"] if evidence else None, int(rank[1]) if rank else None)
    if evidence:
        return FileRole("log", evidence["host"])
    log = _LOG.search(path)
    if log:
        return FileRole("log", log["host"], int(log["rank"]) if log["rank"] else None)
    deep = _DEEP_LOG.search(path)
    return FileRole("log", deep["host"] if deep else None)


@dataclass
class Attempt:
    """What the trainer's own files say."""

    results: dict[int, dict[str, object]] = field(default_factory=dict)
    phases: dict[int, dict[str, object]] = field(default_factory=dict)
    hosts: dict[int, str] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)
    world_size: int | None = None
    restart: int = 0
    started: datetime | None = None
    collectors: dict[str, str] = field(default_factory=dict)

    def take(self, kind: str, text: str, rank: int | None = None, host: str | None = None) -> None:
        """Take one small JSON file; a torn or foreign one is ignored, since it proves nothing."""
        try:
            record = json.loads(text)
        except (ValueError, RecursionError):
            return
        if not isinstance(record, dict):
            return
        number = record.get("rank", rank)
        where = record.get("host")
        if isinstance(number, int) and isinstance(where, str):
            self.hosts[number] = where
        address = record.get("address")
        if isinstance(address, str) and isinstance(where, str):
            self.addresses[address] = where
        if kind == "result" and isinstance(number, int):
            self.results[number] = record
        elif kind == "phase" and isinstance(number, int):
            self.phases[number] = record
        elif kind == "attempt":
            self._attempt(record)
        elif kind == "collectors":
            for name, state in record.items():
                status = state.get("state") if isinstance(state, dict) else state
                self.collectors[f"{host or ''}:{name}"] = str(status)

    def _attempt(self, record: dict[str, object]) -> None:
        restart = record.get("restart")
        self.restart = restart if isinstance(restart, int) else 0
        size = record.get("world_size")
        self.world_size = size if isinstance(size, int) else self.world_size
        for key in ("started", "start_time", "time", "start"):
            value = record.get(key)
            if isinstance(value, str):
                self.started = self.started or parse_time(value)

    def world(self) -> set[int]:
        """All ranks that are known to exist."""
        if self.world_size:
            return set(range(self.world_size))
        return set(self.hosts) | set(self.phases) | set(self.results)

    def silent_ranks(self) -> set[int]:
        """Ranks without a result file although others have one."""
        return self.world() - set(self.results) if self.results else set()

    def behind(self) -> set[int]:
        """Ranks whose phase file stands behind all others."""
        places = {
            rank: (_int(record.get("step")), _int(record.get("micro_batch"))) for rank, record in self.phases.items()
        }
        if len(set(places.values())) < 2:
            return set()
        lowest = min(places.values())
        ranks = {rank for rank, place in places.items() if place == lowest}
        return ranks if len(ranks) * 2 <= len(places) else set()

    def reasons(self) -> Iterator[tuple[int, str | None, str]]:
        """Rank, host and reason of each failed result, for the tables to read."""
        for rank, record in sorted(self.results.items()):
            reason = record.get("reason")
            if record.get("exit") not in ("done", "saved") and isinstance(reason, str) and reason:
                host = record.get("host")
                yield rank, host if isinstance(host, str) else None, reason

    def findings(self) -> Iterator[Finding]:
        """A result that asks for another node or a stop, where nothing more exact is known."""
        for rank, record in sorted(self.results.items()):
            if record.get("exit") in ("done", "saved", None):
                continue
            host = record.get("host")
            text = f"result of rank {rank}: {record.get('exit')} ({record.get('code')}): {record.get('reason')}"
            yield Finding(
                "launch.child_failed",
                text[:MAX_TEXT],
                ranks=frozenset([rank]),
                hosts=frozenset([host] if isinstance(host, str) else []),
                depth=78,
            )


def _int(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else -1
