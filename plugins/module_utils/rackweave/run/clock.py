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
        """Return a time in UTC that does not lie before those already seen; a text that is no time stays as it is.

        After a jump back time goes on from where it was. A jump forward cannot be told from waiting, and stays.
        """
        seconds = moment(text)
        if seconds is None:
            return text
        seconds += self._offset_s
        if self._last_s is not None and seconds < self._last_s - JITTER_S:
            self.jumps_s.append(self._last_s - seconds)
            self._offset_s += self._last_s - seconds
            seconds = self._last_s
        self._last_s = seconds if self._last_s is None else max(seconds, self._last_s)
        if not self._offset_s and text.endswith(("+00:00", "Z")):
            return text
        return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="milliseconds")
