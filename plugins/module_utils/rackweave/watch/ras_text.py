"""NCCL's RAS report as text (``ncclras``, NCCL 2.24 and later): dead, missing and odd ranks.

Ranks are listed one by one where few are alike: ``Rank 3 has launched up to operation 60 -- GPU 3 managed by ...`` if
it is alone, else a line that counts them with their rows below it. The rows are those of the *few*, which may be ahead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from .evidence import MAX_TEXT, Finding
from .prefix import Line

_HEADER = re.compile(
    r"^\s*(?:#(?P<group>\d+)-(?P<comm>\d+) \((?P<hash>[0-9a-f]+)\) )?"
    r"(?P<kind>MISMATCH|INCOMPLETE|DEAD|TIMEOUT|ERROR)\s*$"
)
_TOPIC = re.compile(r"Communicator ranks have different (?P<topic>\w+)")
_VALUE = (
    r"(?:launched up to operation (?P<op>\d+)|(?P<none>not launched any operations)|status (?P<status>[A-Z]+)|"
    r"reported (?P<error>.+?))"
)
_SEVERAL = re.compile(r"^\s*(?P<n>\d+) ranks have " + _VALUE + r"\s*$")
_RANK = re.compile(
    r"^\s*Rank (?P<rank>\d+)(?: (?:has )?" + _VALUE + r")? -- (?:GPU .*? managed by process \d+ on "
    r"node (?P<node>[\w.:%-]+)|\[process information not found\])"
)
_PROCESS = re.compile(r"Process \d+ on node (?P<node>[\w.:%-]+) managing GPU")
_NEW_REPORT = re.compile(r"^\s*Job summary\s*$")

LITERALS = (
    "MISMATCH",
    "INCOMPLETE",
    "DEAD",
    "TIMEOUT",
    "#-",  # how a communicator is called, without its digits
    "managed by process",
    "managing GPU",
    "launched up to operation",
    "not launched any operations",
    "ranks have status",
    "has status",
    "process information not found",
    "Communicator ranks have different",
    "Job summary",
)

# A lead of one operation is what a busy job looks like, unless only so small a share of the ranks is behind.
_FEW = 16
_MAX_RANKS = 4096
_MAX_COUNTS = 1024
# Where most ranks have one of these, the job is ending.
_ENDING = ("ABORT", "FINALIZE")


@dataclass
class _Counts:
    """How many ranks of a communicator have which count (or status), and those ranks that are listed."""

    line: Line
    report: int
    is_world: bool
    sizes: dict[int | str, int] = field(default_factory=dict)
    ranks: dict[int, int | str] = field(default_factory=dict)
    nodes: dict[int, str] = field(default_factory=dict)
    lines: dict[int, Line] = field(default_factory=dict)
    last: int | str | None = None
    before: tuple[int, int] | None = None

    def take(self, match: re.Match[str], line: Line) -> None:
        """Take the line of one rank; without a value of its own it has that of the line that counted it."""
        value = _value(match)
        if value is not None:
            self.sizes[value] = 1
        else:
            value = self.last
        if value is None or len(self.ranks) >= _MAX_RANKS:
            return
        rank = int(match["rank"])
        self.ranks[rank], self.lines[rank] = value, line
        if match["node"]:
            self.nodes[rank] = match["node"]

    def ends(self) -> tuple[int, int] | None:
        """The lowest and the highest count of operations; None for a status."""
        counts = [value for value in self.sizes if isinstance(value, int)]
        return (min(counts), max(counts)) if counts else None

    def odd(self, is_last_report: bool) -> tuple[int, set[int]]:
        """By how much ranks stand behind (1 for a status), and which."""
        ends = self.ends()
        if ends is None:
            return self._odd_status()
        low, high = ends
        behind = {rank for rank, value in self.ranks.items() if value == low}
        few = self.sizes.get(low, 0) * _FEW <= sum(self.sizes.values())
        stuck = self.before == ends and self.sizes.get(low, 0) * 2 <= sum(self.sizes.values())
        moving = self.before is not None and self.before[1] != high
        if high - low > 1 or (high - low == 1 and is_last_report and (stuck or (few and not moving))):
            return high - low, behind
        return 0, set()

    def _odd_status(self) -> tuple[int, set[int]]:
        rarest = min(self.sizes, key=lambda value: self.sizes[value], default=None)
        most = max(self.sizes, key=lambda value: self.sizes[value], default=None)
        if rarest is None or rarest == most or most in _ENDING:
            return 0, set()
        return 1, {rank for rank, value in self.ranks.items() if value == rarest}


@dataclass
class RasText:
    """Follow such reports; the block that is being read, per source."""

    blocks: dict[int, re.Match[str]] = field(default_factory=dict)
    reading: dict[int, _Counts] = field(default_factory=dict)
    counts: dict[tuple[str, str], _Counts] = field(default_factory=dict)
    dead_hosts: dict[str, Line] = field(default_factory=dict)
    dead_ranks: dict[int, Line] = field(default_factory=dict)
    report: int = 0

    def feed(self, line: Line) -> None:
        """Take one line that may be one of a report."""
        text = line.text
        if _NEW_REPORT.match(text):
            self.report += 1
        header = _HEADER.match(text)
        if header:
            self.blocks[line.source] = header
            self.reading.pop(line.source, None)
            return
        block = self.blocks.get(line.source)
        if block is None:
            return
        if block["kind"] == "MISMATCH":
            self._mismatch(line, block)
        elif block["kind"] in ("DEAD", "INCOMPLETE"):
            self._gone(line, block)

    def _mismatch(self, line: Line, block: re.Match[str]) -> None:
        topic = _TOPIC.search(line.text)
        if topic:
            self._open((block["hash"] or "", topic["topic"]), line, block)
            return
        counts = self.reading.get(line.source)
        several, one = _SEVERAL.match(line.text), _RANK.match(line.text)
        if several or one:
            counts = counts or self._open((block["hash"] or "", ""), line, block)
        if counts is not None and several:
            counts.last = _value(several)
            if counts.last is not None:
                counts.sizes[counts.last] = int(several["n"])
        elif counts is not None and one:
            counts.take(one, line)

    def _open(self, key: tuple[str, str], line: Line, block: re.Match[str]) -> _Counts:
        """Begin a comparison; the same one of an earlier report tells whether anything moves."""
        counts = _Counts(line, self.report, block["group"] in (None, "0") and block["comm"] in (None, "0"))
        earlier = self.counts.get(key)
        if earlier is not None:
            counts.before = earlier.ends()
        if earlier is not None or len(self.counts) < _MAX_COUNTS:
            self.counts[key] = counts
        self.reading[line.source] = counts
        return counts

    def is_incomplete(self, source: int) -> bool:
        """Whether a block about missing ranks is being read."""
        block = self.blocks.get(source)
        return block is not None and block["kind"] == "INCOMPLETE"

    def _gone(self, line: Line, block: re.Match[str]) -> None:
        rank, process = _RANK.match(line.text), _PROCESS.search(line.text)
        node = rank["node"] if rank else process["node"] if process else None
        if node:
            self.dead_hosts.setdefault(node, line)
        # In smaller communicators ranks are counted from zero again.
        if rank and block["group"] in (None, "0") and len(self.dead_ranks) < _MAX_RANKS:
            self.dead_ranks.setdefault(int(rank["rank"]), line)

    def findings(self) -> Iterator[Finding]:
        """Dead processes, or else the ranks that stand furthest behind."""
        if self.dead_hosts or self.dead_ranks:
            line = next(iter((self.dead_hosts or self.dead_ranks).values()))
            yield _finding("hang.process_dead", line, 38, frozenset(self.dead_ranks), frozenset(self.dead_hosts))
            return
        behind = [(*counts.odd(counts.report == self.report), counts) for counts in self.counts.values()]
        lag, ranks, counts = max(behind, key=lambda entry: (bool(entry[1]), entry[0]), default=(0, set(), None))
        if counts is None or not lag or not ranks:
            return
        hosts = frozenset(counts.nodes[rank] for rank in ranks if rank in counts.nodes)
        named = frozenset(ranks) if counts.is_world else frozenset()
        yield _finding("hang.desync", counts.lines[min(ranks)], 39, named, hosts, severity="error")


def _value(match: re.Match[str]) -> int | str | None:
    """What a line says of its ranks: operations, status or error."""
    if match["op"]:
        return int(match["op"])
    return 0 if match["none"] else match["status"] or match["error"]


def _finding(
    diagnosis: str, line: Line, depth: int, ranks: frozenset[int], hosts: frozenset[str], severity: str = ""
) -> Finding:
    return Finding(
        diagnosis,
        line.full.strip()[:MAX_TEXT],
        ranks=ranks,
        hosts=hosts,
        depth=depth,
        time=line.time,
        position=line.position,
        source=line.source,
        severity=severity,
    )
