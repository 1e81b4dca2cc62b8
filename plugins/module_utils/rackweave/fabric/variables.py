"""What is known of NCCL's and PyTorch's variables by version: from when they exist, and where they do harm.

`since` is the first NCCL that knows a variable (NCCL's documentation, "Environment Variables"); older versions ignore
it, so rendering it is harmless but without effect. `harmful` gives the versions in which setting it does damage.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..hardware.version import at_least


@dataclass(frozen=True)
class VariableRule:
    """One variable; versions are of NCCL, None for "always"."""

    name: str
    since: str | None
    harmful_from: str | None = None
    harm: str | None = None
    needed_before: str | None = None


RULES = {
    rule.name: rule
    for rule in (
        VariableRule("NCCL_IB_DISABLE", None, "0", "with 1, RDMA is off and every byte goes through TCP sockets"),
        VariableRule("NCCL_IB_HCA", None),
        VariableRule("NCCL_SOCKET_IFNAME", None),
        VariableRule("NCCL_DEBUG", None),
        VariableRule("NCCL_DEBUG_FILE", "2.2"),
        VariableRule("NCCL_DEBUG_SUBSYS", "2.3.4"),
        VariableRule(
            "NCCL_IB_GID_INDEX",
            "2.1",
            harmful_from="2.21",
            harm="a pinned index goes stale when the table changes (flap, SLAAC, VLAN); NCCL finds the row itself",
            needed_before="2.21",
        ),
        VariableRule("NCCL_IB_ADDR_FAMILY", "2.21"),
        VariableRule("NCCL_IB_ADDR_RANGE", "2.21"),
        VariableRule("NCCL_IB_ROCE_VERSION_NUM", "2.21", "2.21", "with 1, packets are not routed and carry no ECN"),
        VariableRule("NCCL_IB_TC", "2.1"),
        VariableRule("NCCL_IB_FIFO_TC", "2.22.3"),
        VariableRule("NCCL_IB_SL", "2.1"),
        VariableRule("NCCL_IB_TIMEOUT", "2.1"),
        VariableRule("NCCL_IB_QPS_PER_CONNECTION", "2.10"),
        VariableRule(
            "NCCL_IB_SPLIT_DATA_ON_QPS",
            "2.18",
            harmful_from="2.20",
            harm="1 was the default before 2.20 and costs latency; only a measurement justifies it",
        ),
        VariableRule("NCCL_IB_ADAPTIVE_ROUTING", "2.16"),
        VariableRule("NCCL_NET", "2.10"),
        VariableRule("NCCL_NET_PLUGIN", "2.11"),
        VariableRule(
            "NCCL_NET_GDR_LEVEL", "2.3.4", "0", "NCCL's own choice is right unless a measurement says otherwise"
        ),
        VariableRule("NCCL_CROSS_NIC", "2.4"),
        VariableRule("NCCL_TOPO_FILE", "2.6"),
        VariableRule("NCCL_NVLS_ENABLE", "2.17", "2.17", "0 hides a fault of fabric manager or NVSwitch for ever"),
        VariableRule("NCCL_P2P_DISABLE", None, "0", "NVLink is not used"),
        VariableRule(
            "NCCL_SHM_DISABLE", None, "0", "shared memory is not used; transfers in a node go through the NIC"
        ),
        VariableRule(
            "NCCL_IGNORE_NET_MISMATCH",
            "2.30",
            harmful_from="2.30",
            harm="1, the default, turns nodes with different NIC counts into a silent hang",
        ),
    )
}
# Least and greatest value, and what others do (InfiniBand specification: 4.096 us * 2^timeout, three and five bits).
RANGES = {
    "NCCL_IB_TIMEOUT": (1, 31, "0 and values from 32 on wait for ever"),
    "NCCL_IB_RETRY_CNT": (0, 7, "the field has three bits"),
    "NCCL_IB_SL": (0, 15, "the field has four bits"),
    "NCCL_IB_TC": (0, 255, "it is one byte"),
    "NCCL_IB_FIFO_TC": (0, 255, "it is one byte"),
    "NCCL_IB_QPS_PER_CONNECTION": (1, 128, "NCCL allows no more"),
}
# Forms of NCCL_IB_HCA with rail and plane numbers.
PLANES_SINCE = "2.30.5"
# nvidia-peermem moved; up to this version NCCL looks in the old place only.
PEERMEM_SEEN_SINCE = "2.23"
# An empty row in the GID table made the search fail in some versions between these two.
GID_GAP_FROM, GID_GAP_UNTIL = "2.21", "2.26"
GID_SEARCH_SINCE = "2.21"


def known(name: str, nccl: str | None) -> bool | None:
    """Say whether a version of NCCL knows a variable; None where version or variable is not known here."""
    rule = RULES.get(name)
    if rule is None:
        return None
    return True if rule.since is None else at_least(nccl, rule.since)


def standing(name: str, nccl: str) -> str:
    """Return ``needed``, ``harmless``, ``harmful`` or ``unknown to this NCCL`` for a variable and a version."""
    rule = RULES.get(name)
    if rule is None:
        return "harmless"
    if known(name, nccl) is False:
        return "unknown to this NCCL"
    if rule.needed_before and at_least(nccl, rule.needed_before) is False:
        return "needed"
    if rule.harmful_from and at_least(nccl, rule.harmful_from):
        return "harmful"
    return "harmless"


def harm_of(name: str, value: str, nccl: str) -> str | None:
    """Return what an operator's value does, None where nothing speaks against it."""
    outside = _outside(name, value)
    if outside:
        return outside
    rule = RULES.get(name)
    safe = {"NCCL_IB_DISABLE": "0", "NCCL_P2P_DISABLE": "0", "NCCL_SHM_DISABLE": "0", "NCCL_IB_ROCE_VERSION_NUM": "2"}
    safe.update({"NCCL_IGNORE_NET_MISMATCH": "0", "NCCL_IB_SPLIT_DATA_ON_QPS": "0"})
    if rule is None or standing(name, nccl) != "harmful" or safe.get(name) == value:
        return None
    if name == "NCCL_NVLS_ENABLE" and value != "0":
        return None
    return rule.harm


def _outside(name: str, value: str) -> str | None:
    """Return what a number outside its range does, None for one within."""
    limits = RANGES.get(name)
    if limits is None or (value.isascii() and value.isdigit() and limits[0] <= int(value) <= limits[1]):
        return None
    return f"it must be a whole number from {limits[0]} to {limits[1]}; {limits[2]}"
