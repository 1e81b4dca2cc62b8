"""Who beside the watcher may drain nodes: what the inventory says of each, with the defaults of the role `slurm`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .of_hosts import is_on, row_of


def drain_consents(hosts: Sequence[str], variables: Mapping[str, Any]) -> dict[str, tuple[str, int, int]]:
    """Return for each variable that lets a part of us drain nodes what it allows, on how many nodes, and of how many.

    Args:
        variables: host to its variables, as the inventory has them. On a Slurm that is not ours (``slurm_manage`` off)
            neither the health check nor the role is at work.
    """
    ours = [row for row in (row_of(variables, host) for host in hosts) if _on(row, "slurm_manage", True)]
    restart = [row for row in ours if _on(row, "slurm_drain_ok", False)]
    checked = [row for row in ours if _on(row, "slurm_hooks_enabled", True) and _interval(row) != "0"]
    health = [row for row in checked if _on(row, "slurm_health_drain_ok", _on(row, "slurm_drain_ok", False))]
    return {
        "slurm_health_drain_ok": ("health check drains its own node", len(health), len(hosts)),
        "slurm_drain_ok": ("provisioning drains idle nodes for a restart of slurmd", len(restart), len(hosts)),
    }


def _on(row: Mapping[str, Any], name: str, default: bool) -> bool:
    return is_on(row[name]) if name in row else default


def _interval(row: Mapping[str, Any]) -> str:
    return str(row["slurm_health_interval_s"]) if "slurm_health_interval_s" in row else ""
