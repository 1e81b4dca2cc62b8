"""Text of tools made plain: terminal codes, carriage returns and byte-order marks away, cut output refused."""

from __future__ import annotations

import re

from ..errors import ParseError

# CSI (colours, underline, cursor), OSC (titles, links) and two-byte escapes of ECMA-48.
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")
EXCERPT_LENGTH = 120


def plain(text: str, tool: str) -> str:
    """Return text without terminal codes and with ``\\n`` line ends.

    Raises:
        ParseError: if the text is empty, or a broken terminal code or another control character is left.
    """
    result = _ESCAPES.sub("", text).replace("\r\n", "\n").replace("\ufeff", "")
    if not result.strip():
        raise ParseError(f"{tool}: no output")
    for character in result:
        if character < " " and character not in "\n\t":
            raise ParseError(f"{tool}: control character {character!r} in the output; record it without a terminal")
    return result


def whole_lines(text: str, tool: str) -> list[str]:
    """Return the lines of a tool's plain output.

    Raises:
        ParseError: if the last line has no end: the value in it may be cut, and a cut value still looks like one.
    """
    result = plain(text, tool)
    if not result.endswith("\n"):
        raise ParseError(f"{tool}: the output ends in the middle of a line ({excerpt(result[-EXCERPT_LENGTH:])}): cut?")
    return result.split("\n")[:-1]


def excerpt(line: str) -> str:
    """Return a line quoted and shortened for a message."""
    return repr(line if len(line) <= EXCERPT_LENGTH else line[:EXCERPT_LENGTH] + "…")
