"""The watchdog's view of a followed attempt: feeds it looks, and says when a silence is a hang."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from ..run.events import Event
from .progress import Limits, ProgressFinding, Watchdog


def seconds(moment: str) -> float | None:
    """Return an ISO 8601 time as seconds since the epoch, or None for a text that is none."""
    try:
        # Python 3.9 does not read a trailing Z.
        return datetime.fromisoformat(moment[:-1] + "+00:00" if moment.endswith("Z") else moment).timestamp()
    except ValueError:
        return None


class Health:
    """One per attempt. Findings are new ones only: each class is reported once until it goes away."""

    def __init__(self, started: str, predicted_step_s: float | None = None, seen_before: bool = False) -> None:
        """Begin; ``seen_before`` where an earlier watch of the attempt found something and asked for evidence of it.

        This one has not seen the markers by which a silence was told, so it takes the limit that holds with them; and
        none of the losses from the time when they were numbers.
        """
        limits = Limits(step_floor_s=Limits.marker_floor_s, lost_after_reports=0) if seen_before else None
        self.watchdog = Watchdog(seconds(started) or 0.0, predicted_step_s, limits)
        self.standing: set[str] = set()

    def take(self, events: Iterable[Event], phases: Iterable[Mapping[str, Any]], now: str) -> list[ProgressFinding]:
        """Feed what a look brought; return findings that were not standing before."""
        for event in events:
            record = {"kind": event.kind, "rank": event.rank, **event.fields}
            self.watchdog.feed(record, seconds(event.time))
        for phase in phases:
            self.watchdog.feed(phase, seconds(str(phase.get("time"))))
        clock = seconds(now)
        found = self.watchdog.check(clock) if clock is not None else []
        new = [finding for finding in found if finding.diagnosis_class not in self.standing]
        self.standing = {finding.diagnosis_class for finding in found}
        return new

    def lost(self) -> ProgressFinding | None:
        """Say when the loss is no number and will not be one again."""
        return self.watchdog.lost()
