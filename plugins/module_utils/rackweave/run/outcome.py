"""How a job ended, and which rank began it, from what the ranks, the launchers and Slurm wrote down.

This is structured evidence only; what logs say is read by ``watch``. torchrun's own root cause is not used: it is the
first failure that one agent *observed*, which is a victim whenever the cause sits on another node.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .exit_codes import SAVED, meaning
from .plan_file import RankPlace

_SIGTERM = -15
TOLD_TO_END = "ended by SIGTERM"  # how the trainer's result of a terminated rank begins


@dataclass(frozen=True)
class JobEnd:
    """The real end state of a job; ``ok`` is what the play reports, ``reason`` what the batch script wrote last."""

    ok: bool
    saved: bool
    state: str
    code: int | None
    sentence: str
    reason: str = ""


@dataclass(frozen=True)
class Blame:
    """Who began it and why; ``kind``: killed, stopped, error, lost_host, lost, hung, numbers or none."""

    kind: str
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    sentence: str
    evidence: tuple[str, ...] = ()

    @property
    def culprit(self) -> str:
        """``rank:N`` for ranks, ``host:NAME`` for whole hosts, comma separated; ``none`` where nobody is named."""
        if self.ranks:
            return ",".join(f"rank:{rank}" for rank in self.ranks)
        return ",".join(f"host:{host}" for host in self.hosts) or "none"


NOBODY = Blame("none", (), (), "nothing that the ranks and launchers wrote names a culprit")


def judge_end(state: str, exit_code: int | None, end: Mapping[str, Any] | None) -> JobEnd:
    """Return the end of a job from Slurm's final state and what the batch script wrote last.

    Args:
        state: Slurm's final state, or ``UNKNOWN`` where Slurm has forgotten the job.
        exit_code: of the batch script as Slurm reports it; None where unknown.
        end: content of ``end.json``; None where the script was ended before it could write.
    """
    code = end["code"] if end is not None else exit_code
    reason = str(end["reason"]) if end is not None else ""
    if state == "COMPLETED" or (state == "UNKNOWN" and code == 0):
        return JobEnd(True, False, "COMPLETED", 0, "the job ended well")
    if code == SAVED and state in ("FAILED", "UNKNOWN"):
        return JobEnd(True, True, state, code, "the job saved on request; launch again to continue")
    if state in ("FAILED", "UNKNOWN") and code is not None:
        return JobEnd(False, False, "FAILED", code, f"the job FAILED ({meaning(code)})", reason)
    words = {
        "CANCELLED": "was cancelled",
        "TIMEOUT": "reached its time limit before it could save",
        "NODE_FAIL": "lost a node",
        "OUT_OF_MEMORY": "ran out of memory",
        "PREEMPTED": "was preempted",
    }
    return JobEnd(False, False, state, code, f"the job {words.get(state, 'ended')} ({state})", reason)


def requeued_end(end: Mapping[str, Any] | None) -> JobEnd:
    """Return how an attempt ended whose job starts again; None for a script that Slurm ended with its node."""
    if end is None:
        return JobEnd(False, False, "NODE_FAIL", None, "the attempt was ended by Slurm, which starts the job again")
    code = end["code"]
    words = f"the attempt ended ({meaning(code)}) and the job starts again"
    return JobEnd(code == SAVED, code == SAVED, "REQUEUED", code, words, str(end["reason"]))


def blame(
    places: Iterable[RankPlace],
    results: Mapping[int, Mapping[str, Any]],
    exits: Mapping[str, Mapping[str, Any]],
    phases: Mapping[int, Mapping[str, Any]],
) -> Blame:
    """Return who began the failure of an attempt, the surest evidence first.

    Args:
        places: the plan's rank table.
        results: ``result/<rank>.json`` by rank.
        exits: ``logs/<host>/exit.json`` by host.
        phases: ``phase/<rank>.json`` by rank.
    """
    host_of = {place.rank: place.host for place in places}
    # A rank that was told to end knows nothing of the cause, so it counts as one that wrote nothing.
    results = {rank: item for rank, item in results.items() if not str(item.get("reason")).startswith(TOLD_TO_END)}
    seen = [(host, row) for host, found in exits.items() for row in found.get("ranks", [])]
    return (
        _killed(host_of, seen)
        or _stopped(host_of, seen)
        or _own_error(host_of, results)
        or _lost_host(host_of, results, exits)
        or _lost(host_of, results, seen)
        or _behind(host_of, results, phases)
        or NOBODY
    )


def _killed(host_of: Mapping[int, str], seen: list[tuple[str, Any]]) -> Blame | None:
    rows = [row for _, row in seen if not row["result"] and (row.get("exit_code") or 0) < 0]
    rows = [row for row in rows if row["exit_code"] != _SIGTERM]
    if not rows:
        return None
    first = min(rows, key=lambda row: row.get("gone") or "~")
    rank, number = first["rank"], -first["exit_code"]
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    host = host_of.get(rank, "an unknown host")
    return Blame("killed", (rank,), (host,), f"rank {rank} on {host} was killed by {name}", _rows_as_lines([first]))


def _stopped(host_of: Mapping[int, str], seen: list[tuple[str, Any]]) -> Blame | None:
    rows = [row for _, row in seen if row.get("stopped")]
    if not rows:
        return None
    ranks = tuple(sorted(row["rank"] for row in rows))
    sentence = f"{_named(ranks, host_of)} stood still (process state T) while the others waited"
    return Blame("stopped", ranks, _hosts(ranks, host_of), sentence, _rows_as_lines(rows))


def _own_error(host_of: Mapping[int, str], results: Mapping[int, Mapping[str, Any]]) -> Blame | None:
    own = {rank: result for rank, result in results.items() if result.get("exit") == "stop"}
    if not own:
        return None
    reason = next(iter(own.values())).get("reason")
    blamed = tuple(sorted({rank for item in own.values() for rank in item.get("blames") or () if rank in host_of}))
    lines = tuple(f"result/{rank}.json: {result.get('reason')}" for rank, result in sorted(own.items())[:8])
    if blamed:
        return Blame(
            "error", blamed, _hosts(blamed, host_of), f"{_named(blamed, host_of)} began it: {reason}", lines[:1]
        )
    if len(own) == len(host_of) and len({str(result.get("reason")) for result in own.values()}) == 1:
        return Blame("error", (), (), f"every rank stopped with the same error: {reason}", lines[:1])
    ranks = tuple(sorted(own))
    return Blame("error", ranks, _hosts(ranks, host_of), f"{_named(ranks, host_of)} stopped: {reason}", lines)


def _lost_host(
    host_of: Mapping[int, str], results: Mapping[int, Mapping[str, Any]], exits: Mapping[str, Any]
) -> Blame | None:
    silent = [host for host in dict.fromkeys(host_of.values()) if host not in exits]
    silent = [host for host in silent if not any(host_of[rank] == host for rank in results if rank in host_of)]
    if not silent or len(silent) == len(set(host_of.values())):
        return None
    sentence = f"{', '.join(silent)} fell silent: neither its launcher nor its ranks wrote how they ended"
    return Blame("lost_host", (), tuple(silent), sentence)


def _lost(
    host_of: Mapping[int, str], results: Mapping[int, Mapping[str, Any]], seen: list[tuple[str, Any]]
) -> Blame | None:
    rows = [row for _, row in seen if not row["result"] and row.get("gone") and row["rank"] not in results]
    if not rows:
        return None
    first = min(rows, key=lambda row: str(row["gone"]))
    rank = first["rank"]
    host = host_of.get(rank, "an unknown host")
    return Blame("lost", (rank,), (host,), f"rank {rank} on {host} was the first to go, without a result",
                 _rows_as_lines([first]))  # fmt: skip


def _behind(
    host_of: Mapping[int, str], results: Mapping[int, Mapping[str, Any]], phases: Mapping[int, Mapping[str, Any]]
) -> Blame | None:
    """The ranks that did not notice the hang are its cause: peers raise at the time-out, the hung rank cannot."""
    quiet = tuple(sorted(rank for rank in host_of if rank in phases and rank not in results))
    if not quiet or len(quiet) > max(1, len(host_of) // 2):
        return None
    lines = tuple(
        f"phase/{rank}.json: {phases[rank].get('phase')} at step {phases[rank].get('step')}" for rank in quiet
    )
    sentence = f"{_named(quiet, host_of)} wrote no result while the others gave up waiting"
    return Blame("hung", quiet, _hosts(quiet, host_of), sentence, lines)


def _hosts(ranks: Iterable[int], host_of: Mapping[int, str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(host_of[rank] for rank in ranks if rank in host_of))


def _named(ranks: tuple[int, ...], host_of: Mapping[int, str]) -> str:
    named = [f"rank {rank} on {host_of.get(rank, 'an unknown host')}" for rank in ranks[:4]]
    more = f" and {len(ranks) - 4} more" if len(ranks) > 4 else ""
    return ", ".join(named) + more


def _rows_as_lines(rows: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    return tuple(
        f"launcher: rank {row['rank']} (pid {row.get('pid')}) exit code {row.get('exit_code')}, "
        f"stopped {row.get('stopped') or '-'}, gone {row.get('gone') or '-'}"
        for row in rows
    )
