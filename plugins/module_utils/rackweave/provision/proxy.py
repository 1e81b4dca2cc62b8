"""The way out of a site: a proxy as environment of tasks and as setting of the package manager."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from ..errors import ProvisionError

_KEYS = ("http", "https", "no_proxy")


def proxy_environment(settings: Mapping[str, object]) -> dict[str, str]:
    """Return the environment variables of a proxy, in both spellings that programs look for.

    Args:
        settings: ``http`` and ``https`` (addresses, each may be missing) and ``no_proxy`` (a list of hosts or domains).

    Raises:
        ProvisionError: for an unknown key, an address without scheme, or one with a password: it would end in files
            that every user can read, and in the output of every task.
    """
    unknown = sorted(set(settings) - set(_KEYS))
    if unknown:
        raise ProvisionError(f"rackweave_proxy knows {', '.join(_KEYS)}, not {', '.join(unknown)}")
    environment = {}
    for key in ("http", "https"):
        address = str(settings.get(key) or "")
        if not address:
            continue
        _check(key, address)
        environment[f"{key}_proxy"] = environment[f"{key.upper()}_PROXY"] = address
    hosts = settings.get("no_proxy") or []
    names = ",".join(map(str, hosts)) if isinstance(hosts, (list, tuple)) else str(hosts)
    if environment and names:
        environment["no_proxy"] = environment["NO_PROXY"] = names
    return environment


def _check(key: str, address: str) -> None:
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ProvisionError(f"rackweave_proxy.{key} is no address such as http://proxy.example.org:3128")
    if parts.password is not None or parts.username is not None:
        raise ProvisionError(
            f"rackweave_proxy.{key} holds a user or password, which files readable by everybody would then hold too; "
            f"let {parts.hostname} admit the nodes by address, or set it up on the nodes yourself"
        )
