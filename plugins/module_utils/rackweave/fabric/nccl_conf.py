"""NCCL's configuration file, written and read by NCCL's own rules.

Its parser trims nothing: a space before ``=``, a quote or a comment behind a value becomes part of it. Only a ``#`` in
the first column is a comment. Lines end at 4096 bytes, values at 1023.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..errors import FabricError

MAX_LINE, MAX_VALUE = 4096, 1023
_NAME = re.compile(r"[A-Z_][A-Z0-9_]*")


def conf_text(environment: Mapping[str, str]) -> str:
    """Return the file for an environment: ``KEY=value`` lines in the order given.

    Raises:
        FabricError: for a name or a value that NCCL or a shell would read as something else.
    """
    return "".join(f"{name}={checked_value(name, value)}\n" for name, value in environment.items())


def checked_value(name: str, value: str) -> str:
    """Return the value if it survives the file as it is.

    Raises:
        FabricError: if it does not.
    """
    if not _NAME.fullmatch(name):
        raise FabricError(f"{name!r} is no name of an environment variable")
    if len(value.encode()) > MAX_VALUE:
        raise FabricError(f"{name} has {len(value.encode())} bytes; NCCL reads {MAX_VALUE}")
    if not value or not value.isprintable() or value != value.strip() or re.search(r"[\"'`$\\ ]", value):
        raise FabricError(
            f"{name}={value!r}: empty, or with white space, quotes, $ or a backslash, which nothing strips"
        )
    return value


def parse_conf(text: str) -> dict[str, str]:
    """Read a file exactly as NCCL does: later lines win, lines without ``=`` are ignored."""
    result: dict[str, str] = {}
    for line in text.split("\n"):
        if line.startswith("#"):
            continue
        name, equals, value = line[:MAX_LINE].partition("=")
        if equals:
            result[name] = value[:MAX_VALUE]
    return result
