"""``verdict.json``: how an attempt ended, who began it, why. Joins structured evidence with what the logs say.

The launchers see a rank vanish or stand still and torchrun's exit codes, so they know *who*; the logs often know *why*
(memory, link, number). Neither is asked for what the other knows better.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..run.exit_codes import meaning
from ..run.outcome import Blame, JobEnd
from .classes import CLASSES
from .scanner import Source
from .verdict import Verdict

SCHEMA = "rackweave.verdict/1"

# Classes that describe a consequence which every survivor prints; structured evidence about the cause outranks them.
_CONSEQUENCES = (
    "healthy",
    "net.peer_closed",
    "launch.child_failed",
    "launch.child_crash",
    "launch.sigkill_unconfirmed",
    "hang.collective_timeout",
    "hang.no_progress",
)

_CLASS_OF_KIND = {
    "killed": "launch.sigkill_unconfirmed",
    "lost": "launch.child_crash",
    "stopped": "hang.no_progress",
    "hung": "hang.collective_timeout",
    "error": "app.exception",
    "lost_host": "slurm.node_fail",
}


def attempt_sources(logs: Mapping[str, str]) -> list[Source]:
    """Return the logs of an attempt as evidence, each with the host and rank that wrote it.

    Args:
        logs: text by path below the attempt directory, ``logs/<host>/<rank>/stderr.log``.
    """
    sources = []
    for name, text in logs.items():
        parts = name.split("/")
        host = parts[1] if parts[0] == "logs" and len(parts) > 2 else None
        rank = int(parts[2]) if host and len(parts) == 4 and parts[2].isdigit() else None
        sources.append(Source(name, text, host, rank))
    return sources


def verdict_document(run: str, attempt: str, job_id: str, end: JobEnd, blamed: Blame, found: Verdict) -> dict[str, Any]:
    """Return the document of ``verdict.json``."""
    named = blamed.kind != "none"
    by_logs = found.diagnosis_class
    diagnosis = by_logs
    if named and by_logs in _CONSEQUENCES:
        wanted = _CLASS_OF_KIND.get(blamed.kind, by_logs)
        diagnosis = wanted if wanted in CLASSES else by_logs
    entry = CLASSES[diagnosis]
    culprit = blamed.culprit if named and blamed.culprit != "none" else found.culprit
    return {
        "schema": SCHEMA,
        "run": run,
        "attempt": attempt or None,
        "job_id": job_id,
        "state": end.state,
        "code": end.code,
        "meaning": None if end.code is None else meaning(end.code),
        "sentence": sentence(end, blamed, found),
        "diagnosis_class": diagnosis,
        "family": diagnosis.split(".", 1)[0],
        "culprit": culprit if not end.ok else "none",
        "ranks": list(blamed.ranks),
        "hosts": list(blamed.hosts),
        "phase": found.phase,
        "severity": "info" if end.ok else entry.severity,
        "first_action": found.first_action if diagnosis == by_logs else entry.first_action,
        "evidence": [] if end.ok else [*blamed.evidence, *found.evidence][:20],
        "others": [name for name in found.others if name != diagnosis],
    }


def sentence(end: JobEnd, blamed: Blame, found: Verdict) -> str:
    """Return one sentence: the end state, then who began it, as far as it is known."""
    if end.ok:
        return end.sentence
    if blamed.kind != "none":
        return f"{end.sentence}; {blamed.sentence}"
    if found.diagnosis_class != "healthy":
        return f"{end.sentence}; the logs point at {found.diagnosis_class} ({found.culprit})"
    return f"{end.sentence}; nothing in the evidence names a culprit"
