"""The strike ledger: which nodes were blamed, by which evidence, over all jobs; only a repair clears a strike."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from ..errors import DocumentError

SCHEMA = "rackweave.strikes/1"
# A node that is blamed twice is drained, thrice goes to repair.
DRAIN_AT = 2
REPAIR_AT = 3


@dataclass(frozen=True)
class Strike:
    """One blame: the node, the evidence that led to it and its class; ``time`` is seconds of the epoch."""

    host: str
    evidence: str
    diagnosis_class: str
    time: float = 0.0


@dataclass(frozen=True)
class Ledger:
    """All strikes; every change returns a new ledger."""

    entries: tuple[Strike, ...] = ()

    def blame(self, hosts: Iterable[str], evidence: str, diagnosis_class: str, time: float = 0.0) -> Ledger:
        """Add one strike for each host; the same evidence counts once for a host."""
        known = {(entry.host, entry.evidence) for entry in self.entries}
        fresh = [Strike(host, evidence, diagnosis_class, time) for host in dict.fromkeys(hosts)]
        return Ledger(self.entries + tuple(entry for entry in fresh if (entry.host, evidence) not in known))

    def strikes(self, host: str) -> int:
        """How many different pieces of evidence blame a host."""
        return sum(1 for entry in self.entries if entry.host == host)

    def forgive(self, host: str) -> Ledger:
        """Drop a host's strikes after its repair."""
        return Ledger(tuple(entry for entry in self.entries if entry.host != host))

    def worst(self) -> list[tuple[str, int]]:
        """Hosts by number of strikes, most first."""
        hosts = {entry.host for entry in self.entries}
        return sorted(((host, self.strikes(host)) for host in hosts), key=lambda pair: (-pair[1], pair[0]))


def to_json(ledger: Ledger) -> str:
    """The ledger as a document."""
    rows = [
        {"host": e.host, "evidence": e.evidence, "diagnosis_class": e.diagnosis_class, "time": e.time}
        for e in ledger.entries
    ]
    return json.dumps({"schema": SCHEMA, "strikes": rows}, indent=2) + "\n"


def from_json(text: str, where: str = "strike ledger") -> Ledger:
    """Read a ledger.

    Raises:
        DocumentError: if it is no JSON, of another schema, or has a key or a type that is not known.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DocumentError(f"{where}: not JSON: {error}; move the file away to begin without strikes") from error
    if not isinstance(document, dict) or document.get("schema") != SCHEMA or set(document) != {"schema", "strikes"}:
        raise DocumentError(f"{where}: expected schema {SCHEMA} with the keys schema and strikes")
    entries = []
    for row in document["strikes"] if isinstance(document["strikes"], list) else [None]:
        if not isinstance(row, dict) or set(row) != {"host", "evidence", "diagnosis_class", "time"}:
            raise DocumentError(f"{where}: a strike has the keys host, evidence, diagnosis_class and time")
        host, evidence, name, time = row["host"], row["evidence"], row["diagnosis_class"], row["time"]
        if not all(isinstance(value, str) for value in (host, evidence, name)) or not isinstance(time, (int, float)):
            raise DocumentError(f"{where}: wrong type in the strike of {host!r}")
        entries.append(Strike(host, evidence, name, float(time)))
    return Ledger(tuple(entries))
