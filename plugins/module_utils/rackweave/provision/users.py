"""Users that every node shall have with the same number."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ..errors import ProvisionError

_KEYS = ("name", "uid", "home", "shell")
# What useradd takes on all systems that we know: Debian's and EL's own limits are wider than useradd(8) says.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,30}[$]?")


def check_users(rows: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
    """Return the users, if each can be made.

    Raises:
        ProvisionError: naming the user and what is wrong; two users of one number would own each other's files.
    """
    numbers: dict[int, str] = {}
    for row in rows:
        if not isinstance(row, Mapping) or set(row) - set(_KEYS) or not {"name", "uid"} <= set(row):
            raise ProvisionError(f"node_base_users: {row!r} must have name and uid, and may have home and shell")
        name, text = str(row["name"]), str(row["uid"])
        if not _NAME.fullmatch(name) or name == "root":
            raise ProvisionError(
                f"node_base_users: {name!r} is no login name (a letter or '_', then letters, digits, '.', '-', '_'), "
                "or root, who is there"
            )
        if not text.isdecimal() or not 0 < int(text) < 2**31:
            raise ProvisionError(f"node_base_users: uid {row['uid']!r} of {name} must be a number above 0")
        if name in numbers.values():
            raise ProvisionError(f"node_base_users names {name} more than once")
        other = numbers.setdefault(int(text), name)
        if other != name:
            raise ProvisionError(f"node_base_users: {name} and {other} both have the uid {text}")
    return [dict(row) for row in rows]
