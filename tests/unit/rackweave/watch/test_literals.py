"""The fast filter is read from the patterns: what it asks for is in every match."""

from __future__ import annotations

import pytest
from rackweave.watch.literals import required


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [
        (r"(?i)transport retry count(?:er)? exceeded", {"transport retry count"}),
        (r"(?:CUDA|HIP) out of memory", {" out of memory"}),
        (r"[Ff]ailed to open|libibverbs missing", {"failed to open", "libibverbs missing"}),
        (r"Xid \(PCI:(?P<bdf>[0-9a-f:.]+)\): 79\b", {"xid (pci:"}),
        (r"(?:alpha )?bravo(?! charlie)\b.{0,9}delta?", {"bravo"}),
        (r"\[Errno 116\]", {"[errno ]"}),
        (r"x{2,3}(?P<one>first|second) y*", {"first", "second"}),
    ],
)
def test_every_alternative_gives_a_text(pattern: str, texts: set[str]) -> None:
    assert required(pattern) == texts


@pytest.mark.parametrize("pattern", [r"\d+", r"ab|cdef", r"(?:long text)?", r"a.b.c"])
def test_a_pattern_that_cannot_be_filtered_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="give each alternative a word"):
        required(pattern)
