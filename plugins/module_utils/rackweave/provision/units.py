"""Values of people in units of systemd, which reads more out of a text than its letters.

Source: systemd.unit(5), systemd.syntax(7), systemd.service(5), "Command lines".
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..errors import ProvisionError

# A word of these alone is the same with and without quotes.
_PLAIN = re.compile(r"[A-Za-z0-9_%$@+=:,./-]+")


def unit_setting(value: object) -> str:
    """Return a value that takes the whole rest of its line, such as a path or a description.

    A percent sign would begin a specifier (``%h`` is the home directory): it is doubled.

    Raises:
        ProvisionError: for a line break, or a backslash at the end, which takes in the next line.
    """
    text = str(value)
    if re.search(r"[\r\n]|\\$", text):
        raise ProvisionError(
            f"{text!r} cannot stand in a unit of systemd: it must be one line that ends in no backslash"
        )
    return text.replace("%", "%%")


def unit_quoted(value: object) -> str:
    """Return a value as it stands between double quotes of a setting such as ``Environment=``.

    Raises:
        ProvisionError: for a line break.
    """
    text = str(value)
    if re.search(r"[\r\n]", text):
        raise ProvisionError(f"{text!r} cannot stand in a unit of systemd: it must be one line")
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")


def unit_command(words: Sequence[object]) -> str:
    """Return a command line for ``ExecStart=`` that runs exactly these words.

    A dollar sign would begin a variable, except in the path of the program, where systemd knows none.

    Raises:
        ProvisionError: for a line break.
    """
    program, *arguments = [unit_quoted(word) for word in words]
    escaped = [program, *(word.replace("$", "$$") for word in arguments)]
    return " ".join(word if _PLAIN.fullmatch(word) else f'"{word}"' for word in escaped)
