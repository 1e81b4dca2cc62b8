"""NCCL's RAS report as JSON (``ncclras -f json``, NCCL 2.28 and later): dead, missing and lagging ranks.

Read as a stream of ``"key": value`` pairs, since the report comes printed over many lines, on one line, or cut off.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field

# Names as NCCL's ncclFuncToString prints them.
_OPERATIONS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce", "SendRecv", "Send", "Recv",
               "AlltoAll", "AllToAll", "Scatter", "Gather")  # fmt: skip
_KEYS = ("communicators", "hash", "size", "ranks", "missing_ranks", "rank", "host", "unresponsive", "considered_dead")
_PAIR = re.compile(r'"(?P<key>' + "|".join((*_KEYS, *_OPERATIONS)) + r')"\s*:\s*(?P<value>"[^"]*"|true|false|\d+|\[)')
LITERALS = tuple(f'"{key}"' for key in (*_KEYS, *_OPERATIONS))
# One operation of difference is normal: launches overtake each other.
_NORMAL_LEAD = 1
_MAX_RANKS = 1 << 17


@dataclass
class _Communicator:
    size: int = 0
    counts: dict[str, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))


@dataclass
class RasReport:
    """What one report says; numbers of ranks are those of the largest communicator that says something."""

    active: bool = False
    dead: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    absent: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    lagging: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    dead_hosts: set[str] = field(default_factory=set)
    lagging_hosts: set[str] = field(default_factory=set)
    _hosts: dict[int, str] = field(default_factory=dict)
    _now: _Communicator = field(default_factory=_Communicator)
    _missing: bool = False
    _rank: int | None = None
    _host: str = ""

    def feed(self, text: str) -> bool:
        """Take one line; True if it belonged to a report."""
        if not self.active and '"communicators"' not in text:
            return False
        for pair in _PAIR.finditer(text):
            self._take(pair["key"], pair["value"].strip('"'))
        return self.active

    def _take(self, key: str, value: str) -> None:
        if key == "communicators":
            self.active = True
        elif key == "hash":
            self.close()
            self._now, self._missing, self._rank = _Communicator(), False, None
        elif key == "size":
            self._now.size = int(value) if value.isdigit() else 0
        elif key in ("ranks", "missing_ranks"):
            self._missing = key == "missing_ranks"
        elif key == "rank":
            self._rank, self._host = (int(value) if value.isdigit() else None), ""
            if self._missing and self._rank is not None:
                self.absent[self._now.size].add(self._rank)
        elif key == "host":
            self._host = value
            if self._rank is not None and len(self._hosts) < _MAX_RANKS:
                self._hosts[self._rank] = value
        elif key in ("unresponsive", "considered_dead"):
            self._state(value)
        elif self._rank is not None and value.isdigit() and len(self._now.counts[key]) < _MAX_RANKS:
            self._now.counts[key][self._rank] = int(value)

    def _state(self, value: str) -> None:
        if value == "true" and self._missing and self._rank is not None:
            self.dead[self._now.size].add(self._rank)
            if self._host and self._host != "unknown":
                self.dead_hosts.add(self._host)

    def close(self) -> None:
        """Compare the operation counts of the communicator that was read."""
        behind: Counter[int] = Counter()
        for counts in self._now.counts.values():
            lowest, highest = min(counts.values()), max(counts.values())
            late = [rank for rank, count in counts.items() if count == lowest]
            if highest - lowest > _NORMAL_LEAD and len(late) * 2 <= len(counts):
                behind.update(late)
        if behind:
            most = max(behind.values())
            late = [rank for rank, times in behind.items() if times == most]
            self.lagging[self._now.size].update(late)
            self.lagging_hosts.update(self._hosts[rank] for rank in late if rank in self._hosts)
        self._now = _Communicator(self._now.size)

    @staticmethod
    def of_largest(by_size: dict[int, set[int]]) -> frozenset[int]:
        """Ranks of the largest communicator: in smaller ones they are counted from zero again."""
        return frozenset(by_size[max(by_size)]) if by_size else frozenset()
