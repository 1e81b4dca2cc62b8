"""Making observed hardware the accepted baseline: the document that goes to git, and what it changes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..errors import DocumentError
from .compact import document_text
from .difference import Change, compare_documents, consequences
from .node import AcceptanceTests, NodeDocument


@dataclass(frozen=True)
class Acceptance:
    """The new baseline of one host: file content, and the difference from the old one in words."""

    host: str
    content: str
    first: bool
    changes: tuple[Change, ...]

    def as_dict(self) -> dict[str, object]:
        return {
            "host": self.host,
            "first": self.first,
            "changes": [change.as_dict() for change in self.changes],
            "consequences": list(consequences(self.changes)),
        }


def accept_document(
    observed: NodeDocument, accepted: NodeDocument | None, tests: AcceptanceTests | None = None
) -> Acceptance:
    """Return the baseline that the observed document makes.

    Args:
        tests: how the node was just tested; without it, what was known of the same hardware stays.

    Raises:
        DocumentError: for an example (it describes no machine), or a simulated document over a measured one.
    """
    if observed.origin == "example":
        raise DocumentError(f"{observed.host}: an example document describes no machine and cannot be accepted")
    if accepted is not None and accepted.host != observed.host:
        raise DocumentError(f"the baseline is of {accepted.host}, the observed document of {observed.host}")
    if accepted is not None and accepted.origin == "measured" and observed.origin == "simulated":
        raise DocumentError(f"{observed.host}: a simulated document must not replace a measured baseline")
    changes = () if accepted is None else compare_documents(accepted, observed)
    if tests is None and accepted is not None and not changes:
        tests = accepted.acceptance
    settled = replace(observed.without_volatile(), acceptance=tests)
    return Acceptance(observed.host, document_text(settled), accepted is None, changes)
