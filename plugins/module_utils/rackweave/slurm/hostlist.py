"""Host names as Slurm writes them: ``gpu[01-04,07]``."""

from __future__ import annotations

import re
from collections.abc import Iterable

_NUMBERED = re.compile(r"^(.*?)(\d+)$")


def compress(names: Iterable[str]) -> str:
    """Return one hostlist expression that expands to exactly these names.

    Names of different padding are kept apart: ``node-[001-002]`` never swallows ``node-10``.
    """
    groups: dict[tuple[str, int], list[int]] = {}
    plain: list[str] = []
    for name in sorted(set(names)):
        match = _NUMBERED.match(name)
        if match is None:
            plain.append(name)
            continue
        prefix, digits = match.groups()
        # Without a leading zero 9 and 10 belong to one range; with one, the width is part of the name.
        width = len(digits) if digits.startswith("0") else 0
        groups.setdefault((prefix, width), []).append(int(digits))
    _join_full_width(groups)
    parts = [_expression(prefix, width, sorted(numbers)) for (prefix, width), numbers in sorted(groups.items())]
    return ",".join([*parts, *plain])


def _join_full_width(groups: dict[tuple[str, int], list[int]]) -> None:
    """Give 10 to the padded group of 08 and 09, where its width is the same."""
    for prefix, width in [key for key in groups if key[1]]:
        unpadded = groups.get((prefix, 0), [])
        same_width = [number for number in unpadded if len(str(number)) == width]
        groups[(prefix, width)] += same_width
        rest = [number for number in unpadded if len(str(number)) != width]
        if rest:
            groups[(prefix, 0)] = rest
        else:
            groups.pop((prefix, 0), None)


def _expression(prefix: str, width: int, numbers: list[int]) -> str:
    if len(numbers) == 1:
        return f"{prefix}{numbers[0]:0{width}d}"
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    texts = [f"{low:0{width}d}" if low == high else f"{low:0{width}d}-{high:0{width}d}" for low, high in ranges]
    return f"{prefix}[{','.join(texts)}]"
