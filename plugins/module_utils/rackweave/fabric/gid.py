"""Which row of a port's GID table NCCL will use, and whether a packet sent with it can arrive.

Follows the search of NCCL 2.21 and later (src/transport/net_ib, `ncclIbGetGidIndex`): start at row 0; a later row of
the wanted family replaces one of another family; within the wanted family, a routable row of the wanted RoCE version
replaces one of another version. Older NCCL searches nothing and takes row 0 unless an index is pinned.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from ..hardware.address_text import Address
from ..hardware.node import Gid
from .addresses import gid_address
from .block import Network

SEARCH_SINCE = "2.21"
IPV4, IPV6 = "ipv4", "ipv6"
WANTED_VERSION = 2
_LINK_LOCAL = ipaddress.IPv6Network("fe80::/64")  # NCCL compares the upper 64 bits
_IPV4_LINK_LOCAL = ipaddress.IPv4Network("169.254.0.0/16")


@dataclass(frozen=True)
class GidQuery:
    """What NCCL is told: NCCL_IB_ADDR_FAMILY, NCCL_IB_ADDR_RANGE, NCCL_IB_ROCE_VERSION_NUM, NCCL_IB_GID_INDEX."""

    family: str = IPV4
    within: Network | None = None
    version: int = WANTED_VERSION
    pinned: int | None = None


def roce_version(kind: str | None) -> int | None:
    """Return 1 or 2 of the kernel's words for a row (``IB/RoCE v1``, ``RoCE v2``), None where it says neither."""
    words = (kind or "").lower()
    return 2 if words.endswith("v2") else 1 if words.endswith("v1") else None


def predict_gid_index(gids: Sequence[Gid], query: GidQuery) -> int:
    """Return the index that NCCL (2.21 or later) takes from a table given by its filled rows."""
    if query.pinned is not None:
        return query.pinned
    rows = {gid.index: gid for gid in gids}
    chosen = 0
    for index in range(1, max(rows, default=0) + 2):
        if _replaces(rows.get(index), rows.get(chosen), query):
            chosen = index
    return chosen


def _replaces(candidate: Gid | None, current: Gid | None, query: GidQuery) -> bool:
    if candidate is None:
        # An empty row is all zeros, which NCCL reads as an IPv6 address; it tests validity only within one family.
        return query.family == IPV6 and query.within is None and _family(current) == IPV4
    if not _in_range(candidate, query):
        return False
    family = _family(candidate)
    if family != query.family:
        return False
    if _family(current) != query.family:
        return True
    if not _routable_for_nccl(candidate):
        return False
    version = roce_version(candidate.type)
    differs = current is None or roce_version(current.type) != version or not _routable_for_nccl(current)
    return version == query.version and differs


def _family(gid: Gid | None) -> str:
    return IPV4 if gid is not None and gid_address(gid.gid).version == 4 else IPV6


def _in_range(gid: Gid, query: GidQuery) -> bool:
    return query.within is None or gid_address(gid.gid) in query.within


def _routable_for_nccl(gid: Gid) -> bool:
    """NCCL's own test: filled and not IPv6 link-local. It takes 169.254.0.0/16 for a valid address."""
    address = gid_address(gid.gid)
    if address.version == 4:
        return True
    return int(address) != 0 and address not in _LINK_LOCAL


def gid_fault(gids: Sequence[Gid], index: int, subnets: Sequence[Network]) -> str | None:
    """Return why a row cannot carry traffic between nodes, None where nothing speaks against it."""
    row = next((gid for gid in gids if gid.index == index), None)
    if row is None:
        return f"row {index} is empty"
    address = gid_address(row.gid)
    if address in _LINK_LOCAL or (address.version == 6 and address.is_link_local):
        return f"row {index} is the link-local {address}, which no other subnet reaches"
    if address.version == 4 and address in _IPV4_LINK_LOCAL:
        return f"row {index} is {address}: the port got no address and made one up (169.254.0.0/16)"
    version = roce_version(row.type)
    if version is None:
        return f"row {index} ({address}) is of an unknown RoCE version (the kernel's type file could not be read)"
    if version != WANTED_VERSION:
        return f"row {index} ({address}) is RoCE v{version}: it is not routed and carries no ECN"
    if subnets and not any(address in network for network in subnets):
        names = ", ".join(map(str, subnets))
        return f"row {index} is {address}, outside the fabric's subnets ({names})"
    return None


def gid_table(gids: Sequence[Gid]) -> str:
    """Return the whole table on one line for a message: a fault is only understood with all rows in sight."""
    if not gids:
        return "the table is empty"
    rows = (f"{gid.index}: {gid_address(gid.gid)} v{roce_version(gid.type) or '?'}{_on(gid)}" for gid in gids)
    return "; ".join(rows)


def _on(gid: Gid) -> str:
    return f" on {gid.netdev}" if gid.netdev else ""


def has_gap(gids: Sequence[Gid], index: int) -> bool:
    """Say whether NCCL's search meets an empty row up to ``index`` (some 2.2x versions abort there)."""
    filled = {gid.index for gid in gids}
    return any(row not in filled for row in range(index))


def smallest_cover(networks: Sequence[Network]) -> Network | None:
    """Return the smallest single network that holds all of them, None where the families differ or there are none.

    NCCL_IB_ADDR_RANGE takes one network, but each rail may have its own.
    """
    if not networks or len({network.version for network in networks}) != 1:
        return None
    cover = networks[0]
    while not all(_inside(network, cover) for network in networks):
        cover = cover.supernet()
    return cover


def _inside(network: Network, cover: Network) -> bool:
    return network.network_address in cover and network.broadcast_address in cover


def addresses_of(gids: Sequence[Gid], family: str) -> list[Address]:
    """Return the routable addresses of a family in a table."""
    version = 4 if family == IPV4 else 6
    found = [gid_address(gid.gid) for gid in gids]
    return [address for address in found if address.version == version and not address.is_link_local]
