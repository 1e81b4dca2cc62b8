"""Drains of ours as Slurm has them: who drains next, the watcher or a node's health check, counts these first."""

from __future__ import annotations

from datetime import datetime

# How the reasons of every drain begin that a part of Rackweave makes; the one for a restart of slurmd takes itself back
# within seconds and is nobody's fault. Programs that run without this package have the same words: the health check
# (roles/slurm/files/node_hooks.py) and the collector of metrics (roles/monitoring/files/slurm_metrics.py).
OURS = ("rackweave:", "rackweave-rebuild")
PASSING = "rackweave: restart of slurmd"
FORMAT = "%N|%T|%H|%E"


def our_drains(text: str, now: datetime) -> dict[str, float]:
    """Return the nodes that stand drained by us, each with the hours since.

    Args:
        text: what ``sinfo --Node --noheader --format=FORMAT`` printed.
        now: local time of the host on which it ran, which sinfo's times are of; one that cannot be read counts as now.
    """
    rows = (line.strip().split("|", 3) for line in text.splitlines())
    return {row[0]: _hours_since(row[2], now) for row in rows if len(row) == 4 and is_ours(row[3])}


def is_ours(reason: str) -> bool:
    """Whether a drain with this reason is one of ours that counts."""
    return reason.startswith(OURS) and not reason.startswith(PASSING)


def _hours_since(text: str, now: datetime) -> float:
    try:
        began = datetime.strptime(text, "%Y-%m-%dT%H:%M:%S")
    except ValueError:
        return 0.0
    return max(0.0, (now - began).total_seconds() / 3600)
