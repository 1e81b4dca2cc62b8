"""Comparison of version strings by their leading numbers."""

from __future__ import annotations

import re
from functools import lru_cache


@lru_cache(maxsize=256)
def version_numbers(text: str) -> tuple[int, ...]:
    """Return the leading dotted numbers: ``2.22.3+cuda12.6`` is (2, 22, 3), an empty tuple where there are none."""
    match = re.match(r"\d+(?:\.\d+)*", text.strip())
    return tuple(int(piece) for piece in match[0].split(".")) if match else ()


def at_least(text: str | None, minimum: str) -> bool | None:
    """Say whether a version is the minimum or newer; None where the version is unknown or not a number."""
    numbers = version_numbers(text or "")
    wanted = version_numbers(minimum)
    if not numbers:
        return None
    width = max(len(numbers), len(wanted))
    return numbers + (0,) * (width - len(numbers)) >= wanted + (0,) * (width - len(wanted))
