"""The table of torchrun's ChildFailedError (1.9 to 2.13) and similar reports of dead workers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

from .evidence import MAX_TEXT, Finding, Store
from .prefix import Line, parse_time

_ENTRY = re.compile(r"^\s*\[\d+\]:\s*$")
_FIELD = re.compile(r"^\s*(?P<key>time|host|rank|exitcode|error_file|traceback)\s*:\s*(?P<value>.*)$")
_RANK = re.compile(r"(?P<rank>-?\d+)\s*(?:\(local_rank: ?(?P<local>\d+)\))?")
_CODE = re.compile(r"(?P<code>-?\d+)\s*(?:\(pid: ?(?P<pid>\d+)\))?")

LITERALS = (
    "time  ",
    "host  ",
    "rank  ",
    "exitcode",
    "error_file",
    "traceback :",
    "]:",
    "local_rank:",
    "ailures:",
    "Root Cause",
)

_CRASH = {-4, -6, -7, -8, -11, 132, 134, 135, 136, 139}


@dataclass
class Failure:
    """One entry of the table."""

    line: Line
    time: datetime | None = None
    host: str | None = None
    rank: int | None = None
    local_rank: int | None = None
    code: int | None = None
    pid: int | None = None
    message: str = ""
    root: bool = False


@dataclass
class FailureTables:
    """Collect entries of all tables of a scan (one table per launcher)."""

    entries: list[Failure] = field(default_factory=list)
    _open: dict[tuple[int, str | None], Failure] = field(default_factory=dict)
    _root: dict[tuple[int, str | None], bool] = field(default_factory=dict)

    def feed(self, line: Line, store: Store) -> bool:
        """Take one line of a table; True if it is one."""
        key = (line.source, line.host)
        text = line.text
        if "Root Cause" in text:
            self._root[key] = True
            return True
        if "ailures:" in text:
            self._root[key] = False
            return True
        match = _FIELD.match(text)
        if match is None:
            if _ENTRY.match(text):
                self._start(key, line)
                return True
            return False
        entry = self._open.get(key)
        if entry is None or (match["key"] == "time" and entry.time is not None):
            entry = self._start(key, line)
        self._take(entry, match["key"], match["value"].strip(), line, store)
        return True

    def _start(self, key: tuple[int, str | None], line: Line) -> Failure:
        entry = Failure(line, root=self._root.get(key, False))
        self._open[key] = entry
        if len(self.entries) < 8192:
            self.entries.append(entry)
        return entry

    def _take(self, entry: Failure, key: str, value: str, line: Line, store: Store) -> None:
        if key == "time":
            entry.time = parse_time(value)
        elif key == "host":
            entry.host = _host(value.split()[0] if value else None, line.host)
        elif key == "rank":
            match = _RANK.match(value)
            if match:
                entry.rank = int(match["rank"])
                entry.local_rank = int(match["local"]) if match["local"] else None
                if entry.host:
                    store.learn_rank(entry.rank, entry.host)
                if entry.local_rank is not None:
                    store.local_ranks[(entry.host or "", entry.local_rank)] = entry.rank
        elif key == "exitcode":
            match = _CODE.match(value)
            if match:
                entry.code = int(match["code"])
                entry.pid = int(match["pid"]) if match["pid"] else None
                entry.line = line
        elif key == "traceback":
            entry.message = value[:MAX_TEXT]

    def findings(self) -> Iterator[Finding]:
        """One finding per class of death; entries that torchrun itself ended are teardown."""
        dead = [entry for entry in self.entries if entry.code not in (None, 0, -15, 143)]
        if not dead:
            return
        seen: set[tuple[int | None, int | None]] = set()
        for entry in sorted(dead, key=_order):
            if (entry.rank, entry.code) in seen:
                continue
            seen.add((entry.rank, entry.code))
            diagnosis, depth = _meaning(entry.code or 0)
            yield Finding(
                diagnosis,
                _text(entry),
                ranks=frozenset([entry.rank] if entry.rank is not None and entry.rank >= 0 else []),
                hosts=frozenset([entry.host] if entry.host else []),
                depth=depth,
                time=entry.time,
                position=entry.line.position,
                source=entry.line.source,
            )


def _host(said: str | None, printed_by: str | None) -> str | None:
    """The name under which we know the host: torchrun says a full or a local name for the host it runs on."""
    if said is not None and said.startswith(("localhost", "ip6-localhost")):
        return printed_by
    if said is None or printed_by is None:
        return said
    if said.split(".")[0] == printed_by.split(".")[0]:
        return printed_by
    return said


def _order(entry: Failure) -> tuple[datetime, bool, int]:
    return (entry.time or datetime.max, not entry.root, entry.line.position)


def _meaning(code: int) -> tuple[str, int]:
    if code in (-9, 137):
        return "launch.sigkill_unconfirmed", 47
    if code in _CRASH:
        return "launch.child_crash", 49
    return "launch.child_failed", 75


def _text(entry: Failure) -> str:
    return f"rank {entry.rank} on {entry.host}: exitcode {entry.code} (pid {entry.pid}), {entry.message}"[:MAX_TEXT]
