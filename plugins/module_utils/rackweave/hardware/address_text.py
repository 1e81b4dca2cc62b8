"""Addresses as node documents write them: GIDs, and interface addresses in CIDR notation.

Parsing is remembered: the reader checks every address, and the fabric's rules ask for it several times again.
"""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import Union

Address = Union[ipaddress.IPv4Address, ipaddress.IPv6Address]
InterfaceAddress = Union[ipaddress.IPv4Interface, ipaddress.IPv6Interface]
_REMEMBERED = 65536


@lru_cache(maxsize=_REMEMBERED)
def gid_value(gid: str) -> Address:
    """Return the address in a GID: IPv4 where one is embedded (``::ffff:192.0.2.1``), else IPv6.

    Raises:
        ValueError: if the text is no GID.
    """
    address = ipaddress.IPv6Address(gid)
    return address.ipv4_mapped or address


@lru_cache(maxsize=_REMEMBERED)
def interface_address(text: str) -> InterfaceAddress:
    """Return an address with its network.

    Raises:
        ValueError: if the text is no address in CIDR notation.
    """
    return ipaddress.ip_interface(text)
