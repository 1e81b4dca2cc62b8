"""The node document: what one node really is, as frozen dataclasses (schema ``rackweave.node/1``).

`docs/contracts.md` section 1 describes every key. ``None`` means unknown, never "default". The reader is
`document.read_document`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

SCHEMA = "rackweave.node/1"
ORIGINS = ("measured", "simulated", "example")
LINE_LENGTH = 120
GPU_SOURCES = ("nvml", "nvidia-smi", "sysfs", "simulated", "none")


@dataclass(frozen=True)
class Identity:
    """Who the machine is. `boot_id` is volatile.

    `virtualization` is ``container``, a hypervisor, ``vm`` or ``none``; `hypervisor` is what a virtual machine, or the
    machine below a container, runs on, None where none was found.
    """

    vendor: str | None = None
    product: str | None = None
    serial: str | None = None
    board_serial: str | None = None
    uuid: str | None = None
    virtualization: str | None = None
    hypervisor: str | None = None
    boot_id: str | None = None


@dataclass(frozen=True)
class NumaNode:
    """One NUMA node and its logical CPUs as a kernel list (``0-55,112-167``)."""

    id: int
    cpus: str


@dataclass(frozen=True)
class Cpu:
    """Processors; counts are of the whole machine except where the name says otherwise."""

    model: str | None = None
    sockets: int | None = None
    cores_per_socket: int | None = None
    threads_per_core: int | None = None
    logical: int | None = None
    numa_nodes: tuple[NumaNode, ...] = ()


@dataclass(frozen=True)
class SlurmNode:
    """What ``slurmd -C`` prints on the node itself."""

    cpus: int
    boards: int
    sockets_per_board: int
    cores_per_socket: int
    threads_per_core: int
    real_memory_mib: int


@dataclass(frozen=True)
class Gpu:
    """One GPU. `pcie_path` begins with the host bridge (``pci0000:15``) and ends with the GPU's own address."""

    index: int
    uuid: str | None = None
    bdf: str | None = None
    pci_id: str | None = None
    slot: str | None = None
    name: str | None = None
    serial: str | None = None
    memory_bytes: int | None = None
    numa_node: int | None = None
    pcie_path: tuple[str, ...] = ()
    local_cpus: str | None = None
    nvlink_links: int | None = None
    ecc_enabled: bool | None = None
    max_sm_clock_mhz: int | None = None
    power_limit_w: int | None = None
    vbios: str | None = None
    device_file: str | None = None


@dataclass(frozen=True)
class Gid:
    """One filled row of a port's GID table; `type` as the kernel says it (``IB/RoCE v1``, ``RoCE v2``)."""

    index: int
    gid: str
    type: str | None = None
    netdev: str | None = None


@dataclass(frozen=True)
class Port:
    """One port of an RDMA device; `rate_gbps` in Gb/s, `mtu` of the netdev and `active_mtu` of RDMA in bytes."""

    port: int
    state: str | None = None
    physical_state: str | None = None
    rate_gbps: float | None = None
    link_layer: str | None = None
    netdev: str | None = None
    mac: str | None = None
    mtu: int | None = None
    active_mtu: int | None = None
    port_guid: str | None = None
    gids: tuple[Gid, ...] = ()


@dataclass(frozen=True)
class Roce:
    """QoS of one RoCE device: `dscp_to_priority` has 64 entries; the priorities are lists of 0-7."""

    trust: str | None = None
    dscp_to_priority: tuple[int, ...] | None = None
    pfc_priorities: tuple[int, ...] | None = None
    traffic_class: int | None = None
    cma_tos: int | None = None
    ecn_priorities: tuple[int, ...] | None = None
    cnp_dscp: int | None = None


@dataclass(frozen=True)
class Nic:
    """One RDMA device (PCI function or bond); `sys_image_guid` is the same for all functions of one card."""

    device: str
    bdf: str | None = None
    pci_id: str | None = None
    slot: str | None = None
    serial: str | None = None
    node_guid: str | None = None
    sys_image_guid: str | None = None
    hca_type: str | None = None
    board_id: str | None = None
    firmware: str | None = None
    numa_node: int | None = None
    pcie_path: tuple[str, ...] = ()
    virtual_function: bool | None = None
    bond_slaves: tuple[str, ...] = ()
    max_read_request: int | None = None
    ports: tuple[Port, ...] = ()
    roce: Roce | None = None


@dataclass(frozen=True)
class Interface:
    """One network interface of the node; `addresses` in CIDR notation.

    MAC, MTU and state of an interface above an RDMA port stand with the port.
    """

    name: str
    mac: str | None = None
    mtu: int | None = None
    state: str | None = None
    addresses: tuple[str, ...] = ()
    default_route: bool | None = None
    bdf: str | None = None


@dataclass(frozen=True)
class Pcie:
    """Bridges with ACS redirection on (null: could not be read), and the state of the IOMMU."""

    acs_bridges: tuple[str, ...] | None = None
    iommu: str | None = None


@dataclass(frozen=True)
class Versions:
    """Full version strings as the node reports them."""

    os: str | None = None
    kernel: str | None = None
    nvidia_driver: str | None = None
    nvidia_userspace: str | None = None
    nvidia_kernel_module: str | None = None
    fabric_manager: str | None = None
    cuda: str | None = None
    nccl: str | None = None
    ofed: str | None = None
    slurm: str | None = None
    python: str | None = None


@dataclass(frozen=True)
class GpuDirect:
    """Ways for a NIC to reach GPU memory: the peer memory module, and the kernel's dmabuf."""

    peermem: bool | None = None
    dmabuf: bool | None = None


@dataclass(frozen=True)
class Limits:
    """Limits in bytes, -1 for unlimited. `memlock_effective_bytes` is that of the collecting process."""

    memlock_effective_bytes: int | None = None
    memlock_configured_bytes: int | None = None
    shm_bytes: int | None = None
    rdma_devices_opened: int | None = None


@dataclass(frozen=True)
class Collection:
    """How the document came about."""

    gpu_source: str | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class AcceptanceTests:
    """How the node was tested before it was accepted: each ``pass`` or ``pending``."""

    node_test: str
    pair_test: str


@dataclass(frozen=True)
class NodeDocument:
    """Everything Rackweave knows of one node."""

    host: str
    origin: str
    identity: Identity = Identity()
    cpu: Cpu = Cpu()
    memory_total_bytes: int | None = None
    slurm: SlurmNode | None = None
    gpus: tuple[Gpu, ...] = ()
    nvswitches: tuple[str, ...] = ()
    nics: tuple[Nic, ...] = ()
    interfaces: tuple[Interface, ...] = ()
    pcie: Pcie = Pcie()
    versions: Versions = Versions()
    gpudirect: GpuDirect = GpuDirect()
    nccl_plugins: tuple[str, ...] | None = None
    limits: Limits = Limits()
    collection: Collection = Collection()
    acceptance: AcceptanceTests | None = None

    def as_dict(self) -> dict[str, object]:
        """Return the document as plain dictionaries and lists, in the order of the contract.

        Unknown values of NICs and interfaces, the largest part, are left out instead of written as null, and so are
        the acceptance, which only accepted documents have, and the hypervisor of a machine that has none.
        """
        ordered: dict[str, object] = {"schema": SCHEMA}
        for field in fields(self):
            value = _plain(getattr(self, field.name))
            if isinstance(value, dict) and value.get("hypervisor", "") is None:
                del value["hypervisor"]
            if field.name == "acceptance" and value is None:
                continue
            if field.name == "memory_total_bytes":
                ordered["memory"] = {"total_bytes": value}
            else:
                ordered[field.name] = _known(value) if field.name in ("nics", "interfaces") else value
        return ordered

    def without_volatile(self) -> NodeDocument:
        """Return what an accepted document keeps: no boot id, link state, warnings, or state of an interface."""
        return replace(
            self,
            identity=replace(self.identity, boot_id=None),
            nics=tuple(_settled(nic) for nic in self.nics),
            interfaces=tuple(replace(interface, state=None) for interface in self.interfaces),
            collection=replace(self.collection, warnings=()),
        )


def as_json(values: Mapping[str, object]) -> str:
    """Return JSON made for review in git: short objects and lists on one line, a final newline."""
    return _lines(values, "") + "\n"


def _settled(nic: Nic) -> Nic:
    return replace(nic, ports=tuple(replace(port, state=None, physical_state=None) for port in nic.ports))


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    names = getattr(value, "__dataclass_fields__", None)
    return value if names is None else {name: _plain(getattr(value, name)) for name in names}


def _known(value: object) -> object:
    if isinstance(value, dict):
        short = {
            key: priority_runs(item) if key == "dscp_to_priority" and item else item for key, item in value.items()
        }
        return {key: _known(item) for key, item in short.items() if item is not None and item != []}
    return [_known(item) for item in value] if isinstance(value, list) else value


def priority_runs(priorities: Sequence[int]) -> str:
    """Return a DSCP map as runs, ``0-7:0 8-15:1``: sixty-four numbers a NIC would be most of a document."""
    runs: list[list[int]] = []
    for dscp, priority in enumerate(priorities):
        if runs and runs[-1][2] == priority:
            runs[-1][1] = dscp
        else:
            runs.append([dscp, dscp, priority])
    return " ".join(f"{first}-{last}:{priority}" for first, last, priority in runs)


def _lines(value: object, indent: str) -> str:
    flat = json.dumps(value, ensure_ascii=False, separators=(",", ":" if indent else ": "))
    if len(indent) + len(flat) <= LINE_LENGTH or not isinstance(value, (Mapping, list, tuple)):
        return flat
    inner = indent + " "
    if isinstance(value, Mapping):
        items = [f"{inner}{json.dumps(key)}: {_lines(item, inner)}" for key, item in value.items()]
        return "{\n" + ",\n".join(items) + "\n" + indent + "}"
    if all(isinstance(item, (int, float)) for item in value):
        return flat
    return "[\n" + ",\n".join(inner + _lines(item, inner) for item in value) + "\n" + indent + "]"
