"""PCI configuration space: access control services (ACS) and the maximum read request size.

Offsets and bits are those of the PCI Express base specification (capability 0x10, extended capability 0x000D).
"""

from __future__ import annotations

from dataclasses import dataclass

CAPABILITIES_POINTER = 0x34
PCIE_CAPABILITY = 0x10
EXTENDED_START = 0x100
FULL_SIZE = 0x1000
ACS_CAPABILITY = 0x000D
# What sends a transfer between two devices of a switch up to the root complex: request redirection, completion
# redirection, upstream forwarding; source validation is what vendors' guides look for.
ACS_BITS = {"SrcValid": 0x01, "ReqRedir": 0x04, "CmpltRedir": 0x08, "UpstreamFwd": 0x10}


@dataclass(frozen=True)
class ConfigSpace:
    """What is read of one function; None where the space was too short to know (not read by root)."""

    acs: frozenset[str] | None
    max_read_request: int | None


def read_config_space(data: bytes) -> ConfigSpace:
    """Return ACS controls that are on (empty: none on, or no such capability) and the read request size in bytes."""
    return ConfigSpace(_acs(data), _max_read_request(data))


def _acs(data: bytes) -> frozenset[str] | None:
    if len(data) < FULL_SIZE:
        return None
    offset = EXTENDED_START
    visited: set[int] = set()
    while EXTENDED_START <= offset <= FULL_SIZE - 8 and offset not in visited:
        visited.add(offset)
        header = _word(data, offset, 4)
        if header in (0, 0xFFFFFFFF):
            break
        if header & 0xFFFF == ACS_CAPABILITY:
            control = _word(data, offset + 6, 2)
            return frozenset(name for name, bit in ACS_BITS.items() if control & bit)
        offset = header >> 20
    return frozenset()


def _max_read_request(data: bytes) -> int | None:
    if len(data) < 64:
        return None
    offset = data[CAPABILITIES_POINTER] & 0xFC
    visited: set[int] = set()
    while 0x40 <= offset <= len(data) - 10 and offset not in visited:
        visited.add(offset)
        if data[offset] == PCIE_CAPABILITY:
            return int(128 << ((_word(data, offset + 8, 2) >> 12) & 0x7))
        offset = data[offset + 1] & 0xFC
    return None


def _word(data: bytes, offset: int, size: int) -> int:
    return int.from_bytes(data[offset : offset + size], "little")
