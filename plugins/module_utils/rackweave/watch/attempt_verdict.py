"""``verdict.json``: how an attempt ended, who began it, why. Joins structured evidence with what the logs say.

The launchers see a rank vanish or stand still and torchrun's exit codes, so they know *who*; the logs often know *why*
(memory, link, number). Neither is asked for what the other knows better.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..run.exit_codes import meaning
from ..run.outcome import Blame, JobEnd
from ..run.schema import Anything, ListOf, Nullable, Record, Text, Whole, read_document
from .attempt import role_of
from .classes import CLASSES
from .scanner import Source
from .verdict import Verdict

SCHEMA = "rackweave.verdict/1"
_VERDICT = Record(
    {
        "schema": Text((SCHEMA,)),
        "run": Text(),
        "attempt": Nullable(Text()),
        "job_id": Text(),
        "state": Text(),
        "code": Nullable(Whole(-255)),
        "meaning": Nullable(Text()),
        "sentence": Text(),
        "diagnosis_class": Text(),
        "family": Text(),
        "culprit": Text(),
        "ranks": ListOf(Whole()),
        "hosts": ListOf(Text()),
        "phase": Nullable(Text()),
        "severity": Text(),
        "first_action": Text(empty_ok=True),  # after a good end there is nothing to do
        "evidence": ListOf(Anything()),
        "others": ListOf(Text()),
        "collectors": Anything(),
    }
)

# Per kind of structured evidence: families of classes in which the logs know the cause better. Any other class that the
# logs show describes what every survivor prints, and the kind's own class is used.
_DEEPER_FAMILIES = {
    "killed": ("mem", "gpu", "node", "nccl"),
    "lost": ("mem", "gpu", "node", "nccl", "slurm"),
    "stopped": ("gpu", "node", "storage"),
    "hung": ("gpu", "node", "storage", "net", "nccl"),
    "error": ("mem", "gpu", "num", "ckpt", "storage", "config", "nccl"),
    "lost_host": ("gpu", "node", "slurm"),
    "cut": ("net",),
    "numbers": ("num", "gpu"),
}

_OF_ONE_MACHINE = ("gpu", "node", "net", "nccl")

_CLASS_OF_KIND = {
    "killed": "launch.sigkill_unconfirmed",
    "lost": "launch.child_crash",
    "stopped": "hang.no_progress",
    "hung": "hang.collective_timeout",
    "error": "app.exception",
    "lost_host": "slurm.node_fail",
    "cut": "net.bootstrap_unreachable",
    "numbers": "num.nan",
}


def attempt_sources(logs: Mapping[str, str]) -> list[Source]:
    """Return the logs of an attempt as evidence, each with the host and rank that wrote it.

    Args:
        logs: text by path below the attempt directory, ``logs/<host>/<rank>/stderr.log``.
    """
    sources = []
    for name, text in logs.items():
        role = role_of(name)
        if role.kind != "skip":
            sources.append(Source(name, text, role.host, role.rank, role.kind))
    return sources


def parse_verdict(text: str, where: str = "verdict.json") -> dict[str, Any]:
    """Read ``verdict.json``; DocumentError if it does not follow its schema."""
    return read_document(text, SCHEMA, _VERDICT, where)


def verdict_document(
    run: str,
    attempt: str,
    job_id: str,
    end: JobEnd,
    blamed: Blame,
    found: Verdict,
    silent_hosts: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the document of ``verdict.json``; ``silent_hosts`` gave no evidence, each with the reason."""
    named = blamed.kind != "none"
    by_logs = found.diagnosis_class
    diagnosis = by_logs
    if named and found.family not in _DEEPER_FAMILIES[blamed.kind]:
        diagnosis = _CLASS_OF_KIND[blamed.kind]
    entry = CLASSES[diagnosis]
    culprit = _culprit(blamed, found)
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
        "collectors": collector_states(found, silent_hosts or {}),
    }


def _culprit(blamed: Blame, found: Verdict) -> str:
    """Return who is named: by launchers and ranks where they know, else by the logs.

    Where every rank stopped with the same error, each of them printed it: the logs then show everybody, who is nobody,
    unless they show a fault of one machine beside it.
    """
    if blamed.culprit != "none":
        return blamed.culprit
    if blamed.kind == "error" and found.family not in _OF_ONE_MACHINE:
        return "none"
    return found.culprit


def collector_states(found: Verdict, silent_hosts: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return by host what each collector came to; a host that was not reached has the one entry ``connection``."""
    states: dict[str, dict[str, str]] = {}
    for name, state in found.collectors:
        host, _, collector = name.partition(":")
        states.setdefault(host, {})[collector] = state
    for host, reason in silent_hosts.items():
        states.setdefault(host, {})["connection"] = f"failed: {reason}"
    return states


def sentence(end: JobEnd, blamed: Blame, found: Verdict) -> str:
    """Return one sentence: the end state, then who began it, as far as it is known."""
    if end.ok:
        return end.sentence
    if blamed.kind != "none":
        return f"{end.sentence}; {blamed.sentence}"
    words = f"{end.sentence}: {end.reason}" if end.reason else end.sentence
    if found.diagnosis_class != "healthy":
        return f"{words}; the logs point at {found.diagnosis_class} ({found.culprit})"
    return f"{words}; nothing in the evidence names a culprit"
