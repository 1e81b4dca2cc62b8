"""What a scan collects: hits of signatures and findings of scenes, bounded in number whatever the input."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime

from .prefix import YEARLESS, Line, looks_like_host
from .signature import Signature

# Per signature, so that a storm of one message on thousands of hosts cannot use up the memory.
MAX_HITS = 4096
MAX_TEXT = 400


@dataclass(frozen=True)
class Finding:
    """One possible explanation, with whom it names and the line that says so."""

    diagnosis: str
    text: str
    ranks: frozenset[int] = frozenset()
    hosts: frozenset[str] = frozenset()
    depth: int = 30
    time: datetime | None = None
    position: int = 0
    source: int = 0
    role: str = "root"
    severity: str = ""
    action: str = ""
    phase: str | None = None
    kernel: bool = False
    printed_by: str | None = None
    peers: tuple[str, ...] = ()
    local_rank: int | None = None


@dataclass
class Hit:
    """The first line of one signature from one place, and how often it came."""

    signature: Signature
    line: Line
    groups: dict[str, str]
    count: int = 1
    last: int = 0
    last_time: datetime | None = None


@dataclass
class Store:
    """All hits of a scan, and what is known of the ranks' hosts."""

    hits: dict[str, dict[tuple[object, ...], Hit]] = field(default_factory=lambda: defaultdict(dict))
    host_of_rank: dict[int, str] = field(default_factory=dict)
    local_ranks: dict[tuple[str, int], int] = field(default_factory=dict)

    def add(self, signature: Signature, line: Line, groups: dict[str, str | None]) -> None:
        """Record one match; repetitions from the same place only count."""
        named = {key: value for key, value in groups.items() if value}
        key = (line.host, line.rank, line.source, *sorted(named.items()))
        table = self.hits[signature.name]
        hit = table.get(key)
        if hit is not None:
            hit.count += 1
            hit.last = line.position
            hit.last_time = line.time or hit.last_time
        elif len(table) < MAX_HITS:
            table[key] = Hit(signature, line, named, 1, line.position, line.time)

    def of(self, name: str) -> list[Hit]:
        """Hits of one signature (or fact) in order of appearance."""
        return sorted(self.hits.get(name, {}).values(), key=lambda hit: hit.line.position)

    def with_rank(self, finding: Finding) -> Finding:
        """Name the rank of a finding that knows only its number on its host, where a launcher's table tells it."""
        if finding.ranks or finding.local_rank is None or not self.local_ranks:
            return finding
        known = {rank for (host, local), rank in self.local_ranks.items() if local == finding.local_rank}
        if finding.printed_by is not None:
            known &= {self.local_ranks.get((finding.printed_by, finding.local_rank), -1)}
        return replace(finding, ranks=frozenset(known)) if len(known) == 1 else finding

    def learn_rank(self, rank: int, host: str) -> None:
        """Remember where a rank runs."""
        if len(self.host_of_rank) < 1 << 20:
            self.host_of_rank.setdefault(rank, host)


def to_finding(hit: Hit) -> Finding:
    """Turn a hit of a table into a finding, naming culprits as its signature says."""
    ranks: set[int] = set()
    hosts: set[str] = set()
    peers: list[str] = []
    for key, value in hit.groups.items():
        if key.startswith("ranks"):
            ranks.update(int(number) for number in re.findall(r"\d+", value))
        elif key.startswith("rank"):
            ranks.add(int(value))
        elif key.startswith("hosts"):
            hosts.update(expand_hosts(value))
        elif key.startswith("host"):
            hosts.add(value)
        elif key.startswith("peer"):
            peers.append(value)
        elif key == "node":
            hosts.add(value.rsplit("_", 2)[0])
    signature, line = hit.signature, hit.line
    if signature.blame in ("rank", "both") and not ranks and line.rank is None:
        ranks.update(told_ranks(line.text))
    if ranks and not hosts and not peers:
        hosts.update(beside_rank(line.text))
    if signature.blame in ("host", "both") and line.host and not hosts:
        hosts.add(line.host)
    if signature.blame in ("rank", "both") and line.rank is not None:
        ranks.add(line.rank)
    if signature.blame in ("host", "both") and not hosts and not ranks:
        hosts.update(told_hosts(line.text))
    return Finding(
        diagnosis=signature.diagnosis,
        text=line.full.strip()[:MAX_TEXT],
        ranks=frozenset(ranks),
        hosts=frozenset(hosts),
        depth=signature.depth,
        time=line.time,
        position=line.position,
        source=line.source,
        role=signature.role,
        severity=signature.severity,
        action=signature.action,
        kernel=line.kernel,
        printed_by=line.host,
        peers=tuple(peers),
        local_rank=line.local_rank if signature.blame in ("rank", "both") else _local(hit.groups),
    )


def finding_of(
    diagnosis: str,
    hit: Hit,
    depth: int,
    ranks: Iterable[int] = (),
    hosts: Iterable[str] = (),
    severity: str = "",
) -> Finding:
    """What several hits say together, shown by the line of one of them."""
    line = hit.line
    return Finding(
        diagnosis,
        line.full.strip()[:MAX_TEXT],
        ranks=frozenset(ranks),
        hosts=frozenset(hosts),
        depth=depth,
        time=line.time,
        position=line.position,
        source=line.source,
        severity=severity,
        kernel=line.kernel,
    )


def to_finding_as(hit: Hit, diagnosis: str, depth: int) -> Finding:
    """A fact's hit under another class."""
    return replace(to_finding(hit), diagnosis=diagnosis, depth=depth, role="root", severity="", action="", kernel=False)


def _local(groups: dict[str, str]) -> int | None:
    return int(groups["local"]) if "local" in groups else None


_BESIDE = re.compile(
    r"\b[Rr]ank[ =:#]*\d+[,;]? ?(?:\(|\bon |@ ?|(?:on )?(?:node|host)[ =:]+)'?(?P<host>[A-Za-z][\w.-]*\w)"
)


def beside_rank(text: str) -> Iterator[str]:
    """Hosts that a text gives to a rank: ``rank 5 (node2)``, ``rank 5 on node2``, ``rank 5, host=node2``."""
    for match in _BESIDE.finditer(text):
        if looks_like_host(match["host"]):
            yield match["host"]


_RANK = re.compile(r"(?<![\w-])(?<![Ll]ocal )[Rr]ank[ =:#]*(\d{1,7})\b(?! [Ss]kip)")


def told_ranks(text: str) -> set[int]:
    """The one rank that a text without a prefix names."""
    named = {int(number) for number in _RANK.findall(text)}
    return named if len(named) == 1 else set()


_TOLD = re.compile(
    r"\b(?:(?:[Oo]n|[Nn]ode|[Hh]ost|[Ss]erver|kubelet,?)(?: node| host)?[ =:]+'?|slurm(?:step)?d\[)"
    r"(?P<host>[a-z][a-z0-9.-]*[a-z0-9])\b(?![:/_])"
)


def told_hosts(text: str) -> Iterator[str]:
    """The one host that a text without a prefix names: ``GPU 3 on node7``; several would be some list."""
    named = {match["host"] for match in _TOLD.finditer(text) if looks_like_host(match["host"])}
    if len(named) == 1:
        yield from named


def expand_hosts(text: str) -> Iterator[str]:
    """Expand a Slurm host list, ``node[01-03,07],gpu5``; what cannot be read comes back as it is."""
    text = text.strip().rstrip(",;.:")
    depth, start, parts = 0, 0, []
    for at, character in enumerate(text):
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    parts.append(text[start:])
    for part in parts:
        yield from _expand_one(part)


def _expand_one(part: str) -> Iterator[str]:
    if "[" not in part or not part.endswith("]"):
        if part:
            yield part
        return
    front, _, inside = part[:-1].partition("[")
    for piece in inside.split(","):
        first, dash, last = piece.partition("-")
        if dash and _short_number(first) and _short_number(last) and int(last) - int(first) < 4096:
            for number in range(int(first), int(last) + 1):
                yield front + str(number).zfill(len(first))
        else:
            yield front + piece


def _short_number(text: str) -> bool:
    return text.isdecimal() and len(text) <= 9


def with_year(findings: Iterable[Finding], year: int | None) -> list[Finding]:
    """Put times that came without a year into the year of the dated lines."""
    if year is None:
        return list(findings)
    return [
        replace(finding, time=dated(finding.time, year)) if finding.time and finding.time.year == YEARLESS else finding
        for finding in findings
    ]


def dated(moment: datetime, year: int) -> datetime:
    """Replace the placeholder year; 29 February in a common year becomes 1 March."""
    if moment.year != YEARLESS:
        return moment
    try:
        return moment.replace(year=year)
    except ValueError:
        return moment.replace(year=year, month=3, day=1)
