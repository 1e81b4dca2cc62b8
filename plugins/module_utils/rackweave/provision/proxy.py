"""The way out of a site: a proxy as environment of tasks and as setting of the package manager."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping

from ..errors import ProvisionError
from .addresses import split_address

_KEYS = ("http", "https", "no_proxy")
# apt names a host that is asked without proxy in the key of a setting, where a colon or a star means something else.
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")


def proxy_environment(settings: Mapping[str, object]) -> dict[str, str]:
    """Return the environment variables of a proxy, in both spellings that programs look for.

    Args:
        settings: ``http`` and ``https`` (addresses, each may be missing) and ``no_proxy`` (hosts, domains and
            networks: a list, or one text with commas).

    Raises:
        ProvisionError: for an unknown key, an address without scheme, or one with a password: it would end in files
            that every user can read, and in the output of every task.
    """
    unknown = sorted(str(key) for key in set(settings) - set(_KEYS))
    if unknown:
        raise ProvisionError(f"rackweave_proxy knows {', '.join(_KEYS)}, not {', '.join(unknown)}")
    environment = {}
    for key in ("http", "https"):
        address = str(settings.get(key) or "")
        if not address:
            continue
        _check(key, address)
        environment[f"{key}_proxy"] = environment[f"{key.upper()}_PROXY"] = address
    names = _exceptions(settings)
    if environment and names:
        environment["no_proxy"] = environment["NO_PROXY"] = ",".join(names)
    return environment


def direct_hosts(settings: Mapping[str, object], uris: Iterable[str]) -> list[str]:
    """Return the hosts that a package manager asks without the proxy, for one that knows neither domains nor networks.

    Args:
        settings: as for :func:`proxy_environment`.
        uris: addresses of repositories; the host of each that an exception covers is in the result.

    Raises:
        ProvisionError: for an address that cannot be taken apart.
    """
    exceptions = _exceptions(settings)
    named = {name for name in exceptions if _HOST.fullmatch(name)}
    mirrors = {split_address(str(uri), "a repository's address").hostname or "" for uri in uris}
    covered = {host for host in mirrors if any(_covers(name, host) for name in exceptions)}
    return sorted(host for host in named | covered if _HOST.fullmatch(host))


def _exceptions(settings: Mapping[str, object]) -> list[str]:
    value = settings.get("no_proxy") or []
    parts = value if isinstance(value, (list, tuple)) else str(value).split(",")
    return [text for text in (str(part).strip() for part in parts) if text]


def _covers(name: str, host: str) -> bool:
    """Return whether an exception covers a host, as programs read it: itself and everything below it."""
    if name == "*":
        return True
    domain = name.lower().lstrip("*").lstrip(".")
    if domain and (host == domain or host.endswith(f".{domain}")):
        return True
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(name, strict=False)
    except ValueError:  # names, not addresses
        return False


def _check(key: str, address: str) -> None:
    parts = split_address(address, f"rackweave_proxy.{key}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ProvisionError(f"rackweave_proxy.{key} is no address such as http://proxy.example.org:3128")
    if parts.password is not None or parts.username is not None:
        raise ProvisionError(
            f"rackweave_proxy.{key} holds a user or password, which files readable by everybody would then hold too; "
            f"let {parts.hostname} admit the nodes by address, or set it up on the nodes yourself"
        )
