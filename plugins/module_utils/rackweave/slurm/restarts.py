"""Which nodes still owe a restart of slurmd, those outside of a limited run included.

The controller keeps a note for each node: when its slurmd had started by the time a restart became due. A slurmd that
has another start time now was restarted since, by whomever, and owes nothing; so no clocks are compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_START = re.compile(r"(?:^|\s)SlurmdStartTime=(\S+)")
_NAME = re.compile(r"(?:^|\s)NodeName=(\S+)")
UNKNOWN = ("", "None", "Unknown", "N/A")


def start_times(text: str) -> dict[str, str]:
    """Read ``scontrol --oneliner show nodes``: node to the start of its slurmd; empty where Slurm does not know it."""
    found = {}
    for line in text.splitlines():
        name, start = _NAME.search(line), _START.search(line)
        if name:
            found[name[1]] = start[1] if start and start[1] not in UNKNOWN else ""
    return found


@dataclass(frozen=True)
class Notes:
    """The notes to keep, node to start time, and the nodes that owe a restart."""

    keep: Mapping[str, str]

    @property
    def due(self) -> tuple[str, ...]:
        """Nodes that owe a restart, in the order of their names."""
        return tuple(sorted(self.keep))


def update_notes(noted: Mapping[str, str], asked: Iterable[str], now: Mapping[str, str], nodes: Iterable[str]) -> Notes:
    """Return the notes after a change.

    Args:
        noted: node to the start time of its slurmd when a restart became due.
        asked: nodes for which a restart becomes due now.
        now: node to the start time of its slurmd; empty or missing where it is not known.
        nodes: nodes of slurm.conf; a note of another one is dropped.
    """
    members = set(nodes)
    # A note without a start time stays until the restart is made: nothing tells that it was made by someone else.
    kept = {
        node: start
        for node, start in noted.items()
        if node in members and (not start or now.get(node, "") in ("", start))
    }
    return Notes({**kept, **{node: now.get(node, "") for node in asked if node in members}})
