"""Addresses of RDMA ports: from their GID table and from the interfaces above them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..errors import FabricError
from ..hardware.address_text import Address, gid_value, interface_address
from ..hardware.node import NodeDocument, Port
from .block import Network


def gid_address(gid: str) -> Address:
    """Return the address in a GID: IPv4 where one is embedded (``::ffff:192.0.2.1``), else IPv6.

    Raises:
        FabricError: if the text is no GID.
    """
    try:
        return gid_value(gid)
    except ValueError as error:
        raise FabricError(f"GID {gid!r} is not written like an IPv6 address: {error}") from error


def routable_addresses(document: NodeDocument, port: Port) -> tuple[Address, ...]:
    """Return the addresses of a port that other nodes could reach: neither link-local nor empty."""
    found = [gid_address(gid.gid) for gid in port.gids]
    names = {port.netdev} - {None}
    for interface in document.interfaces:
        if interface.name in names:
            found.extend(interface_address(text).ip for text in interface.addresses)
    usable = [address for address in found if not address.is_link_local and not address.is_unspecified]
    return tuple(dict.fromkeys(usable))


def subnet_of(addresses: Iterable[Address], networks: Sequence[Network]) -> int | None:
    """Return the position of the first network that holds one of the addresses, None if none does."""
    for position, network in enumerate(networks):
        if any(address in network for address in addresses):
            return position
    return None
