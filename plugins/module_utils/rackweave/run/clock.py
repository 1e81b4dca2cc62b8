"""Times of a job's records: one zone, and a clock that never goes back.

A node whose clock is set while a job runs writes times that jump; the order of the lines is the truth, since a file of
events is only ever appended to.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timezone

# Seconds of the epoch, of the years 1970 to 2200: a time outside is none.
_LATEST_S = 7_258_118_400.0
# Records of several threads may be written in another order than they were timed.
JITTER_S = 1.0


def moment(text: str) -> float | None:
    """Return an ISO 8601 time in seconds of the epoch (UTC where it names no zone), None for a text that is none."""
    try:
        # Python 3.9 does not read a trailing Z.
        found = datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith("Z") else text)
        seconds = (found if found.tzinfo else found.replace(tzinfo=timezone.utc)).timestamp()
    except (ValueError, OverflowError):
        return None
    return seconds if 0 <= seconds <= _LATEST_S else None


@dataclass
class Clock:
    """Follows the times of one file in its order; ``jumps_s`` are the jumps back, in seconds."""

    jumps_s: list[float] = field(default_factory=list)
    _last_s: float | None = None
    _offset_s: float = 0.0

    def steady(self, text: str) -> str:
        """Return a time in UTC (ISO 8601, ``+00:00``) on a clock that is never set back; a text that is none as it is.

        Where the file jumps back by more than `JITTER_S`, this record takes the latest time seen and those after it go
        on from there; how long the jump itself took, nobody knows. A smaller step back is kept, since two threads may
        write in another order than they timed. A jump forward cannot be told from waiting, and stays, up to the year
        2200.
        """
        seconds = moment(text)
        if seconds is None:
            return text
        seconds += self._offset_s
        if self._last_s is not None and seconds < self._last_s - JITTER_S:
            self.jumps_s.append(self._last_s - seconds)
            self._offset_s += self._last_s - seconds
            seconds = self._last_s
        seconds = min(seconds, _LATEST_S)
        self._last_s = seconds if self._last_s is None else max(seconds, self._last_s)
        # One spelling, since times are compared as texts too: "00Z" would come after "00.5Z".
        if not self._offset_s and text.endswith("+00:00"):
            return text
        return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="milliseconds")
