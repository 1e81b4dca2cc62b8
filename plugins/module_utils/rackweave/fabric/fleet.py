"""The fleet gate: node documents against each other; the odd one out is named by majority.

A job runs as slow as its slowest node, and many differences show as a hang instead of an error. Each check looks at
one value per host; the most common value is the norm.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median_low

from ..hardware.address_text import interface_address
from ..hardware.node import Gpu, Nic, NodeDocument, Port, priority_runs
from .distance import LEVELS, pcie_distance
from .environment_rdma import compute_ports
from .findings import Finding
from .rails import Rail, RailPlan
from .roce import DSCP_VALUES

UNLIMITED = -1
MIN_SHM_BYTES = 16 << 30
MAX_NAMED = 8
GIB = 1 << 30
MEMORY_TOLERANCE = 0.01  # the smallest module of a node with 32 of them is 3 % of its memory


@dataclass(frozen=True)
class Node:
    """One host as the gate sees it."""

    document: NodeDocument
    rails: RailPlan

    @property
    def host(self) -> str:
        return self.document.host

    @cached_property
    def ports(self) -> list[tuple[Nic, Port]]:
        return compute_ports(self.document, self.rails)


@dataclass(frozen=True)
class Comparison:
    """One value to be equal on all hosts: the kind of finding, its name in messages, how to read it.

    `places` names the entries of a value that has one for each rail or port. Hosts with another number of entries are
    reported for that number alone: what would differ as a consequence only hides the cause. With `known_only`, hosts
    whose value could not be read are left out: the check of that host says so already.
    """

    kind: str
    name: str
    value: Callable[[Node], Hashable]
    places: Callable[[Node], Sequence[str]] | None = None
    known_only: bool = False


def _same(values: Sequence[Hashable]) -> Hashable:
    """Return the one value of several GPUs or ports, or all of them where they differ; None where none is known."""
    unique = sorted({value for value in values if value is not None}, key=str)
    return unique[0] if len(unique) == 1 else tuple(unique) or None


def _gpus(field: str) -> Callable[[Node], Hashable]:
    return lambda node: _same([getattr(gpu, field) for gpu in node.document.gpus])


def _version(field: str) -> Callable[[Node], Hashable]:
    return lambda node: getattr(node.document.versions, field)


def _nics(field: str) -> Callable[[Node], Hashable]:
    return lambda node: _same([getattr(nic, field) for nic, _ in node.ports])


def _ports(field: str) -> Callable[[Node], Hashable]:
    return lambda node: _same([getattr(port, field) for _, port in node.ports])


def _roce(field: str) -> Callable[[Node], Hashable]:
    return lambda node: _same([None if nic.roce is None else getattr(nic.roce, field) for nic, _ in node.ports])


def _settings(kind: str, name: str, field: str) -> Comparison:
    return Comparison(kind, name, _roce(field), known_only=True)


def _rail_places(node: Node) -> Sequence[str]:
    return [f"rail {rail.index}" for rail in node.rails.rails]


def _port_places(node: Node) -> Sequence[str]:
    return [f"{member.device}/{member.port}" for member in node.rails.members]


COMPARISONS: tuple[Comparison, ...] = (
    Comparison("gpu-count", "number of GPUs", lambda node: len(node.document.gpus)),
    Comparison("gpu-model", "GPU model", _gpus("name")),
    Comparison("gpu-memory", "GPU memory in bytes", _gpus("memory_bytes")),
    Comparison("gpu-ecc", "ECC of the GPUs", _gpus("ecc_enabled")),
    Comparison("gpu-nvlink", "active NVLinks per GPU", _gpus("nvlink_links")),
    Comparison("gpu-nvlink", "number of NVSwitches", lambda node: len(node.document.nvswitches)),
    Comparison("clock-limit", "maximum SM clock in MHz", _gpus("max_sm_clock_mhz")),
    Comparison("gpu-power-limit", "power limit in W", _gpus("power_limit_w")),
    Comparison("gpu-vbios", "VBIOS", _gpus("vbios")),
    Comparison("compute-nic-count", "number of rails", lambda node: len(node.rails.rails)),
    Comparison(
        "compute-nic-count", "compute ports of each rail", lambda it: tuple(len(r.members) for r in it.rails.rails)
    ),
    Comparison("rail-map", "GPUs of each rail", lambda it: tuple(rail.gpus for rail in it.rails.rails), _rail_places),
    Comparison(
        "rail-subnet", "subnet of each rail", lambda it: tuple(rail.subnet for rail in it.rails.rails), _rail_places
    ),
    Comparison(
        "compute-nic-rate",
        "rate of each rail in Gb/s",
        lambda it: tuple(rail.rate_gbps for rail in it.rails.rails),
        _rail_places,
    ),
    Comparison("compute-nic-link", "link layer", _ports("link_layer")),
    Comparison("compute-nic-mtu", "MTU", lambda it: tuple(port.mtu for _, port in it.ports), _port_places),
    Comparison(
        "compute-nic-mtu", "active RDMA MTU", lambda it: tuple(port.active_mtu for _, port in it.ports), _port_places
    ),
    Comparison("compute-nic-firmware", "NIC firmware", _nics("firmware")),
    Comparison("compute-nic-model", "NIC model", _nics("board_id")),
    Comparison("max-read-request", "maximum read request in bytes", _nics("max_read_request")),
    Comparison("nvidia-driver", "driver", _version("nvidia_driver")),
    Comparison("nvidia-driver", "kind of kernel module", _version("nvidia_kernel_module")),
    Comparison("fabric-manager", "fabric manager", _version("fabric_manager")),
    Comparison("nccl-version", "NCCL", _version("nccl")),
    Comparison("kernel", "kernel", _version("kernel")),
    Comparison("operating-system", "operating system", _version("os")),
    Comparison("ofed", "OFED", _version("ofed")),
    Comparison("slurm-version", "Slurm", _version("slurm")),
    Comparison("nccl-plugin", "NCCL network plugins", lambda node: node.document.nccl_plugins),
    Comparison("cpu", "CPU model", lambda node: node.document.cpu.model),
    Comparison("cpu", "logical CPUs", lambda node: node.document.cpu.logical),
    Comparison("cpu", "number of NUMA nodes", lambda node: len(node.document.cpu.numa_nodes) or None, known_only=True),
    Comparison("virtualization", "virtualisation", lambda node: node.document.identity.virtualization, known_only=True),
    Comparison("cuda", "CUDA", _version("cuda")),
    Comparison("memlock", "effective memlock in bytes", lambda node: node.document.limits.memlock_effective_bytes),
    Comparison("iommu", "IOMMU", lambda node: node.document.pcie.iommu),
    Comparison("gdr", "GPUDirect by dmabuf", lambda node: node.document.gpudirect.dmabuf),
    Comparison("gdr", "GPUDirect by peer memory module", lambda node: node.document.gpudirect.peermem),
    Comparison("rdma-open", "RDMA devices that can be opened", lambda node: node.document.limits.rdma_devices_opened),
    _settings("roce-trust", "trust mode", "trust"),
    _settings("roce-pfc", "PFC priorities", "pfc_priorities"),
    _settings("roce-ecn", "priorities with ECN", "ecn_priorities"),
    _settings("roce-cnp", "DSCP of congestion notifications", "cnp_dscp"),
    _settings("roce-tos", "ToS of rdma_cm", "cma_tos"),
    _settings("roce-dscp-map", "DSCP map", "dscp_to_priority"),
)


def compare_fleet(nodes: Sequence[Node]) -> list[Finding]:
    """Return what differs between hosts, each finding on the odd host. Linear in the hosts."""
    findings: list[Finding] = []
    for comparison in COMPARISONS:
        findings.extend(_odd_ones(comparison, nodes))
    findings.extend(_extra_devices(nodes))
    findings.extend(_swapped_rails(nodes))
    findings.extend(_less_memory(nodes))
    return findings


def _less_memory(nodes: Sequence[Node]) -> list[Finding]:
    """Name hosts whose memory is not that of most: a module was lost. Kernels of one kind differ by some MiB only."""
    sizes = {node.host: node.document.memory_total_bytes for node in nodes if node.document.memory_total_bytes}
    if not sizes:
        return []
    usual = median_low(sizes.values())
    return [
        Finding(
            "memory", host, f"memory is {size / GIB:.0f} GiB; most of {len(sizes)} hosts have {usual / GIB:.0f} GiB"
        )
        for host, size in sizes.items()
        if abs(size - usual) > usual * MEMORY_TOLERANCE
    ]


def _odd_ones(comparison: Comparison, nodes: Sequence[Node]) -> list[Finding]:
    if comparison.places is not None:
        nodes = _of_common_count(nodes)
    by_host = {node.host: node for node in nodes}
    values = {node.host: comparison.value(node) for node in nodes}
    if comparison.known_only:
        values = {host: value for host, value in values.items() if value is not None}
    counts = Counter(values.values())
    if len(counts) < 2:
        return []
    # On a tie the value of the first host is the norm, and the message says that nobody has a majority.
    (norm, count), (_, second) = counts.most_common(2)
    tie = count == second
    peers = _names([host for host, value in values.items() if value == norm])
    findings = []
    for host, value in values.items():
        if value == norm:
            continue
        own, usual = _shown(value), _shown(norm)
        if comparison.places is not None and isinstance(value, tuple) and isinstance(norm, tuple):
            own, usual = _where_different(comparison.places(by_host[host]), value, norm)
        message = f"{comparison.name} is {own}; {count} of {len(values)} hosts ({peers}) have {usual}"
        findings.append(Finding(comparison.kind, host, message + ("; no majority: either may be right" if tie else "")))
    return findings


def _of_common_count(nodes: Sequence[Node]) -> list[Node]:
    """Return the hosts that have as many rails and ports as most."""
    counts = {node.host: (len(node.rails.rails), len(node.rails.members)) for node in nodes}
    norm = Counter(counts.values()).most_common(1)[0][0] if counts else None
    return [node for node in nodes if counts[node.host] == norm]


def _where_different(places: Sequence[str], value: Sequence[Hashable], norm: Sequence[Hashable]) -> tuple[str, str]:
    """Return both sides of a difference, of the entries that differ alone."""
    differing = [(place, own, usual) for place, own, usual in zip(places, value, norm) if own != usual]
    own = ", ".join(f"{_shown(it)} ({place})" for place, it, _ in differing)
    usual = list(dict.fromkeys(_shown(it) for _, _, it in differing))
    return own, f"{', '.join(usual)} there"


def _shown(value: Hashable) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, tuple) and len(value) == DSCP_VALUES and all(isinstance(item, int) for item in value):
        return priority_runs([int(item) for item in value])
    if isinstance(value, tuple) and len(value) > MAX_NAMED * 2:
        return f"{len(value)} values ({', '.join(map(str, value[:4]))}, …)"
    if isinstance(value, tuple):
        return "[" + ", ".join(_shown(item) for item in value) + "]"
    return str(value)


def _names(hosts: Sequence[str]) -> str:
    rest = len(hosts) - MAX_NAMED
    return ", ".join(hosts[:MAX_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def _extra_devices(nodes: Sequence[Node]) -> list[Finding]:
    """Name the device by which a host with another number of rails differs from the majority."""
    counts = Counter(len(node.rails.members) for node in nodes)
    norm = counts.most_common(1)[0][0] if counts else 0
    usual: Counter[str | None] = Counter()
    for node in nodes:
        usual.update({member.bdf for member in node.rails.members})
    findings = []
    for node in nodes:
        if len(node.rails.members) <= norm:
            continue
        strange = [it for it in node.rails.members if usual[it.bdf] * 2 <= len(nodes)]
        listed = ", ".join(f"{it.device} ({it.bdf})" for it in strange) or "none with an address of its own"
        message = f"{len(node.rails.members)} compute ports where most hosts have {norm}; not on most hosts: {listed}"
        findings.append(Finding("compute-nic-extra", node.host, message))
    return findings


def _swapped_rails(nodes: Sequence[Node]) -> list[Finding]:
    """Name hosts whose rails are in the same networks as everybody's, but in another order: cables are swapped.

    Hosts with networks of their own (a routed fabric) say nothing about the order and are not compared.
    """
    groups: dict[frozenset[str], list[tuple[Node, tuple[str, ...]]]] = {}
    for node in nodes:
        networks = _networks_of_rails(node)
        if networks and len(set(networks)) == len(networks) > 1:
            groups.setdefault(frozenset(networks), []).append((node, networks))
    findings = []
    for members in groups.values():
        norm, count = Counter(networks for _, networks in members).most_common(1)[0]
        for node, networks in members:
            swapped = [str(rail) for rail, network in enumerate(networks) if network != norm[rail]]
            if swapped:
                shown = ", ".join(f"rail {rail}: {networks[int(rail)]}" for rail in swapped)
                message = f"rails are cabled in another order than on {count} of {len(members)} hosts ({shown})"
                findings.append(Finding("rail-subnet", node.host, message))
    return findings


def _networks_of_rails(node: Node) -> tuple[str, ...] | None:
    addresses = {it.name: it.addresses for it in node.document.interfaces}
    ports = {(nic.device, port.port): port for nic, port in node.ports}
    found = []
    for rail in node.rails.rails:
        netdevs = [ports[member.device, member.port].netdev for member in rail.members]
        networks = [
            str(interface.network)
            for netdev in netdevs
            for interface in map(interface_address, addresses.get(netdev or "", ()))
            if not interface.is_link_local
        ]
        if not networks:
            return None
        found.append(networks[0])
    return tuple(found)


def check_node(node: Node) -> list[Finding]:
    """Return what is wrong with a host whatever the others have."""
    document, findings = node.document, []

    def report(kind: str, message: str) -> None:
        findings.append(Finding(kind, node.host, message))

    _check_versions(document, report)
    _check_limits(document, bool(node.rails.members), report)
    bare = document.identity.virtualization in ("none", None) and document.identity.hypervisor is None
    if document.pcie.acs_bridges and bare:
        bridges = ", ".join(document.pcie.acs_bridges)
        message = f"ACS is on at bridges between GPUs and NICs ({bridges}): transfers detour through the root complex"
        report("acs", f"{message}; switch it off in the BIOS or at boot")
    if document.pcie.iommu == "on" and bare:
        report("iommu", "the IOMMU translates every transfer; use iommu=pt on bare metal")
    for nic, port in node.ports:
        if port.state not in (None, "ACTIVE"):
            report("compute-nic-link", f"{nic.device}/{port.port} ({nic.bdf}) is {port.state}")
    _check_dark_cards(node, report)
    return findings


def _check_dark_cards(node: Node, report: Callable[[str, str], None]) -> None:
    """Name cards without a link that look like compute NICs: of their kind, and nearer to a GPU than what serves it."""
    document, used = node.document, {member.device for member in node.rails.members}
    kinds = {(nic.hca_type or nic.pci_id, nic.board_id) for nic in document.nics if nic.device in used}
    for nic in document.nics:
        states = {port.state for port in nic.ports}
        dark = states and not states & {None, "ACTIVE"} and nic.device not in used and not nic.virtual_function
        if not dark or (nic.hca_type or nic.pci_id, nic.board_id) not in kinds:
            continue
        left = [gpu.index for gpu in document.gpus if _nearer(document, nic, gpu, node.rails.rail_of_gpu(gpu.index))]
        if left:
            shown = ", ".join(map(str, left))
            state = ", ".join(sorted(map(str, states)))
            report("compute-nic-link", f"{nic.device} ({nic.bdf}), the NIC of GPU {shown}, is {state}: cable or switch")


def _nearer(document: NodeDocument, nic: Nic, gpu: Gpu, rail: Rail | None) -> bool:
    own = pcie_distance(nic.pcie_path, gpu.pcie_path, (nic.numa_node, gpu.numa_node), document.cpu.sockets)
    if own is None:
        return False
    serving = rail.distance if rail is not None else None
    return serving is None or LEVELS.index(own) < LEVELS.index(serving)


def _check_versions(document: NodeDocument, report: Callable[[str, str], None]) -> None:
    versions = document.versions
    if document.nvswitches and versions.fabric_manager != versions.nvidia_driver:
        message = f"fabric manager {versions.fabric_manager}, driver {versions.nvidia_driver}: it starts only if equal"
        report("fabric-manager", message)
    if None not in (versions.nvidia_driver, versions.nvidia_userspace) and (
        versions.nvidia_driver != versions.nvidia_userspace
    ):
        message = f"kernel module {versions.nvidia_driver}, libraries {versions.nvidia_userspace}: new jobs fail"
        report("nvidia-userspace", f"{message} (driver/library version mismatch); drain and reboot")
    gpus = {gpu.name for gpu in document.gpus}
    if len(gpus) > 1:
        report("gpu-model", f"different GPUs in one node: {', '.join(sorted(map(str, gpus)))}")


def _check_limits(document: NodeDocument, rdma: bool, report: Callable[[str, str], None]) -> None:
    limits = document.limits
    if rdma and limits.memlock_effective_bytes not in (None, UNLIMITED):
        message = f"effective memlock is {limits.memlock_effective_bytes} bytes: NICs cannot register memory"
        report("memlock", f"{message}; it must be unlimited in the job's step and container")
    if rdma and limits.memlock_configured_bytes not in (None, UNLIMITED):
        report("memlock", f"memlock is configured as {limits.memlock_configured_bytes} bytes for jobs, not unlimited")
    if document.gpus and limits.shm_bytes is not None and limits.shm_bytes < MIN_SHM_BYTES and rdma:
        report("shm", f"/dev/shm has {limits.shm_bytes} bytes; NCCL and data loaders need {MIN_SHM_BYTES}")
    opened = limits.rdma_devices_opened
    if rdma and opened is not None and opened < len(document.nics):
        report("rdma-open", f"{opened} of {len(document.nics)} RDMA devices can be opened (/dev/infiniband/uverbs*)")


def group_by_host(findings: Sequence[Finding]) -> Mapping[str, list[Finding]]:
    """Return findings by the host they are about."""
    groups: dict[str, list[Finding]] = {}
    for finding in findings:
        groups.setdefault(finding.host, []).append(finding)
    return groups
