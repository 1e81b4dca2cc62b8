"""Whether a node can be tested now, from what Slurm says of it."""

from __future__ import annotations

from ..slurm.node_state import NodeState


def why_not(state: NodeState | None, responds: bool, reservation: str) -> str:
    """Return why a node cannot be tested now; empty if it can.

    Args:
        state: what Slurm says of the node; None if it does not know it.
        responds: whether its slurmd answers slurmctld.
        reservation: the reservation that the test runs in, or empty.
    """
    if state is None:
        return "Slurm does not know the node"
    shown = "+".join(sorted(state.words))
    if state.allocated:
        return f"a job holds the node (Slurm reports {shown}); it is tested when it is idle"
    if state.drained or "FAIL" in state.words or "FAILING" in state.words:
        return f"no job can start there: Slurm reports {shown}{f' ({state.reason})' if state.reason else ''}"
    if not responds:
        return f"its slurmd does not answer (Slurm reports {shown})"
    if state.words & {"RESERVED", "MAINT", "MAINTENANCE"} and not reservation:
        return f"it is reserved (Slurm reports {shown}); name the reservation in acceptance_reservation"
    return ""
