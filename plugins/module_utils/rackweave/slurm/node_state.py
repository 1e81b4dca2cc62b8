"""What Slurm says of a node, and whether a change that would hurt a job may be made there now."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..errors import ParseError

BUSY = frozenset({"ALLOCATED", "MIXED", "COMPLETING", "ALLOC", "MIX", "COMP"})
_PAIR = re.compile(r"(?:^|\s)([A-Za-z][A-Za-z0-9_]*)=(\S*)")


@dataclass(frozen=True)
class NodeState:
    """State words of one node as ``scontrol show node`` prints them (``IDLE+DRAIN``), and the reason of a drain."""

    name: str
    words: frozenset[str]
    reason: str

    @property
    def allocated(self) -> bool:
        """Whether a job holds the node."""
        return bool(self.words & BUSY)

    @property
    def drained(self) -> bool:
        """Whether no job holds the node and none can start there."""
        return not self.allocated and bool(self.words & {"DRAIN", "DRAINED", "DOWN", "FUTURE", "POWERED_DOWN"})


def parse_node(text: str) -> NodeState | None:
    """Read ``scontrol --oneliner show node NAME``; None if Slurm does not know the node.

    Raises:
        ParseError: if the text is neither a node nor Slurm's word that there is none.
    """
    if "not found" in text or "No nodes in the system" in text or "Invalid node name" in text:
        return None
    fields = dict(_PAIR.findall(text))
    if "NodeName" not in fields or "State" not in fields:
        raise ParseError(f"scontrol show node printed neither a node nor 'not found': {text.strip()[:120]!r}")
    # A trailing mark says more of the node (`*`: does not respond); the words before it are the state.
    words = frozenset(re.sub(r"[^A-Z_]", "", word) for word in fields["State"].upper().split("+"))
    match = re.search(r"\sReason=(.*?)(?:\s\[|\s[A-Z][A-Za-z]+=|$)", text)
    return NodeState(fields["NodeName"], words, match.group(1).strip() if match else "")


@dataclass(frozen=True)
class Disruption:
    """Whether a disruptive change may be made on a node now, and why."""

    ok: bool
    reason: str


def may_disrupt(state: NodeState | None, controller_answers: bool, job_steps: int) -> Disruption:
    """Decide whether a change that could hurt a job may be made on a node.

    Args:
        state: what Slurm says of the node; None if Slurm does not know it or does not answer.
        controller_answers: whether slurmctld answered.
        job_steps: job step daemons (slurmstepd) that run on the node itself.
    """
    if job_steps:
        return Disruption(False, f"{job_steps} job step daemons run there")
    if not controller_answers:
        return Disruption(True, "no Slurm controller answers and no job step runs there")
    if state is None:
        return Disruption(True, "Slurm does not know the node")
    if state.drained:
        return Disruption(True, f"Slurm reports {'+'.join(sorted(state.words))}")
    return Disruption(False, f"Slurm reports {'+'.join(sorted(state.words))}, not drained and idle")
