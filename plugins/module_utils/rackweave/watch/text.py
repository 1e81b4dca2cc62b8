"""From a stream of bytes to bounded, readable lines: CRLF, progress bars, ANSI colours, endless lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

# A line longer than this is handed on in pieces, so that memory stays bounded whatever is fed.
MAX_LINE_BYTES = 16384
# Pieces overlap by this much, so that no message shorter than it is cut in two.
OVERLAP_BYTES = 512

_ANSI = re.compile(
    r"\x1b(?:\[[0-?]{0,32}[ -/]{0,8}[@-~]|\][^\x07\x1b]{0,256}(?:\x07|\x1b\\)?|[()][0-9A-B]|[=>78cDEHM])"
)
_CONTROL = dict.fromkeys([*range(9), *range(11, 32), 127], None)


def split_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield lines without their ends; each is at most MAX_LINE_BYTES long.

    A carriage return ends a line too, since progress bars use it that way.
    """
    rest = b""
    for chunk in chunks:
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r", b"\n")
        lines = chunk.split(b"\n")
        if len(lines) == 1:
            rest += chunk
            if len(rest) > MAX_LINE_BYTES:
                *pieces, rest = _pieces(rest)
                yield from pieces
            continue
        lines[0] = rest + lines[0]
        rest = lines.pop()
        for line in lines:
            if len(line) <= MAX_LINE_BYTES:
                yield line
            else:
                yield from _pieces(line)
    yield from _pieces(rest)


def _pieces(line: bytes) -> list[bytes]:
    """Cut one long line into overlapping pieces; a short one comes back whole."""
    if len(line) <= MAX_LINE_BYTES:
        return [line]
    step = MAX_LINE_BYTES - OVERLAP_BYTES
    starts = range(0, len(line) - OVERLAP_BYTES, step)
    return [line[start : start + MAX_LINE_BYTES] for start in starts]


def clean(line: bytes) -> str:
    """Return the text of a line without colours and control characters; undecodable bytes are replaced."""
    text = line.decode("utf-8", "replace")
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    return text if text.isprintable() else text.translate(_CONTROL)


def as_chunks(lines: str | bytes | Iterable[str | bytes]) -> Iterator[bytes]:
    """Accept a text, a byte string, or an iterable of either; an item without a line end is a whole line."""
    if isinstance(lines, str):
        yield lines.encode("utf-8", "replace")
        return
    if isinstance(lines, bytes):
        yield lines
        return
    for item in lines:
        if isinstance(item, str):
            yield (item if item.endswith("\n") else item + "\n").encode("utf-8", "replace")
        else:
            yield item
