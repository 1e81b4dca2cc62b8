"""The journal of decisions: one JSON object a line, appended and never changed, over all runs of an inventory.

It is also the memory of recovery: budgets, the drain cap and "never twice on the same evidence" are counted from it,
so whoever starts again after a crash knows what was done. What was only tried (``dry_run``) is told and never counted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import DocumentError

SCHEMA = "rackweave.journal/1"
KINDS = ("decision", "drain", "stop", "replan", "submit", "rebuild", "notify", "note", "end")
_REQUIRED = ("time", "time_s", "run", "kind", "why")


def entry_line(time: str, time_s: float, run: str, kind: str, why: str, **details: Any) -> str:
    """Return one line; ``why`` is one sentence, ``time_s`` seconds of the epoch."""
    head = {"schema": SCHEMA, "time": time, "time_s": round(time_s, 3), "run": run, "kind": kind, "why": why}
    return json.dumps({**head, **details}, ensure_ascii=False) + "\n"


@dataclass(frozen=True)
class Journal:
    """All entries, oldest first."""

    entries: tuple[Mapping[str, Any], ...] = ()

    def of(self, run: str) -> Journal:
        """The entries of one run that count."""
        return Journal(tuple(item for item in self._real() if item["run"] == run))

    def decided(self) -> list[str]:
        """Evidence on which something was decided already."""
        return [str(item["evidence"]) for item in self._real() if item["kind"] == "decision"]

    def retries(self) -> dict[str, int]:
        """How often each class led to a new start since the run last ended well."""
        counts: dict[str, int] = {}
        for item in self._since_end():
            if item["kind"] == "decision" and item.get("requeue"):
                name = str(item["diagnosis_class"])
                counts[name] = counts.get(name, 0) + 1
        return counts

    def restarts(self) -> int:
        """How many new starts were decided since the run last ended well, whoever made them."""
        return sum(self.retries().values())

    def drain_ages_h(self, now_s: float) -> list[float]:
        """Hours since each drain that was carried out, over all runs; this is what the cap counts."""
        return [max(0.0, now_s - float(item["time_s"])) / 3600 for item in self._real() if item["kind"] == "drain"]

    def drained_since(self, time_s: float) -> set[str]:
        """Nodes whose drain was carried out since a time, over all runs."""
        recent = [item for item in self._real() if item["kind"] == "drain" and float(item["time_s"]) > time_s]
        return {str(item.get("node")) for item in recent}

    def unfinished(self) -> Mapping[str, Any] | None:
        """The newest decision to submit again that nothing followed; a restarted operator takes it up."""
        open_decision: Mapping[str, Any] | None = None
        for item in self._real():
            if item["kind"] == "decision":
                open_decision = item if item.get("resubmit") else None
            elif item["kind"] in ("submit", "end"):
                open_decision = None
        return open_decision

    def _real(self) -> Iterable[Mapping[str, Any]]:
        return (item for item in self.entries if not item.get("dry_run"))

    def _since_end(self) -> list[Mapping[str, Any]]:
        found = list(self._real())
        good = [index for index, item in enumerate(found) if item["kind"] == "end" and item.get("ok")]
        return found[good[-1] + 1 :] if good else found


def parse_journal(text: str, where: str = "journal.jsonl") -> Journal:
    """Read a journal; a torn last line (the writer died) is passed over.

    Raises:
        DocumentError: if another line is no entry: a memory with holes must not decide about drains.
    """
    lines = text.split("\n")
    entries = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            item = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number == len(lines):
                break
            raise DocumentError(f"{where}, line {number}: not JSON; move the file away to begin anew") from error
        _check(item, f"{where}, line {number}")
        entries.append(item)
    return Journal(tuple(entries))


def _check(item: object, where: str) -> None:
    if not isinstance(item, dict) or item.get("schema") != SCHEMA:
        raise DocumentError(f"{where}: expected an object with schema {SCHEMA}; move the file away to begin anew")
    missing = [name for name in _REQUIRED if name not in item]
    if missing or item["kind"] not in KINDS or not isinstance(item["time_s"], (int, float)):
        raise DocumentError(f"{where}: an entry has {', '.join(_REQUIRED)} and one of the kinds {', '.join(KINDS)}")
    if item["kind"] == "decision" and not {"evidence", "diagnosis_class", "requeue"} <= set(item):
        raise DocumentError(f"{where}: a decision names its evidence, diagnosis_class and requeue")
