"""Which documents are held out, and the yardstick that a held-out split gives."""

from __future__ import annotations

import math
from collections import Counter


def is_validation(document: int, fraction: float) -> bool:
    """Tell whether a document is held out; the held-out ones are spread evenly over the corpus."""
    return math.floor((document + 1) * fraction) > math.floor(document * fraction)


class ByteCounts:
    """Counts of byte values."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def add(self, content: bytes) -> None:
        """Count the bytes of a document."""
        self._counts.update(content)

    @property
    def total(self) -> int:
        """Bytes counted."""
        return sum(self._counts.values())

    def entropy_nats(self) -> float:
        """Return the entropy of the byte distribution in nats: what knowing byte frequencies alone reaches."""
        total = self.total
        return -sum(count / total * math.log(count / total) for count in self._counts.values())
