"""What must be equal within one node. A fault that all nodes share is invisible to a comparison of nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from ..hardware.node import Gpu, Nic, NodeDocument, Port
from .addresses import routable_addresses
from .environment_rdma import compute_ports
from .findings import Finding
from .rails import RailPlan


@dataclass(frozen=True)
class _Part:
    """One GPU, rail or port by its name in messages."""

    name: str
    value: Hashable


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
    ports = compute_ports(document, rails)
    findings: list[Finding] = []
    for kind, name, field in _OF_GPUS:
        findings += _odd(document.host, kind, name, "GPUs", [_gpu(gpu, field) for gpu in document.gpus])
    rates = [_Part(f"rail {rail.index} ({rail.members[0].device})", rail.rate_gbps or None) for rail in rails.rails]
    findings += _odd(document.host, "compute-nic-rate", "rate in Gb/s", "rails", rates)
    for table, read in ((_OF_NICS, _nic), (_OF_PORTS, _port)):
        for kind, name, field in table:
            findings += _odd(document.host, kind, name, "compute ports", [read(pair, field) for pair in ports])
    return findings + _shared_addresses(document, ports)


def _gpu(gpu: Gpu, field: str) -> _Part:
    return _Part(f"GPU {gpu.index}" + (f" ({gpu.bdf})" if gpu.bdf else ""), getattr(gpu, field))


def _nic(pair: tuple[Nic, Port], field: str) -> _Part:
    nic, port = pair
    return _Part(f"{nic.device}/{port.port}", getattr(nic, field))


def _port(pair: tuple[Nic, Port], field: str) -> _Part:
    nic, port = pair
    return _Part(f"{nic.device}/{port.port}", getattr(port, field))


def _odd(host: str, kind: str, name: str, what: str, parts: Sequence[_Part]) -> list[Finding]:
    known = [part for part in parts if part.value is not None]
    counts = Counter(part.value for part in known)
    if len(counts) < 2:
        return []
    norm, count = counts.most_common(1)[0]
    odd = ", ".join(f"{part.name} has {part.value}" for part in known if part.value != norm)
    return [Finding(kind, host, f"{name} differs within the node: {odd}; {count} of {len(known)} {what} have {norm}")]


def _shared_addresses(document: NodeDocument, ports: Sequence[tuple[Nic, Port]]) -> list[Finding]:
    """Name an address that two compute ports have: answers go to whichever answered last."""
    owners: dict[str, list[str]] = {}
    for nic, port in ports:
        for address in dict.fromkeys(map(str, routable_addresses(document, port))):
            owners.setdefault(address, []).append(f"{nic.device}/{port.port}")
    return [
        Finding("compute-nic-address", document.host, f"{' and '.join(names)} have the same address {address}")
        for address, names in owners.items()
        if len(names) > 1
    ]
