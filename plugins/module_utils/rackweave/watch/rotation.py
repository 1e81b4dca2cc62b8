"""Rotated logs: which files are parts of one, and in what order they were written."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

_PACKED = re.compile(r"\.gz$")
# logrotate and Python's handlers: ``train.log.2``, ``train.log-20260801``, ``train.log.2026-08-01``.
_PART = re.compile(
    r"(?P<stem>.+?)(?:\.(?P<number>\d{1,3})|[.-](?P<date>\d{4}-\d\d-\d\d|\d{8})(?:[-_.T]?(?P<clock>[\d-]{2,8}))?)$"
)


@dataclass(frozen=True)
class Span:
    """First and last time of a file, None where it tells none."""

    first: datetime | None = None
    last: datetime | None = None


def in_order(paths: Sequence[str], span: Callable[[str], Span] = lambda path: Span()) -> list[tuple[str, bool]]:
    """Return the paths so that the parts of a rotated log follow each other, oldest first.

    Args:
        paths: as they were given; a rotated log takes the place of its first part.
        span: the times of a file, asked only for what looks like parts. Files whose times overlap were written side by
            side, as those of several ranks are, and are no rotated log.

    Returns:
        Each path, and whether it goes on where the one before it ends.
    """
    whole = {_PACKED.sub("", path) for path in paths}
    logs: dict[str, list[str]] = {}
    for path in paths:
        logs.setdefault(_log_of(path, whole), []).append(path)
    ordered: list[tuple[str, bool]] = []
    for parts in logs.values():
        if len(parts) == 1:
            ordered.append((parts[0], False))
            continue
        parts = sorted(parts, key=_age)
        one_log = _follow_each_other([span(path) for path in parts])
        ordered += [(path, at > 0 and one_log) for at, path in enumerate(parts)]
    return ordered


def _follow_each_other(spans: Sequence[Span]) -> bool:
    for earlier, later in zip(spans, spans[1:]):
        end = earlier.last or earlier.first
        if end is not None and later.first is not None and later.first < end:
            return False
    return True


def _log_of(path: str, whole: set[str]) -> str:
    """The file that is still written, of which a path is an older part; itself where there is none."""
    name = _PACKED.sub("", path)
    part = _PART.match(name)
    return part["stem"] if part and part["stem"] in whole else name


def _age(path: str) -> tuple[int, int, str]:
    """Sorts the oldest part first and the file that is still written last."""
    part = _PART.match(_PACKED.sub("", path))
    if part is None:
        return (2, 0, "")
    if part["number"]:
        return (1, -int(part["number"]), "")
    return (1, 0, f"{part['date'].replace('-', '')} {part['clock'] or ''}")
