"""Megatron's timers of all ranks (``--timing-log-option all``): the rank that computes longer than the others.

Only timers that hold a rank's own work count; those of sending and receiving hold the waiting for its neighbours.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median

from .evidence import MAX_TEXT, Finding
from .prefix import Line

_TIMER = re.compile(r"^\s*(?P<timer>(?:forward|backward)-compute):\s*$")
_ROW = re.compile(r"^\s*rank +(?P<rank>\d{1,7}): (?P<ms>\d{1,12}\.\d+)\s*$")

LITERALS = ("ward-compute:", "rank : .", "rank  : .")

# A rank's seconds against those of the middle one, as for a live job; the first and the last stage of a pipeline have
# more to do by design (embedding, loss), so that it takes more to suspect their ranks.
_SLOWER = 1.4
_SLOWER_END = 2.0
# Fewer ranks have no middle; more suspects than one in so many are no exception.
_FEWEST = 4
# Printings of each timer that are kept; a rank has to be slow in all of them.
_KEEP = 3
_MAX_RANKS = 1 << 17


@dataclass
class _Table:
    """Times of one printing of one timer in milliseconds, with the line of each rank that is read on."""

    timer: str
    last: int
    times: dict[int, float] = field(default_factory=dict)
    slowest: tuple[float, Line] | None = None


@dataclass
class RankTimers:
    """Follow such tables; the one that is being read, per source."""

    tables: dict[str, deque[_Table]] = field(default_factory=lambda: defaultdict(lambda: deque(maxlen=_KEEP)))
    _open: dict[int, _Table] = field(default_factory=dict)

    def feed(self, line: Line) -> bool:
        """Take one line; True if it may belong to a table."""
        if heading := _TIMER.match(line.text):
            table = self._open[line.source] = _Table(heading["timer"], line.position)
            self.tables[table.timer].append(table)
            return True
        row = _ROW.match(line.text)
        if row is None:
            return False
        now = self._open.get(line.source)
        if now is not None and line.position == now.last + 1 and len(now.times) < _MAX_RANKS:
            now.last = line.position
            milliseconds = now.times[int(row["rank"])] = float(row["ms"])
            if now.slowest is None or milliseconds > now.slowest[0]:
                now.slowest = (milliseconds, line)
        return True

    def findings(self) -> Iterator[Finding]:
        """The few ranks that are slow in all timers of their own work."""
        complete = [table for kept in self.tables.values() for table in kept if len(table.times) >= _FEWEST]
        if not complete:
            return
        slow = set.intersection(*(_slow(table.times) for table in complete))
        shown = complete[-1].slowest
        if not slow or shown is None or len(slow) * _FEWEST > len(complete[-1].times):
            return
        line = shown[1]
        yield Finding(
            "perf.straggler",
            line.full.strip()[:MAX_TEXT],
            ranks=frozenset(slow),
            depth=83,
            time=line.time,
            position=line.position,
            source=line.source,
        )


def _slow(times: dict[int, float]) -> set[int]:
    middle = median(times.values())
    late = {rank for rank, time in times.items() if time > _SLOWER * middle > 0}
    at_an_end = bool(late & {min(times), max(times)})
    return late if not at_an_end else {rank for rank in late if times[rank] > _SLOWER_END * middle}
