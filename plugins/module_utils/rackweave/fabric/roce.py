"""Arithmetic of RoCE quality of service: ToS byte, DSCP, ECN bits, priority, PFC bitmap.

The ToS byte (NCCL calls it traffic class) is the DSCP in its upper six bits and ECN in its lower two (RFC 2474,
RFC 3168). NICs map DSCP to one of eight priorities; out of the factory in eight blocks of eight.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..errors import FabricError

TRAFFIC_CLASSES = 256
DSCP_VALUES = 64
PRIORITIES = 8
CONGESTION_EXPERIENCED = 3
ECN_CAPABLE = 2  # ECT(0); with the bits clear, switches drop instead of marking
DEFAULT_DSCP_TO_PRIORITY = tuple(dscp >> 3 for dscp in range(DSCP_VALUES))


def dscp_of(traffic_class: int) -> int:
    """Return the DSCP of a ToS byte."""
    return _within("traffic_class", traffic_class, TRAFFIC_CLASSES) >> 2


def ecn_bits_of(traffic_class: int) -> int:
    """Return the ECN bits of a ToS byte: 0 not capable, 1 or 2 capable, 3 congestion experienced."""
    return _within("traffic_class", traffic_class, TRAFFIC_CLASSES) & 3


def traffic_class_of(dscp: int, ecn: bool) -> int:
    """Return the ToS byte for a DSCP, ECN-capable or not."""
    return _within("dscp", dscp, DSCP_VALUES) << 2 | (ECN_CAPABLE if ecn else 0)


def priority_of(traffic_class: int, dscp_to_priority: Sequence[int] = DEFAULT_DSCP_TO_PRIORITY) -> int:
    """Return the priority that a ToS byte gets on a port that trusts DSCP."""
    return dscp_to_priority[dscp_of(traffic_class)]


def traffic_classes_for(priorities: Iterable[int], dscp_to_priority: Sequence[int]) -> tuple[int, ...]:
    """Return every ToS byte whose packets get one of the priorities."""
    wanted = set(priorities)
    return tuple(value for value in range(TRAFFIC_CLASSES) if dscp_to_priority[value >> 2] in wanted)


def as_ranges(values: Sequence[int]) -> str:
    """Return rising numbers as ranges for a message: ``160-191``."""
    pieces: list[str] = []
    for value in values:
        if pieces and int(pieces[-1].split("-")[-1]) == value - 1:
            pieces[-1] = f"{pieces[-1].split('-')[0]}-{value}"
        else:
            pieces.append(str(value))
    return ", ".join(pieces) or "none"


def pfc_bitmap(priorities: Iterable[int]) -> int:
    """Return the bitmap with bit N set for priority N (8 for priority 3)."""
    return sum(1 << _within("priority", priority, PRIORITIES) for priority in set(priorities))


def pfc_list(priorities: Iterable[int]) -> str:
    """Return the list form that ``mlnx_qos --pfc`` takes: ``0,0,0,1,0,0,0,0``."""
    bitmap = pfc_bitmap(priorities)
    return ",".join(str(bitmap >> priority & 1) for priority in range(PRIORITIES))


def _within(name: str, value: int, count: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < count:
        raise FabricError(f"{name}={value!r} must be a whole number from 0 to {count - 1}")
    return value
