"""What `verify` leaves behind: the gate's verdict with each host's difference from its accepted document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..hardware.difference import compare_documents, consequences
from ..hardware.node import NodeDocument
from .findings import Finding, ordered
from .gate import GateVerdict

SCHEMA = "rackweave.verify/1"


def verification_report(
    verdict: GateVerdict, documents: Sequence[NodeDocument], accepted: Mapping[str, NodeDocument]
) -> dict[str, object]:
    """Return the content of ``verify.json``."""
    differences: dict[str, object] = {}
    findings: list[Finding] = []
    for document in documents:
        before = accepted.get(document.host)
        changes = () if before is None or before is document else compare_documents(before, document)
        if not changes:
            continue
        differences[document.host] = {
            "changes": [change.as_dict() for change in changes],
            "consequences": list(consequences(changes)),
        }
        findings += [Finding("accepted-difference", document.host, change.message) for change in changes]
    values = verdict.as_dict()
    shown = (*verdict.findings, *ordered(findings))
    values["findings"] = [finding.as_dict() for finding in ordered(list(shown))]
    return {
        "schema": SCHEMA,
        **values,
        "origins": {document.host: document.origin for document in documents},
        "without_baseline": [document.host for document in documents if document.host not in accepted],
        "differences": differences,
    }


def origin_findings(documents: Sequence[NodeDocument]) -> list[Finding]:
    """Return what forbids a launch on hosts known only by documents that nobody measured."""
    found = [
        Finding("origin", it.host, "only an example document is known of it; observe the real node first")
        for it in documents
        if it.origin == "example"
    ]
    real = {document.origin for document in documents} - {"example"}
    if len(real) > 1:
        simulated = [document.host for document in documents if document.origin == "simulated"]
        message = "its document is simulated, those of other hosts are measured"
        found += [Finding("origin", host, message) for host in simulated]
    return found
