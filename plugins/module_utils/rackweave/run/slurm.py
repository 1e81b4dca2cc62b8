"""What Slurm says of a job: parsers of ``scontrol show job -o``, ``squeue`` and ``sacct``, and what a state means."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..errors import ParseError

# squeue(1), "JOB STATE CODES". A job in one of these will run, runs, or comes back by itself.
LIVE_STATES = ("PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESIZING",
               "SIGNALING", "STAGE_OUT", "SPECIAL_EXIT", "STOPPED")  # fmt: skip
# The job is over, but Slurm still cleans up after it.
ENDING_STATES = ("COMPLETING",)
END_STATES = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE",
              "PREEMPTED", "REVOKED")  # fmt: skip
UNKNOWN = "UNKNOWN"

# `Key=value` pairs of one line; a value runs to the next key, for reasons and commands may hold blanks.
_PAIR = re.compile(r"(?:^|\s)([A-Za-z][A-Za-z0-9_:/]*)=")
_JOB_ID = re.compile(r"(\d+)(?:;\S*)?")


@dataclass(frozen=True)
class SlurmJob:
    """State of one job; ``exit_code`` and ``signal`` are the batch script's, zero while it runs."""

    job_id: str
    name: str
    state: str
    reason: str
    exit_code: int
    signal: int
    restarts: int
    nodes: str

    @property
    def live(self) -> bool:
        """Whether the job runs, waits, or will come back by itself."""
        return self.state in LIVE_STATES

    @property
    def ended(self) -> bool:
        """Whether nothing more will come of this job (a cleanup may still go on)."""
        return self.state in END_STATES


def parse_scontrol_job(text: str) -> SlurmJob:
    """Read the one line of ``scontrol --oneliner show job ID``.

    Raises:
        ParseError: if the line names no job or no state.
    """
    line = text.strip()
    found = list(_PAIR.finditer(line))
    values: dict[str, str] = {}
    for index, match in enumerate(found):
        end = found[index + 1].start() if index + 1 < len(found) else len(line)
        values.setdefault(match.group(1), line[match.end() : end].strip())
    if "JobId" not in values or "JobState" not in values:
        raise ParseError(f"scontrol's answer names no JobId and JobState: {line[:120]!r}")
    code, _, signal = values.get("ExitCode", "0:0").partition(":")
    return SlurmJob(
        job_id=values["JobId"],
        name=values.get("JobName", ""),
        state=base_state(values["JobState"]),
        reason=_word(values.get("Reason", "")),
        exit_code=_count(code),
        signal=_count(signal),
        restarts=_count(values.get("Restarts", "0")),
        nodes=_word(values.get("NodeList", "")),
    )


def parse_sacct_job(text: str) -> SlurmJob | None:
    """Read ``sacct -X -n -P -j ID -o JobID,JobName,State,ExitCode,NodeList``; None where it knows no such job.

    The last line counts: completion logs hold one line for each attempt of a requeued job.
    """
    rows = [line.split("|") for line in text.splitlines() if line.count("|") == 4]
    if not rows:
        return None
    job_id, name, state, exit_code, nodes = rows[-1]
    code, _, signal = exit_code.partition(":")
    return SlurmJob(job_id, name, base_state(state), "", _count(code), _count(signal), len(rows) - 1, _word(nodes))


def parse_squeue(text: str) -> tuple[tuple[str, str], ...]:
    """Read ``squeue -h -o '%i|%T'``: pairs of job id and state."""
    rows = (line.strip().split("|") for line in text.splitlines() if line.strip())
    return tuple((row[0], base_state(row[1])) for row in rows if len(row) == 2)


def parse_sbatch(text: str) -> str:
    """Return the job id that ``sbatch --parsable`` printed.

    Raises:
        ParseError: if the last line is no job id.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    match = _JOB_ID.fullmatch(lines[-1]) if lines else None
    if match is None:
        raise ParseError(f"sbatch printed no job id: {text.strip()[:120]!r}")
    return match.group(1)


def base_state(state: str) -> str:
    """Return a job state without its decoration (``CANCELLED by 0``, ``COMPLETED+``)."""
    words = state.split()
    return words[0].rstrip("+*") if words else UNKNOWN


def _word(value: str) -> str:
    return "" if value in ("(null)", "None", "None assigned") else value


def _count(value: str) -> int:
    return int(value) if value.isdigit() else 0
