"""Which nodes Slurm can give to a job, from ``sinfo --Node --noheader`` with a format that begins with ``%N|%T``."""

from __future__ import annotations

# sinfo(1), "NODE STATE CODES": a job that asks for such a node by name would wait, perhaps for ever.
_UNUSABLE = ("down", "drain", "fail", "unknown", "maint", "reboot", "power", "future", "perfctrs", "block")
_NOT_RESPONDING = "*"
# scontrol(1): states of a node in order, and what may be said beside them of a node that still takes jobs.
_IN_ORDER = {"IDLE", "ALLOCATED", "MIXED"}
_HARMLESS = {"CLOUD", "COMPLETING", "DYNAMIC_NORM", "PLANNED", "RESERVED"}


def parse_sinfo(text: str) -> dict[str, str]:
    """Return the state of each node; one that is in several partitions is listed once."""
    rows = (line.strip().split("|") for line in text.splitlines() if line.strip())
    return {row[0]: row[1] for row in rows if len(row) >= 2 and row[0]}


def usable(state: str) -> bool:
    """Whether a job can start on a node of this state, now or after the jobs that hold it."""
    return not state.endswith(_NOT_RESPONDING) and not any(word in state.lower() for word in _UNUSABLE)


def takes_jobs(state: str) -> bool:
    """Whether a node takes jobs, by the State of ``scontrol show node`` (``MIXED+PLANNED``).

    A word that is not known to be harmless counts as one that keeps jobs away: ``IDLE+DRAIN``, ``IDLE+NOT_RESPONDING``.
    """
    base, *further = state.upper().split("+")
    return base in _IN_ORDER and set(further) <= _HARMLESS
