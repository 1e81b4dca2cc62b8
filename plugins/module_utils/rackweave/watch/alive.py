"""Which node fell silent, from the signs of life that each node's supervisor writes into the attempt directory.

A node that loses power closes no connection: its peers wait for it until a time-out of many minutes. What is missed
here is its number, which stops going up while those of the others do. If all stop at once, it is the shared file
system (or whoever reads it), and no node is named.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..run.outcome import Blame

SILENT_S = 18.0  # a node is missed after this many seconds without a new number; it writes one every 3 s
OTHERS_BEATS = 4  # so many numbers of the others must have come meanwhile: 12 s in which the storage did work
SLOW_S = 45.0  # all nodes late for so long is worth a line
OTHERS_SHARE = 0.5  # of the other nodes that must have written meanwhile


@dataclass
class _Host:
    count: int
    seen_at: float
    others: dict[str, int] = field(default_factory=dict)


class Alive:
    """One for each attempt; fed with each look, in the clock of who looks (seconds)."""

    def __init__(self, silent_s: float = SILENT_S) -> None:
        """Begin; ``silent_s`` of 0 switches it off."""
        self.silent_s = silent_s
        self._hosts: dict[str, _Host] = {}
        self._storage_told = False

    def take(self, beats: Mapping[str, Mapping[str, Any]], ended: Iterable[str], clock: float) -> None:
        """Take the newest sign of each node; ``ended`` are nodes whose launcher wrote how it ended."""
        counts = {host: beat["count"] for host, beat in beats.items() if isinstance(beat.get("count"), int)}
        for host, count in counts.items():
            known = self._hosts.get(host)
            if known is None or known.count != count:
                self._hosts[host] = _Host(count, clock, dict(counts))
        for host in ended:
            self._hosts.pop(host, None)

    def silent(self, clock: float) -> Blame | None:
        """Name the nodes that fell silent while the others went on writing; None where none did, or all did."""
        if not self.silent_s:
            return None
        late = {host: clock - known.seen_at for host, known in self._hosts.items()}
        gone = tuple(sorted(host for host in late if late[host] > self.silent_s and self._others_went_on(host)))
        if not gone:
            return None
        most = max(late[host] for host in gone)
        sentence = (
            f"{', '.join(gone)} fell silent: no sign of life for {most:.0f} s (limit {self.silent_s:.0f} s), while the "
            "other nodes went on writing theirs"
        )
        return Blame("lost_host", (), gone, sentence, (f"alive/{gone[0]}.json: number {self._hosts[gone[0]].count}",))

    def _others_went_on(self, host: str) -> bool:
        """Whether most other nodes wrote often enough since this one was last heard of."""
        before = self._hosts[host].others
        others = [name for name in self._hosts if name != host]
        wrote = [name for name in others if self._hosts[name].count - before.get(name, 0) >= OTHERS_BEATS]
        return bool(others) and len(wrote) >= OTHERS_SHARE * len(others)

    def slow_storage(self, clock: float) -> str:
        """Say once that the signs of all nodes are late together, which is the shared file system and no node."""
        late = min((clock - known.seen_at for known in self._hosts.values()), default=0.0)
        if not self.silent_s or late <= SLOW_S:
            self._storage_told = self._storage_told and late > self.silent_s
            return ""
        if self._storage_told:
            return ""
        self._storage_told = True
        return (
            f"no node has given a sign of life for {late:.0f} s: the shared file system is slow or stands still (nodes "
            "do not fall silent all at once)"
        )
