"""One pass over all evidence: a fast filter, then tables and scenes; memory stays bounded whatever is fed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from .attempt import Attempt
from .evidence import Store
from .failures import LITERALS as FAILURE_LITERALS
from .failures import FailureTables
from .lifecycle import LITERALS as LIFE_LITERALS
from .lifecycle import Lifecycle
from .links import LITERALS as LINK_LITERALS
from .links import Links
from .peers import LITERALS as PEER_LITERALS
from .peers import PeerReports
from .phases import LITERALS as PHASE_LITERALS
from .phases import Phases
from .prefix import Line, parse_time, take_apart
from .series import LITERALS as SERIES_LITERALS
from .series import Series, as_record
from .signature import Signature, quoted
from .signatures import SIGNATURES
from .text import as_chunks, clean, split_lines
from .transport import LITERALS as TRANSPORT_LITERALS
from .transport import Transport

_DIGITS = b"0123456789"
# Lines that differ only in digits share one decision; the cache is emptied when it grows past this.
_CACHE_SIZE = 50_000
# Result, phase and placement files are small; more than this of one is not read.
MAX_RECORD_BYTES = 1 << 20


@dataclass(frozen=True)
class Source:
    """A stream of evidence.

    Attributes:
        name: for evidence lines.
        lines: text, bytes, or an iterable of either (chunks or lines).
        host, rank: who wrote it, where the path says so.
        kind: ``log``, or ``events`` / ``result`` / ``phase`` / ``attempt`` for files of an attempt directory.
    """

    name: str
    lines: str | bytes | Iterable[str | bytes]
    host: str | None = None
    rank: int | None = None
    kind: str = "log"


@dataclass
class Scan:
    """State of one pass."""

    store: Store = field(default_factory=Store)
    series: Series = field(default_factory=Series)
    life: Lifecycle = field(default_factory=Lifecycle)
    phases: Phases = field(default_factory=Phases)
    transport: Transport = field(default_factory=Transport)
    links: Links = field(default_factory=Links)
    failures: FailureTables = field(default_factory=FailureTables)
    peers: PeerReports = field(default_factory=PeerReports)
    attempt: Attempt = field(default_factory=Attempt)
    oom_phase: dict[int, str | None] = field(default_factory=dict)
    lines: int = 0
    names: list[str] = field(default_factory=list)
    last_seen: Line | None = None
    year: int | None = None
    open_traceback: dict[tuple[int, int | None], bool] = field(default_factory=dict)

    def feed(self, source: Source) -> None:
        """Read one source to its end."""
        number = len(self.names)
        self.names.append(source.name)
        if source.kind == "events":
            self._events(source, number)
            return
        if source.kind != "log":
            text = b"".join(as_chunks(source.lines))[:MAX_RECORD_BYTES].decode("utf-8", "replace")
            self.attempt.take(source.kind, text, source.rank, source.host)
            return
        cache: dict[bytes, tuple[Signature | str, ...]] = {}
        position = self.lines
        for raw in split_lines(as_chunks(source.lines)):
            position += 1
            key = raw.translate(None, _DIGITS)
            entries = cache.get(key)
            if entries is None:
                entries = _select(clean(raw))
                if len(cache) >= _CACHE_SIZE:
                    cache.clear()
                cache[key] = entries
            if entries:
                self._line(take_apart(clean(raw), position, number), entries, source)
        self.lines = position

    def _line(self, line: Line, entries: tuple[Signature | str, ...], source: Source) -> None:
        if (source.host and line.host is None) or (source.rank is not None and line.rank is None):
            line = _with_origin(line, source)
        if line.local_rank is not None and line.rank is None and line.host:
            known = self.store.local_ranks.get((line.host, line.local_rank))
            line = _with_rank(line, known) if known is not None else line
        if line.rank is not None and line.host:
            self.store.learn_rank(line.rank, line.host)
        if line.time is not None and line.time.year > 1904:
            self.year = line.time.year
        self.last_seen = line
        for entry in entries:
            if isinstance(entry, Signature):
                self._signature(entry, line)
            else:
                self._scene(entry, line)

    def _events(self, source: Source, number: int) -> None:
        """Read our trainer's event stream; a torn last line is skipped."""
        for raw in split_lines(as_chunks(source.lines)):
            self.lines += 1
            record = as_record(clean(raw))
            if record is None:
                continue
            stamp = record.get("time")
            moment = parse_time(stamp) if isinstance(stamp, str) else None
            rank = record.get("rank")
            line = Line(raw.decode("utf-8", "replace"), clean(raw), None, rank if isinstance(rank, int) else None, None,
                        moment, False, self.lines, number)  # fmt: skip
            if moment is not None:
                self.life.see_app_time(moment)
                self.year = moment.year
            kind = record.get("kind")
            if kind == "step":
                self.series.feed_event(record, line)
            elif kind == "phase":
                self._own_phase(record, line)
            elif kind == "end":
                self.life.end_position[number] = self.lines
                self.life.end = moment

    def _own_phase(self, record: dict[str, object], line: Line) -> None:
        phase = record.get("phase")
        if not isinstance(phase, str):
            return
        self.phases.own[line.rank if line.rank is not None else 0] = phase
        if phase in ("save", "evaluate", "checkpoint_load", "model_build", "optimizer_init", "nccl_init"):
            self.life.quiet = line
            self.life.saving = line if phase == "save" else self.life.saving

    def finish(self) -> None:
        """Let the tables read what ranks wrote into their result files."""
        number = len(self.names)
        self.names.append("result")
        for rank, host, reason in self.attempt.reasons():
            for text in reason.splitlines()[-40:]:
                self.lines += 1
                line = Line(text, text, host, rank, None, None, False, self.lines, number)
                for entry in _select(text):
                    if isinstance(entry, Signature):
                        self._signature(entry, line)
        for rank, name in self.attempt.hosts.items():
            self.store.learn_rank(rank, name)

    def _signature(self, signature: Signature, line: Line) -> None:
        match = signature.search(line.text)
        if match is None or quoted(line.text, match.start()):
            return
        self.store.add(signature, line, match.groupdict())
        if signature.diagnosis == "mem.cuda_oom" and len(self.oom_phase) < 4096:
            self.oom_phase.setdefault(line.position, self.phases.at(line, self.series.count > 0))

    def _scene(self, name: str, line: Line) -> None:
        if name == "series":
            if self.series.feed(line) and line.time is not None:
                self.life.see_app_time(line.time)
        elif name == "life":
            self.life.feed(line)
            if "Traceback (most recent" in line.text:
                self.phases.new_traceback(line)
        elif name == "phases":
            self.phases.feed(line)
        elif name == "transport":
            self.transport.feed(line)
        elif name == "links":
            self.links.feed(line)
        elif name == "failures":
            self.failures.feed(line, self.store)
        elif name == "peers":
            self.peers.feed(line)


def _with_origin(line: Line, source: Source) -> Line:
    return Line(
        line.text,
        line.full,
        line.host or source.host,
        line.rank if line.rank is not None else source.rank,
        line.local_rank,
        line.time,
        line.kernel,
        line.position,
        line.source,
    )


def _with_rank(line: Line, rank: int) -> Line:
    return Line(line.text, line.full, line.host, rank, None, line.time, line.kernel, line.position, line.source)


def _build_table() -> tuple[list[str], dict[str, list[tuple[str, list[Signature | str]]]]]:
    """Group all literals under short common cores, so that most lines are dismissed by few searches."""
    users: dict[str, list[Signature | str]] = {}
    for signature in SIGNATURES:
        for literal in signature.needs:
            users.setdefault(literal, []).append(signature)
    scenes = {
        "phases": PHASE_LITERALS,
        "life": (*LIFE_LITERALS, "Traceback (most recent"),
        "series": SERIES_LITERALS,
        "transport": TRANSPORT_LITERALS,
        "links": LINK_LITERALS,
        "failures": FAILURE_LITERALS,
        "peers": PEER_LITERALS,
    }
    for name, literals in scenes.items():
        for literal in literals:
            users.setdefault(literal, []).append(name)
    return _cover(users)


def _cover(
    users: dict[str, list[Signature | str]],
) -> tuple[list[str], dict[str, list[tuple[str, list[Signature | str]]]]]:
    """Choose 3-letter cores greedily: each literal lies under one core that it contains."""
    grams: dict[str, set[str]] = {}
    for literal in users:
        size = min(3, len(literal))
        for at in range(len(literal) - size + 1):
            grams.setdefault(literal[at : at + size], set()).add(literal)
    left = set(users)
    chosen: dict[str, list[tuple[str, list[Signature | str]]]] = {}
    while left:
        core = max(grams, key=lambda gram: (len(grams[gram] & left), gram))
        covered = grams[core] & left
        chosen[core] = [(literal, users[literal]) for literal in sorted(covered)]
        left -= covered
    return list(chosen), chosen


_CORES, _LITERALS = _build_table()
_ORDER = {name: at for at, name in enumerate(("phases", "life", "series", "transport", "links", "failures", "peers"))}


def _select(text: str) -> tuple[Signature | str, ...]:
    """Which tables and scenes want lines like this one."""
    found: dict[Signature | str, None] = {}
    for core in _CORES:
        if core in text:
            for literal, wanting in _LITERALS[core]:
                if literal in text:
                    for entry in wanting:
                        found[entry] = None
    return tuple(sorted(found, key=lambda entry: _ORDER.get(entry, 99) if isinstance(entry, str) else 100))
