"""Orders in which people number things: mlx5_2 before mlx5_10, and PCI addresses by their numbers."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"(\d+)")


def natural_key(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key that compares runs of digits as numbers."""
    pieces = _NUMBER.split(name)
    return tuple((0, int(piece), "") if piece.isdigit() else (1, 0, piece) for piece in pieces if piece)


def bdf_key(bdf: str) -> tuple[int, ...]:
    """Return a sort key for a PCI address ``domain:bus:device.function`` (all hexadecimal)."""
    return tuple(int(piece, 16) for piece in re.split("[:.]", bdf))
