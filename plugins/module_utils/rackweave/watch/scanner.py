"""One pass over all evidence: a fast filter, then tables and scenes; memory stays bounded whatever is fed."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import ParseError
from .attempt import Attempt
from .evidence import Store
from .failures import LITERALS as FAILURE_LITERALS
from .failures import FailureTables
from .flight import rank_of, read_dump
from .lifecycle import LITERALS as LIFE_LITERALS
from .lifecycle import Lifecycle
from .links import LITERALS as LINK_LITERALS
from .links import Links
from .peers import LITERALS as PEER_LITERALS
from .peers import PeerReports
from .phases import LITERALS as PHASE_LITERALS
from .phases import Phases
from .port_rates import LITERALS as RATE_LITERALS
from .port_rates import PortRates
from .prefix import YEARLESS, Line, lines_of, parse_time, take_apart
from .sections import LITERALS as SECTION_LITERALS
from .sections import Sections
from .series import LITERALS as SERIES_LITERALS
from .series import Series, as_record
from .signature import Signature, quoted
from .signatures import SIGNATURES
from .text import as_chunks, clean, split_lines
from .timers import LITERALS as TIMER_LITERALS
from .timers import RankTimers
from .transport import LITERALS as TRANSPORT_LITERALS
from .transport import Transport

_DIGITS = b"0123456789"
_DEFAULT_RANK = re.compile(r"\[PG ID 0 PG GUID 0(?:\(default_pg\))? Rank (?P<rank>\d+)\]")
# Lines that differ only in digits share one decision; the cache is emptied when it grows past this.
CACHE_SIZE = 50_000
# Of one shape of line this many are read; beyond it one in STORM_SAMPLE.
STORM_LINES = 20_000
STORM_SAMPLE = 32
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
        continues: a log that goes on where the source before it ends, as the next part of a rotated log does.
    """

    name: str
    lines: str | bytes | Iterable[str | bytes]
    host: str | None = None
    rank: int | None = None
    kind: str = "log"
    continues: bool = False


@dataclass
class Scan:
    """State of one pass."""

    store: Store = field(default_factory=Store)
    series: Series = field(default_factory=Series)
    life: Lifecycle = field(default_factory=Lifecycle)
    phases: Phases = field(default_factory=Phases)
    transport: Transport = field(default_factory=Transport)
    links: Links = field(default_factory=Links)
    rates: PortRates = field(default_factory=PortRates)
    failures: FailureTables = field(default_factory=FailureTables)
    peers: PeerReports = field(default_factory=PeerReports)
    attempt: Attempt = field(default_factory=Attempt)
    sections: Sections = field(default_factory=Sections)
    timers: RankTimers = field(default_factory=RankTimers)
    oom_phase: dict[int, str | None] = field(default_factory=dict)
    lines: int = 0
    names: list[str] = field(default_factory=list)
    parts: list[tuple[int, str]] = field(default_factory=list)
    year: int | None = None
    dumps: dict[int, dict[str, object]] = field(default_factory=dict)
    labels: dict[int, set[str]] = field(default_factory=dict)

    def feed(self, source: Source) -> None:
        """Read one source to its end."""
        if not (source.continues and self.names):
            self.names.append(source.name)
        number = len(self.names) - 1
        self.parts.append((self.lines, source.name))
        if source.kind == "events":
            self._events(source, number)
            return
        if source.kind == "flight":
            self._dump(source)
            return
        if source.kind != "log":
            text = b"".join(as_chunks(source.lines))[:MAX_RECORD_BYTES].decode("utf-8", "replace")
            self.attempt.take(source.kind, text, source.rank, source.host)
            return
        chooser = Chooser()
        position = self.lines
        raw = b""
        for following in split_lines(as_chunks(source.lines)):
            before, raw = raw, following
            position += 1
            shape = raw.translate(None, _DIGITS)
            entries = chooser.entries(shape)
            if not entries:
                continue
            if entries[0] in _FAST and self._fast(entries, shape, raw, position, number):
                continue
            if chooser.is_storm(shape):
                continue
            text = clean(raw)
            self.sections.before = before
            useful = self._lines(text, (position, number), entries, source, chooser)
            if useful != entries:
                chooser.keep(shape, useful)
            if useful == ("series",):
                self.series.learn(shape, text)
        self.lines = position

    def _lines(self, text: str, at: tuple[int, int], entries: Entries, source: Source, chooser: Chooser) -> Entries:
        """Show a line, or the lines of the message that it holds, to all who want them."""
        lines = lines_of(text, *at)
        if len(lines) == 1 and lines[0].full is text:
            return self._line(lines[0], entries, source)
        for line in lines:  # quotes are escaped in a record, so its shape does not tell who wants the message
            self._line(line, chooser.entries(_shape(line.full)), source)
        return entries

    def _dump(self, source: Source) -> None:
        """Read a flight-recorder dump; one that cannot be read is reported, not fatal."""
        rank = source.rank if source.rank is not None else rank_of(source.name)
        data = b"".join(as_chunks(source.lines))
        try:
            dump = read_dump(data, source.name)
        except ParseError as error:
            self.attempt.collectors[f"flight:{source.name}"] = f"failed: {error}"
            return
        if rank is not None:
            self.dumps[rank] = dump

    def _fast(self, entries: Entries, shape: bytes, raw: bytes, position: int, number: int) -> bool:
        """Lines that come by the hundred thousand in a healthy job: known step lines and channel lines."""
        if entries == ("series",):
            return self.series.feed_known(shape, raw, position, number)
        return entries == ("transport",) and self.transport.feed_raw(raw)

    def _line(self, line: Line, entries: Entries, source: Source) -> Entries:
        """Show a line to all who want it; those who can never want a line of this shape are left out of the result."""
        line = self._labelled(line)
        if (source.host and line.host is None) or (source.rank is not None and line.rank is None):
            line = _with_origin(line, source)
        if line.host is None and line.source in self.sections.hosts:
            line = replace(line, host=self.sections.hosts[line.source])
        if line.local_rank is not None and line.rank is None and line.host:
            known = self.store.local_ranks.get((line.host, line.local_rank))
            line = _with_rank(line, known) if known is not None else line
        if line.rank is None and "Rank " in line.text:
            line = _with_default_rank(line)
        if line.rank is not None and line.host:
            self.store.learn_rank(line.rank, line.host)
        if line.time is not None and line.time.year > YEARLESS:
            self.year = line.time.year
        explained = False
        useful: list[Signature | str] = []
        for entry in entries:
            if isinstance(entry, str):
                if self._scene(entry, line):
                    useful.append(entry)
                continue
            if explained and entry.diagnosis == "app.exception":
                useful.append(entry)
                continue
            matched = self._signature(entry, line)
            explained = explained or (matched and not entry.diagnosis.startswith("fact:"))
            if matched or entry.reads_digits:
                useful.append(entry)
        return tuple(useful)

    def _labelled(self, line: Line) -> Line:
        """Once a word without a digit was seen to be the label of a host, it is one in front of any line."""
        known = self.labels.get(line.source)
        if line.host is not None:
            if not any(map(str.isdigit, line.host)) and line.full.startswith(line.host + ":"):
                self.labels.setdefault(line.source, set()).add(line.host)
            return line
        label, found, rest = line.full.partition(": ") if known else ("", "", "")
        if not found or known is None or label not in known:
            return line
        inner = take_apart(rest, line.position, line.source)
        return replace(inner, full=line.full, host=inner.host or label)

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

    def name_of(self, source: int, position: int) -> str:
        """The file in which a line stands; lines are counted over all files."""
        at = bisect_left(self.parts, (position, "")) - 1
        if position > 0 and at >= 0:
            return self.parts[at][1]
        return self.names[source] if source < len(self.names) else "log"

    def finish(self) -> None:
        """Let the tables read what ranks wrote into their result files."""
        number = len(self.names)
        self.names.append("result")
        self.parts.append((self.lines, "result"))
        chooser = Chooser()
        for rank, host, reason in self.attempt.reasons():
            for text in reason.splitlines()[-40:]:
                self.lines += 1
                line = Line(text, text, host, rank, None, None, False, self.lines, number)
                self._line(
                    line,
                    tuple(entry for entry in chooser.entries(_shape(text)) if isinstance(entry, Signature)),
                    _RESULTS,
                )
        for rank, name in self.attempt.hosts.items():
            self.store.learn_rank(rank, name)

    def _signature(self, signature: Signature, line: Line) -> bool:
        """Record a match; True if there was one."""
        text = line.full if signature.whole else line.text
        match = signature.search(text)
        if match is None or quoted(text, match.start()):
            return False
        self.store.add(signature, line, match.groupdict())
        if signature.diagnosis == "mem.cuda_oom" and len(self.oom_phase) < 4096:
            self.oom_phase.setdefault(line.position, self.phases.at(line, self.series.count > 0))
        return True

    def _scene(self, name: str, line: Line) -> bool:
        """Show a line to one scene; False if the scene has no use for lines of this shape."""
        if name == "series":
            taken = self.series.feed(line)
            if taken and line.time is not None:
                self.life.see_app_time(line.time)
            return taken
        if name == "life":
            if "Traceback (most recent" in line.text:
                self.phases.new_traceback(line)
                return True
            return self.life.feed(line)
        if name == "failures":
            return self.failures.feed(line, self.store)
        scene = {"phases": self.phases, "transport": self.transport, "links": self.links, "rates": self.rates,
                 "peers": self.peers, "sections": self.sections, "timers": self.timers}[name]  # fmt: skip
        return scene.feed(line)  # type: ignore[attr-defined,no-any-return]


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


def _with_default_rank(line: Line) -> Line:
    """In the default group, and only there, a rank of a group is the rank of the job."""
    match = _DEFAULT_RANK.search(line.text)
    return _with_rank(line, int(match["rank"])) if match else line


def _with_rank(line: Line, rank: int) -> Line:
    return Line(line.text, line.full, line.host, rank, None, line.time, line.kernel, line.position, line.source)


Entries = tuple["Signature | str", ...]


def _users() -> dict[str, list[Signature | str]]:
    """Which tables and scenes want a line that contains a literal."""
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
        "rates": RATE_LITERALS,
        "failures": FAILURE_LITERALS,
        "peers": PEER_LITERALS,
        "sections": SECTION_LITERALS,
        "timers": TIMER_LITERALS,
    }
    for name, literals in scenes.items():
        for literal in {literal.lower() for literal in literals}:
            users.setdefault(literal, []).append(name)
    return users


def _fragments(literals: Iterable[str]) -> dict[str, list[str]]:
    """The longest piece without a space of each literal: it lies within one word of every matching line."""
    pieces: dict[str, list[str]] = {}
    for literal in literals:
        piece = max(literal.split(), key=len, default=literal)
        pieces.setdefault(piece, []).append(literal)
    return pieces


def _by_start(pieces: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Pieces by their first three letters."""
    found: dict[str, tuple[str, ...]] = {}
    for piece in pieces:
        if len(piece) >= 3:
            found[piece[:3]] = (*found.get(piece[:3], ()), piece)
    return found


def _trie(words: Iterable[str]) -> re.Pattern[str]:
    """One expression that finds any of the words; as a tree it is several times faster than a list of alternatives."""
    root: dict[str, Any] = {}
    for word in words:
        node = root
        for character in word:
            if "" in node:
                break  # a shorter word ends here and is found first
            node = node.setdefault(character, {})
        else:
            node.clear()
            node[""] = {}
    return re.compile(_branch(root))


def _branch(node: dict[str, Any]) -> str:
    if "" in node:
        return ""
    parts = [re.escape(character) + _branch(below) for character, below in sorted(node.items())]
    return parts[0] if len(parts) == 1 else "(?:" + "|".join(parts) + ")"


_USERS = _users()
_FRAGMENTS = _fragments(_USERS)
_ANY_FRAGMENT = _trie(_FRAGMENTS)
_SHORT_PIECES = tuple(piece for piece in _FRAGMENTS if len(piece) < 3)
_BY_START = _by_start(_FRAGMENTS)
_ORDER = {
    name: at
    for at, name in enumerate(
        ("phases", "life", "series", "transport", "links", "rates", "failures", "peers", "sections", "timers")
    )
}
_FAST = ("series", "transport")
_RESULTS = Source("result", "")


class Chooser:
    """Decide which tables and scenes want a line; decisions are kept per shape and per word."""

    def __init__(self) -> None:
        """Begin with empty caches."""
        self._shapes: dict[bytes, Entries] = {}
        self._words: dict[bytes, tuple[str, ...]] = {}
        self._seen: dict[bytes, int] = {}

    def entries(self, shape: bytes) -> Entries:
        """Who wants a line of this shape (the line without its digits)."""
        known = self._shapes.get(shape)
        if known is None:
            if len(self._shapes) >= CACHE_SIZE:
                self._shapes.clear()
                self._seen.clear()
            known = self._shapes[shape] = self._choose(shape)
        return known

    def keep(self, shape: bytes, entries: Entries) -> None:
        """Remember who is left for lines of this shape."""
        self._shapes[shape] = entries

    def is_storm(self, shape: bytes) -> bool:
        """Whether so many lines of this shape were read that only a sample of further ones is worth the time."""
        count = self._seen.get(shape, 0) + 1
        self._seen[shape] = count
        return count > STORM_LINES and count % STORM_SAMPLE != 0

    def _choose(self, shape: bytes) -> Entries:
        literals: list[str] = []
        fresh: list[bytes] = []
        for word in shape.lower().split():
            wanted = self._words.get(word)
            if wanted is None:
                fresh.append(word)
            elif wanted:
                literals.extend(wanted)
        if fresh:
            self._learn(fresh, literals)
        if not literals:
            return ()
        text = clean(shape).lower()
        found: dict[Signature | str, None] = {}
        for literal in literals:
            if literal in text:
                for entry in _USERS[literal]:
                    found[entry] = None
        return tuple(sorted(found, key=_place))

    def _learn(self, fresh: list[bytes], literals: list[str]) -> None:
        """Remember new words; all of them together are dismissed at once where none can matter."""
        if len(self._words) >= 4 * CACHE_SIZE:
            self._words.clear()
        together = b" ".join(fresh).decode("latin-1")
        matters = _ANY_FRAGMENT.search(together) is not None
        for word in fresh:
            wanted = _wanted(word.decode("latin-1")) if matters else ()
            if len(word) <= 64:
                self._words[word] = wanted
            literals.extend(wanted)


def _place(entry: Signature | str) -> int:
    """Scenes first (they give the phase), the catch-all for exceptions last."""
    if isinstance(entry, str):
        return _ORDER.get(entry, 99)
    return 101 if entry.diagnosis == "app.exception" else 100


def _wanted(word: str) -> tuple[str, ...]:
    """Literals whose longest piece stands in a word; pieces are found by their first three letters."""
    found: dict[str, None] = {}
    for piece in _SHORT_PIECES:
        if piece in word:
            found.update(dict.fromkeys(_FRAGMENTS[piece]))
    for at in range(len(word) - 2):
        for piece in _BY_START.get(word[at : at + 3], ()):
            if word.startswith(piece, at):
                found.update(dict.fromkeys(_FRAGMENTS[piece]))
    return tuple(found)


def _shape(text: str) -> bytes:
    return text.encode("utf-8", "replace").translate(None, _DIGITS)
