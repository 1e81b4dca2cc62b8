"""Keys and values of Slurm's files: merged without regard to case, refused where Slurm would read them otherwise."""

from __future__ import annotations

import re
from collections.abc import Mapping

from .munge import SlurmError

_KEY = re.compile(r"^[A-Za-z][A-Za-z0-9_]*$")
# Node, partition, switch and cluster names: what Slurm's parser reads as one word that is no host list.
_NAME = re.compile(r"^[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?$")
_RESERVED = ("default", "all")


def merge(where: str, defaults: Mapping[str, str], given: Mapping[str, object]) -> dict[str, str]:
    """Return the defaults overridden by what is given; an empty or null value takes a key away.

    Args:
        where: variable of the inventory, for messages.
        defaults: key to text.
        given: key to value of any plain type; keys count without regard to case, for Slurm refuses one given twice.

    Raises:
        SlurmError: for a key or a value that Slurm would read as something else.
    """
    merged = dict(defaults)
    names = {key.lower(): key for key in merged}
    for key, value in given.items():
        if not _KEY.match(str(key)):
            raise SlurmError(f"{where}: {key!r} is not a key of Slurm's files")
        known = names.setdefault(key.lower(), key)
        merged[known] = value_text(where, key, value)
    return {key: text for key, text in merged.items() if text != ""}


def value_text(where: str, key: str, value: object) -> str:
    """Return a value as Slurm reads it: ``yes`` and ``no``, lists with commas, null as empty.

    Raises:
        SlurmError: for several lines, a mapping, or a ``#``, behind which Slurm reads nothing.
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        raise SlurmError(f"{where}: the value of {key} is a mapping; Slurm knows texts, numbers and lists only")
    text = ",".join(str(item) for item in value) if isinstance(value, (list, tuple)) else str(value).strip()
    if "\n" in text or "\r" in text:
        raise SlurmError(f"{where}: the value of {key} has more than one line")
    if "#" in text:
        raise SlurmError(
            f"{where}: the value of {key} has a '#' ({text!r}): Slurm takes the rest of the line as a comment"
        )
    return text


def check_word(where: str, key: str, text: str) -> str:
    """Return a value that stands on a line with others, which a space outside of quotes would end.

    Raises:
        SlurmError: if it has one.
    """
    if re.search(r"\s", re.sub(r'"[^"]*"', "", text)):
        raise SlurmError(f"{where}: the value of {key} has a space ({text!r}), which would begin another key")
    return text


def check_name(what: str, name: str) -> str:
    """Return a name that Slurm reads as one plain name.

    Raises:
        SlurmError: for brackets, commas, spaces and the like, and for the words that Slurm keeps for itself.
    """
    if not _NAME.match(name) or name.lower() in _RESERVED:
        raise SlurmError(
            f"{what} {name!r} cannot be a name in Slurm: letters, digits, '-', '_', '.', and neither ALL nor DEFAULT"
        )
    return name
