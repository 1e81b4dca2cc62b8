"""One line that shows how far a run is, for a terminal that can rewrite it."""

from __future__ import annotations

import re

# As `run.progress.progress_line` writes it, behind the name of the run.
_LINE = re.compile(r"^\[(?P<run>[^\]]+)\] step (?P<step>\d+)(?:/(?P<target>\d+))?(?: \| (?P<rest>.*))?$")
_NARROWEST_BAR = 8


def progress_of(line: str) -> tuple[str, int, int | None, str] | None:
    """Return run, step, target step and the rest of a progress line; None for any other line."""
    match = _LINE.match(line.strip())
    if match is None:
        return None
    target = int(match["target"]) if match["target"] else None
    return match["run"], int(match["step"]), target, match["rest"] or ""


def bar(line: str, width: int) -> str | None:
    """Return a progress line as a bar of at most ``width`` characters; None for any other line."""
    found = progress_of(line)
    if found is None:
        return None
    run, step, target, rest = found
    if not target:
        return line.strip()[:width]
    share = min(1.0, step / target)
    head, tail = f"{run} ", f" {share:4.0%} {step}/{target}"
    room = width - len(head) - len(tail)
    if room < _NARROWEST_BAR + 2:
        return (head + tail.strip())[:width]
    words = rest.replace(" | ", "  ")
    size = max(_NARROWEST_BAR, min(30, room - 4 - len(words)))
    full = round(size * share)
    drawn = f"{head}[{'#' * full}{'-' * (size - full)}]{tail}"
    return f"{drawn}  {words}".rstrip()[:width]
