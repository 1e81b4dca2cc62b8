"""What a watch does at the first sign of a failure: whom it names, and of which nodes it wants evidence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..run.events import Event
from ..run.exit_codes import DONE, SAVED
from ..run.outcome import Blame
from ..run.plan_file import RunPlan
from .progress import ProgressFinding


@dataclass(frozen=True)
class Wanted:
    """Evidence to be collected on these hosts before a watch goes on; ``since`` is when the attempt began, ISO 8601."""

    hosts: tuple[str, ...]
    job_id: str
    attempt: str
    since: str
    reason: str


def is_failing(look: Mapping[str, Any]) -> bool:
    """Whether a launcher has ended badly, or the batch script says so; ranks alone may still be writing."""
    codes = [found.get("code") for found in look["exits"].values()]
    end = look.get("end")
    codes += [end.get("code")] if end else []
    return any(code not in (DONE, SAVED, None) for code in codes)


def failed_saves(events: Iterable[Event]) -> list[str]:
    """Return a line for each checkpoint that was not written; the job may train on, and only the next one ends it."""
    failed = [event for event in events if event.kind == "checkpoint" and event.fields.get("state") == "failed"]
    plain = "checkpoint of step {} was not written"
    return [f"ckpt.write_failed: {event.fields.get('reason') or plain.format(event.step)}" for event in failed]


def hang_blame(plan: RunPlan | None, finding: ProgressFinding) -> Blame:
    """Name the ranks whose marker stands behind at a hang; nobody where none does."""
    hosts = [place.host for place in plan.ranks if place.rank in finding.ranks] if plan else []
    return Blame("hung", finding.ranks, tuple(dict.fromkeys(hosts)), finding.text)


def evidence_hosts(plan: RunPlan, found: Blame, most: int) -> tuple[str, ...]:
    """Return the hosts of whom evidence is worth most: those that are named, then hosts of ranks they wait with."""
    every = list(dict.fromkeys(place.host for place in plan.ranks))
    return tuple(dict.fromkeys([*(host for host in found.hosts if host in every), *every]))[:most]


def named(found: Blame) -> str:
    """Return the line that names a culprit while the job still winds down."""
    who = found.culprit if found.culprit != "none" else "nobody"
    return f"names {who}: {found.sentence}"
