"""Following a job look by look: what is new, what to say about it, and whether it is over.

A *look* is what the module ``run_state`` returned. The follower keeps byte offsets, so each event is taken once, and
it reads an attempt to its end before it turns to the next one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .events import Event, parse_events
from .progress import Progress, progress_line
from .slurm import UNKNOWN

# A job that Slurm knows no more, and whose script left no end, is given up after this many seconds.
FORGOTTEN_S = 60.0


class Follower:
    """State of one watch; ``take`` is called with each look and the time on the watcher's clock."""

    def __init__(self, job_id: str, target_step: int | None, line_interval_s: float) -> None:
        self.job_id = job_id
        self.target_step = target_step
        self.line_interval_s = line_interval_s
        self.progress: dict[str, Progress] = {}
        self.attempt = ""
        self.offset = 0
        self.look: Mapping[str, Any] = {}
        self.over = False
        self.fresh: tuple[Event, ...] = ()
        self._job_words = ""
        self._line = ""
        self._line_at = float("-inf")
        self._unknown_since: float | None = None

    @property
    def current(self) -> Progress:
        """Progress of the attempt that is being read (an empty one before the first)."""
        return self.progress.get(self.attempt) or Progress(self.attempt, self.target_step)

    @property
    def state(self) -> str:
        """Slurm's last word on the job."""
        job = self.look.get("job")
        return str(job["state"]) if job else UNKNOWN

    def request(self) -> dict[str, Any]:
        """Return the arguments of the next look, beside the run directory."""
        last = self.current.last
        known = last.step if last else -1
        return {"job_id": self.job_id, "attempt": self.attempt, "offset": self.offset, "known_step": known}

    def take(self, look: Mapping[str, Any], clock_s: float) -> list[str]:
        """Take in a look; return the lines that are worth saying."""
        self.look = look
        self.fresh = ()
        lines = self._job_lines(look)
        if look["attempt"] and not self.attempt:
            lines += self._enter(look["attempt"])
        if self.attempt:
            batch = parse_events(look["events"].encode())
            progress = self.current
            progress.add(batch.events)
            self.fresh = batch.events
            progress.unreadable_lines += batch.unreadable_lines
            self.offset = look["offset"]
            lines += self._progress_lines(progress, clock_s, bool(batch.events))
            if not look["more"] and not batch.events:
                lines += self._next_attempt(look)
        # A look is of one attempt, so it says nothing of the one that was entered just now.
        self.over = look["attempt"] == self.attempt and self._is_over(look, clock_s)
        return lines

    def _job_lines(self, look: Mapping[str, Any]) -> list[str]:
        job = look.get("job")
        if not job:
            return []
        reason = f" ({job['reason']})" if job["reason"] and not job["ended"] else ""
        where = f" on {job['nodes']}" if job["nodes"] and job["state"] == "RUNNING" else ""
        words = f"job {self.job_id} is {str(job['state']).lower()}{where}{reason}"
        if words == self._job_words:
            return []
        self._job_words = words
        return [words]

    def _enter(self, attempt: str) -> list[str]:
        self.attempt = attempt
        self.offset = 0
        self.progress[attempt] = Progress(attempt, self.target_step)
        return [f"attempt {attempt}"]

    def _next_attempt(self, look: Mapping[str, Any]) -> list[str]:
        own = [name for name in look["attempts"] if name.split(".")[0] == self.job_id]
        later = own[own.index(self.attempt) + 1 :] if self.attempt in own else []
        return self._enter(later[0]) if later else []

    def _progress_lines(self, progress: Progress, clock_s: float, news: bool) -> list[str]:
        line = progress_line(progress)
        changed_phase = progress.last is None and line != self._line
        due = clock_s - self._line_at >= self.line_interval_s
        if not news or line == self._line or not (due or changed_phase):
            return []
        self._line, self._line_at = line, clock_s
        return [line]

    def _is_over(self, look: Mapping[str, Any], clock_s: float) -> bool:
        if look["more"] or look["events"]:
            return False  # read to the end first
        own = [name for name in look["attempts"] if name.split(".")[0] == self.job_id]
        if own and own[-1] != self.attempt:
            return False
        job = look.get("job")
        if job:
            self._unknown_since = None
            return bool(job["ended"])
        end = look.get("end")
        if end is not None and not end.get("requeued"):
            return True
        if self._unknown_since is None:
            self._unknown_since = clock_s
        return clock_s - self._unknown_since > FORGOTTEN_S
