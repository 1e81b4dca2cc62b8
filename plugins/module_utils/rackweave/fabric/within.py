"""What must be equal within one node. A fault that all nodes share is invisible to a comparison of nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence

from ..hardware.node import Gpu, Nic, NodeDocument, Port
from .addresses import routable_addresses
from .environment_rdma import compute_ports
from .findings import Finding
from .rails import Rail, RailPlan

# Kind of finding, what it is called, field.
_OF_GPUS = (
    ("gpu-model", "model", "name"),
    ("gpu-memory", "memory in bytes", "memory_bytes"),
    ("gpu-ecc", "ECC", "ecc_enabled"),
    ("gpu-nvlink", "active NVLinks", "nvlink_links"),
    ("clock-limit", "maximum SM clock in MHz", "max_sm_clock_mhz"),
    ("gpu-power-limit", "power limit in W", "power_limit_w"),
    ("gpu-vbios", "VBIOS", "vbios"),
)
_OF_NICS = (
    ("compute-nic-firmware", "firmware", "firmware"),
    ("compute-nic-model", "model", "board_id"),
    ("max-read-request", "maximum read request in bytes", "max_read_request"),
)
_OF_PORTS = (
    ("compute-nic-mtu", "MTU", "mtu"),
    ("compute-nic-mtu", "active RDMA MTU", "active_mtu"),
)


def check_evenness(document: NodeDocument, rails: RailPlan) -> list[Finding]:
    """Return what differs between the GPUs, the rails or the compute ports of one node; unknown values say nothing."""
    host, ports = document.host, compute_ports(document, rails)
    findings: list[Finding] = []
    for kind, name, field in _OF_GPUS:
        values = [getattr(gpu, field) for gpu in document.gpus]
        findings += _odd(host, kind, name, "GPUs", values, lambda at: _gpu_name(document.gpus[at]))
    rates = [rail.rate_gbps or None for rail in rails.rails]
    findings += _odd(host, "compute-nic-rate", "rate in Gb/s", "rails", rates, lambda at: _rail_name(rails.rails[at]))
    for kind, name, field in _OF_NICS:
        values = [getattr(nic, field) for nic, _ in ports]
        findings += _odd(host, kind, name, "compute ports", values, lambda at: _port_name(ports[at]))
    for kind, name, field in _OF_PORTS:
        values = [getattr(port, field) for _, port in ports]
        findings += _odd(host, kind, name, "compute ports", values, lambda at: _port_name(ports[at]))
    return findings + _shared_addresses(document, ports)


def _gpu_name(gpu: Gpu) -> str:
    return f"GPU {gpu.index}" + (f" ({gpu.bdf})" if gpu.bdf else "")


def _rail_name(rail: Rail) -> str:
    return f"rail {rail.index} ({rail.members[0].device})"


def _port_name(pair: tuple[Nic, Port]) -> str:
    return f"{pair[0].device}/{pair[1].port}"


def _odd(
    host: str, kind: str, name: str, what: str, values: Sequence[Hashable], name_of: Callable[[int], str]
) -> list[Finding]:
    """Return a finding on the values that are not the most common one; `name_of` names the part at a position."""
    if len(set(values) - {None}) < 2:
        return []
    counts = Counter(value for value in values if value is not None)
    norm, count = counts.most_common(1)[0]
    odd = [f"{name_of(at)} has {value}" for at, value in enumerate(values) if value not in (None, norm)]
    total = sum(counts.values())
    message = f"{name} differs within the node: {', '.join(odd)}; {count} of {total} {what} have {norm}"
    return [Finding(kind, host, message)]


def _shared_addresses(document: NodeDocument, ports: Sequence[tuple[Nic, Port]]) -> list[Finding]:
    """Name an address that two compute ports have: answers go to whichever answered last."""
    rows = [{gid.gid for gid in port.gids if not gid.gid.startswith("fe80")} for _, port in ports]
    if sum(map(len, rows)) == len(set().union(*rows)):
        return []  # the usual case, without reading a single address
    owners: dict[str, list[str]] = {}
    for nic, port in ports:
        for address in dict.fromkeys(map(str, routable_addresses(document, port))):
            owners.setdefault(address, []).append(f"{nic.device}/{port.port}")
    return [
        Finding("compute-nic-address", document.host, f"{' and '.join(names)} have the same address {address}")
        for address, names in owners.items()
        if len(names) > 1
    ]
