"""What an inventory says of hosts; Ansible's own mapping raises nothing where it does not know one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_ON = ("true", "yes", "on", "1", "y", "t")


def row_of(variables: Mapping[str, Any], host: str) -> Mapping[str, Any]:
    """Return a host's variables, none for one that the inventory lacks."""
    if host not in variables:
        return {}
    row: Mapping[str, Any] = variables[host]
    return row


def is_on(value: object) -> bool:
    """Whether a value means yes to Ansible, which takes words as well."""
    return value is True or str(value).lower() in _ON
