"""What Slurm shows of one node, of the jobs that hold or want it, and of reservations on it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from ..errors import ParseError
from ..provision.inventory import expand_hosts
from ..run.slurm import base_state
from ..slurm.node_state import BUSY

# A value runs to the next key, for reasons, names and comments may hold blanks.
_PAIR = re.compile(r"(?:^|\s)([A-Z][A-Za-z0-9_:/]*)=")
_REASON = re.compile(r"^(?P<text>.*?)(?:\s*\[(?P<by>[^\s@\]]+)@[^\]]*\])?$", re.DOTALL)
HELD_REASONS = frozenset({"JobHeldAdmin", "JobHeldUser"})
_EMPTY = frozenset({"", "(null)", "None", "none", "N/A"})


@dataclass(frozen=True)
class NodeView:
    """One node: its state words (``IDLE``, ``DRAIN``), whether it answers, and why and by whom it is out of service."""

    name: str
    words: frozenset[str]
    responds: bool = True
    reason: str = ""
    reason_by: str = ""

    @property
    def busy(self) -> bool:
        """Whether a job holds the node or is cleaned up there."""
        return bool(self.words & BUSY)

    @property
    def draining(self) -> bool:
        """Whether no new job starts there because somebody, or Slurm, said so."""
        return bool(self.words & {"DRAIN", "DRAINED", "DRAINING"})

    @property
    def withheld(self) -> bool:
        """Whether the node is out of service by a decision, of a person or of Slurm."""
        return self.draining or "DOWN" in self.words

    @property
    def down(self) -> bool:
        """Whether Slurm gave the node up."""
        return bool(self.words & {"DOWN", "UNKNOWN"}) or not self.responds

    @property
    def idle(self) -> bool:
        """Whether a job could start there now, a reservation left aside."""
        return "IDLE" in self.words and not self.busy and not self.draining and not self.down


@dataclass(frozen=True)
class JobView:
    """One job that runs or waits; `nodes` are those it has, or, while it waits, those it asks for by name."""

    job_id: str
    name: str
    user: str
    state: str
    nodes: tuple[str, ...] = ()
    reservation: str = ""
    held: bool = False
    comment: str = ""

    @property
    def waiting(self) -> bool:
        """Whether it has no nodes yet."""
        return self.state in ("PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT")


@dataclass(frozen=True)
class ReservationView:
    """One reservation: its nodes, and whether it holds them now."""

    name: str
    nodes: tuple[str, ...]
    active: bool = True


@dataclass(frozen=True)
class Situation:
    """Everything a decision about one node needs; `node` is None where Slurm does not know it."""

    node: NodeView | None
    jobs: tuple[JobView, ...] = ()
    reservations: tuple[ReservationView, ...] = ()

    def running_on(self, name: str) -> tuple[JobView, ...]:
        """Jobs that have the node now."""
        return tuple(job for job in self.jobs if not job.waiting and name in job.nodes)

    def waiting_for(self, name: str) -> tuple[JobView, ...]:
        """Jobs that wait and ask for the node by name."""
        return tuple(job for job in self.jobs if job.waiting and name in job.nodes)

    def reservation(self, name: str) -> ReservationView | None:
        """The reservation of that name."""
        return next((it for it in self.reservations if it.name == name), None)


def parse_node_view(text: str) -> NodeView | None:
    """Read ``scontrol --oneliner show node NAME``; None if Slurm does not know the node.

    Raises:
        ParseError: if the text is neither a node nor Slurm's word that there is none.
    """
    if "not found" in text or "No nodes in the system" in text or "Invalid node name" in text:
        return None
    values = _pairs(text)
    if "NodeName" not in values or "State" not in values:
        raise ParseError(f"scontrol show node printed neither a node nor 'not found': {text.strip()[:120]!r}")
    state = values["State"].upper()
    match = _REASON.match(values.get("Reason", ""))
    reason, by = (match["text"].strip(), match["by"] or "") if match else ("", "")
    words = frozenset(filter(None, (re.sub(r"[^A-Z_]", "", word) for word in state.split("+"))))
    # Slurm 22.05 marks a silent node with a star or with a word of its own, depending on the command's version.
    responds = "*" not in state and "NOT_RESPONDING" not in words
    return NodeView(values["NodeName"], words, responds, "" if reason in _EMPTY else reason, by)


def parse_node_views(text: str) -> tuple[NodeView, ...]:
    """Read ``scontrol --oneliner show node`` of all nodes."""
    lines = [line for line in text.splitlines() if line.startswith("NodeName=")]
    return tuple(view for view in map(parse_node_view, lines) if view is not None)


def parse_jobs(text: str) -> tuple[JobView, ...]:
    """Read ``scontrol --oneliner show job``; jobs that are over are left out."""
    found = []
    for line in text.splitlines():
        values = _pairs(line)
        state = base_state(values.get("JobState", ""))
        if "JobId" not in values or state not in _LIVE:
            continue
        waiting = state in ("PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT")
        nodes = _word(values.get("ReqNodeList", "")) if waiting else _word(values.get("NodeList", ""))
        held = values.get("Reason", "") in HELD_REASONS or state == "REQUEUE_HOLD"
        found.append(
            JobView(
                job_id=values["JobId"],
                name=_word(values.get("JobName", "")),
                user=values.get("UserId", "").partition("(")[0],
                state=state,
                nodes=tuple(expand_hosts(nodes)),
                reservation=_word(values.get("Reservation", "")),
                held=held,
                comment=_word(values.get("AdminComment", "")),
            )
        )
    return tuple(found)


def parse_reservations(text: str) -> tuple[ReservationView, ...]:
    """Read ``scontrol --oneliner show reservation``; a word that there is none gives none."""
    rows = [_pairs(line) for line in text.splitlines() if "ReservationName=" in line]
    return tuple(
        ReservationView(
            row["ReservationName"],
            tuple(expand_hosts(_word(row.get("Nodes", "")))),
            row.get("State", "ACTIVE").upper() == "ACTIVE",
        )
        for row in rows
    )


def idle_neighbour(
    nodes: Iterable[NodeView], allowed: Iterable[str], reservations: Iterable[ReservationView]
) -> str | None:
    """Return the first allowed node that is idle and in no reservation, None if there is none."""
    idle = {view.name for view in nodes if view.idle}
    taken = {name for reservation in reservations for name in reservation.nodes}
    return next((name for name in allowed if name in idle and name not in taken), None)


# States of jobs that have, want or still clean up nodes.
_LIVE = frozenset(
    {"PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "STOPPED",
     "SIGNALING", "STAGE_OUT", "RESIZING", "COMPLETING"}
)  # fmt: skip


def _pairs(text: str) -> dict[str, str]:
    line = text.strip()
    found = list(_PAIR.finditer(line))
    values: dict[str, str] = {}
    for index, match in enumerate(found):
        end = found[index + 1].start() if index + 1 < len(found) else len(line)
        values.setdefault(match.group(1), line[match.end() : end].strip())
    return values


def _word(value: str) -> str:
    return "" if value in _EMPTY else value
