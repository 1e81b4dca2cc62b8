"""Addresses that people wrote, taken apart: what Python's parser refuses in words of its own is one sentence here."""

from __future__ import annotations

import ipaddress
from urllib.parse import SplitResult, urlsplit

from ..errors import ProvisionError


def split_address(address: str, what: str) -> SplitResult:
    """Return the parts of an address; those that are not there are empty or None.

    Args:
        address: such as ``http://proxy.example.org:3128``. It may hold a password, so no message repeats it.
        what: names it in the message.

    Raises:
        ProvisionError: for brackets without their partner, a host in them that is no IPv6 address, or a port that is
            no number up to 65535.
    """
    try:
        parts = urlsplit(address)
        _ = parts.port  # read only now, and refused only now
        if "[" in parts.netloc:  # older Pythons take anything in brackets
            ipaddress.IPv6Address((parts.hostname or "").partition("%")[0])
    except ValueError as exc:
        raise ProvisionError(
            f"{what} has no host and port that can be read; write them like https://mirror.example.org:8443/debian, "
            "an IPv6 address like http://[2001:db8::1]:3128"
        ) from exc
    return parts
