"""PyTorch flight-recorder dumps: a reader that executes nothing, and which rank did not come to the collective.

Dumps of NCCL carry the members of each group in ``pg_config``; those of gloo (measured with torch 2.13) leave it empty,
keep every state at ``scheduled`` and only set ``retired``: then members are who took part, completion is ``retired``.
"""

from __future__ import annotations

import io
import json
import pickle
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ..errors import ParseError

MAX_DUMP_BYTES = 256 << 20
_RANK_IN_NAME = re.compile(r"(\d+)(?:\.(?:pickle|pkl|json))?$")
# Operations whose element counts must agree on all ranks of a group.
_SAME_SIZE = re.compile(r"all_?reduce|broadcast|barrier|all_?gather|reduce_scatter", re.IGNORECASE)


class _Restricted(pickle.Unpickler):
    """Loads plain containers only: a dump needs no class, so one that names a class is hostile or foreign."""

    def find_class(self, module: str, name: str) -> object:
        raise pickle.UnpicklingError(f"the dump asks for {module}.{name}")

    def persistent_load(self, pid: object) -> object:
        raise pickle.UnpicklingError("the dump asks for a persistent object")


def read_dump(data: bytes, name: str = "dump") -> dict[str, object]:
    """Read one dump (pickle or JSON) without executing anything in it.

    Raises:
        ParseError: if it is too large, damaged, asks for a class, or is not a flight-recorder dump.
    """
    if len(data) > MAX_DUMP_BYTES:
        raise ParseError(
            f"{name}: {len(data)} bytes are more than the {MAX_DUMP_BYTES} read of one flight-recorder dump"
        )
    try:
        loaded = json.loads(data) if data[:1] == b"{" else _Restricted(io.BytesIO(data)).load()
    except (
        pickle.UnpicklingError, ValueError, EOFError, IndexError, KeyError, TypeError, AttributeError, MemoryError,
        OverflowError, RecursionError, ImportError, UnicodeDecodeError,
    ) as error:  # fmt: skip
        raise ParseError(f"{name}: not a readable flight-recorder dump: {error}") from error
    if not isinstance(loaded, dict) or not isinstance(loaded.get("entries"), list):
        raise ParseError(f"{name}: no flight-recorder dump: it has no list named entries")
    return loaded


def rank_of(name: str) -> int | None:
    """The rank in a dump's file name: ``nccl_trace_rank_3``, ``_dump_3``, ``rank_3.pickle``."""
    match = _RANK_IN_NAME.search(name)
    return int(match[1]) if match else None


@dataclass(frozen=True)
class Operation:
    """One collective of one rank."""

    sequence: int
    name: str
    sizes: str
    done: bool
    created_ns: int


@dataclass
class Group:
    """One process group as seen by all dumps."""

    name: str
    description: str
    members: set[int] = field(default_factory=set)
    known_members: bool = False
    last: dict[int, Operation] = field(default_factory=dict)
    pending: dict[int, Operation] = field(default_factory=dict)
    at: dict[int, dict[int, Operation]] = field(default_factory=lambda: defaultdict(dict))


@dataclass(frozen=True)
class GroupReport:
    """What one group waits for.

    Attributes:
        sequence: the first collective somebody of the group waits in; None if nobody waits.
        missing: members that have not come to it.
        mismatched: ranks whose operation or size differs from the majority's at one sequence number.
    """

    name: str
    description: str
    sequence: int | None
    operation: str
    waiting: tuple[int, ...]
    missing: tuple[int, ...]
    mismatched: tuple[int, ...]


@dataclass(frozen=True)
class FlightReport:
    """The analysis of all dumps of one incident.

    Attributes:
        diagnosis_class: ``hang.desync``, ``hang.collective_timeout`` or ``healthy``.
        culprits: global ranks: those missing that are not themselves waiting elsewhere, or those that disagree.
        without_dump: ranks that left no dump although they belong to a group.
        groups: a report for each group that is stuck.
        text: one sentence.
    """

    diagnosis_class: str
    culprits: tuple[int, ...]
    without_dump: tuple[int, ...]
    groups: tuple[GroupReport, ...]
    text: str


def analyse(dumps: Mapping[int, Mapping[str, object]], world_size: int | None = None) -> FlightReport:
    """Name the ranks behind a hang.

    Args:
        dumps: dump of each rank that left one, by global rank.
        world_size: number of ranks of the job, to see that the last ones left no dump; None takes the highest seen.
    """
    groups = _groups(dumps)
    expected = set(range(world_size if world_size else max(dumps, default=-1) + 1))
    for group in groups.values():
        if not group.known_members:
            group.members |= expected if _is_world(group) else set()
    reports = tuple(report for report in (_report(group) for group in groups.values()) if _is_stuck(report))
    silent = tuple(sorted((expected | {r for g in groups.values() for r in g.members}) - set(dumps)))
    return _conclude(reports, silent, groups)


def _groups(dumps: Mapping[int, Mapping[str, object]]) -> dict[str, Group]:
    groups: dict[str, Group] = {}
    for rank, dump in dumps.items():
        config = dump.get("pg_config")
        listed = config if isinstance(config, Mapping) else {}
        for entry in _entries(dump):
            name, description = _group_name(entry)
            group = groups.setdefault(name, Group(name, description))
            group.members.add(rank)
            _add(group, rank, entry)
        for key, value in listed.items():
            members = _members(value)
            if members:
                group = groups.setdefault(str(key), Group(str(key), _text(value, "desc")))
                group.members |= members
                group.known_members = True
    return groups


def _entries(dump: Mapping[str, object]) -> Iterable[Mapping[str, object]]:
    entries = dump.get("entries")
    return [entry for entry in entries if isinstance(entry, Mapping)] if isinstance(entries, list) else []


def _group_name(entry: Mapping[str, object]) -> tuple[str, str]:
    pair = entry.get("process_group")
    if isinstance(pair, (tuple, list)) and len(pair) == 2:
        return str(pair[0]), str(pair[1])
    return str(entry.get("pg_id", 0)), ""


def _members(value: object) -> set[int]:
    ranks = value.get("ranks") if isinstance(value, Mapping) else None
    if isinstance(ranks, str):
        return {int(number) for number in re.findall(r"\d+", ranks)}
    if isinstance(ranks, (list, tuple)):
        return {int(number) for number in ranks if str(number).isdigit()}
    return set()


def _text(value: object, key: str) -> str:
    return str(value.get(key, "")) if isinstance(value, Mapping) else ""


def _add(group: Group, rank: int, entry: Mapping[str, object]) -> None:
    if entry.get("is_p2p"):
        return
    sequence = entry.get("collective_seq_id", entry.get("seq_id"))
    if not isinstance(sequence, int):
        return
    created = entry.get("time_created_ns")
    operation = Operation(
        sequence,
        str(entry.get("profiling_name", "")),
        str(entry.get("input_sizes", "")),
        entry.get("state") == "completed" or bool(entry.get("retired")),
        created if isinstance(created, int) else 0,
    )
    group.at[sequence][rank] = operation
    if rank not in group.last or sequence >= group.last[rank].sequence:
        group.last[rank] = operation
    if not operation.done and (rank not in group.pending or sequence < group.pending[rank].sequence):
        group.pending[rank] = operation


def _is_world(group: Group) -> bool:
    return group.description == "default_pg" or (group.name == "0" and group.description in ("", "default_pg"))


def _report(group: Group) -> GroupReport:
    front = min((operation.sequence for operation in group.pending.values()), default=None)
    mismatched: tuple[int, ...] = ()
    for sequence in sorted(group.at):
        mismatched = _disagree(group.at[sequence])
        if mismatched:
            front = sequence if front is None else front
            break
    if front is None:
        return GroupReport(group.name, group.description, None, "", (), (), ())
    came = {rank for rank, operation in group.last.items() if operation.sequence >= front}
    waiting = {rank for rank, operation in group.pending.items() if operation.sequence == front}
    names = Counter(operation.name for operation in group.at[front].values())
    return GroupReport(
        group.name,
        group.description,
        front,
        names.most_common(1)[0][0] if names else "",
        tuple(sorted(waiting)),
        tuple(sorted(group.members - came)),
        mismatched,
    )


def _disagree(operations: Mapping[int, Operation]) -> tuple[int, ...]:
    """Ranks in the minority at one sequence number; a tie names nobody but is still a disagreement (all ranks)."""
    kinds = {rank: _kind(operation) for rank, operation in operations.items()}
    counts = Counter(kinds.values())
    if len(counts) < 2:
        return ()
    (usual, most), (_, second) = counts.most_common(2)
    if most == second:
        return tuple(sorted(kinds))
    return tuple(sorted(rank for rank, kind in kinds.items() if kind != usual))


def _kind(operation: Operation) -> str:
    return f"{operation.name} {operation.sizes}" if _SAME_SIZE.search(operation.name) else operation.name


def _is_stuck(report: GroupReport) -> bool:
    return report.sequence is not None and bool(report.missing or report.mismatched or report.waiting)


def _conclude(reports: tuple[GroupReport, ...], silent: tuple[int, ...], groups: Mapping[str, Group]) -> FlightReport:
    mismatched = {rank for report in reports for rank in report.mismatched}
    missing = {rank for report in reports for rank in report.missing}
    if not reports and not silent:
        return FlightReport("healthy", (), (), (), "no collective is pending on any rank")
    if mismatched:
        text = "; ".join(
            f"group {r.description or r.name}: ranks {_list(r.mismatched)} differ from the others at collective "
            f"{r.sequence}"
            for r in reports
            if r.mismatched
        )
        return FlightReport("hang.desync", tuple(sorted(mismatched)), silent, reports, text)
    waiting = {rank for report in reports for rank in report.waiting}
    culprits = missing - waiting or _first_stopped(missing, groups) or set(silent)
    stuck = [report for report in reports if report.missing]
    first = stuck[0] if stuck else None
    if first is None:
        text = f"no dump of ranks {_list(silent)}" if silent else "all members wait in the same collective"
        return FlightReport("hang.collective_timeout", tuple(sorted(culprits)), silent, reports, text)
    text = (
        f"ranks {_list(tuple(sorted(culprits)))} did not come to {first.operation} number {first.sequence} of group "
        f"{first.description or first.name}"
    )
    return FlightReport("hang.desync", tuple(sorted(culprits)), silent, reports, text)


def _first_stopped(missing: set[int], groups: Mapping[str, Group]) -> set[int]:
    """Where all missing ranks wait for each other in other groups: the one whose last call is oldest."""
    latest = {
        rank: max((g.last[rank].created_ns for g in groups.values() if rank in g.last), default=0) for rank in missing
    }
    return {min(latest, key=lambda rank: latest[rank])} if latest else set()


def _list(ranks: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, ranks[:16]))
    return shown + (f" and {len(ranks) - 16} more" if len(ranks) > 16 else "")
