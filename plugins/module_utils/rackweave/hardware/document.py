"""Reader of the node document: from parsed JSON to `NodeDocument`, refusing what it does not know.

``None`` in the result means unknown. The dataclasses themselves are in `node.py`.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache

from ..errors import DocumentError
from .address_text import gid_value, interface_address
from .compact import document_text, expanded
from .node import (
    GPU_SOURCES,
    ORIGINS,
    SCHEMA,
    AcceptanceTests,
    Collection,
    Cpu,
    Gid,
    Gpu,
    GpuDirect,
    Identity,
    Interface,
    Limits,
    Nic,
    NodeDocument,
    NumaNode,
    Pcie,
    Port,
    Roce,
    SlurmNode,
    Versions,
    as_json,
)
from .rows import Row

__all__ = ["NodeDocument", "as_json", "document_text", "read_document"]

# A host name becomes a file name (nccl/<host>.conf), so nothing that could leave the directory may pass.
HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
DEVICE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]*")
GID_ROWS = 65536
IOMMU_STATES = ("off", "passthrough", "on")
LINK_LAYERS = ("InfiniBand", "Ethernet", "Unspecified")
BDF = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
DSCP_VALUES = 64
PRIORITIES = 8


def read_document(mapping: object) -> NodeDocument:
    """Read a node document from parsed JSON.

    Raises:
        DocumentError: for another schema, an unknown key, a wrong type, a missing or doubled identity.
    """
    row = Row(expanded(mapping), "node document")
    schema = row.get("schema")
    if schema != SCHEMA:
        raise DocumentError(f"node document has schema={schema!r}; this version reads {SCHEMA!r}")
    host = row.required("host", row.text("host"))
    if not HOST_NAME.fullmatch(host):
        raise row.fail("host", "a host name (letters, digits, dot, dash, underscore)")
    row.where = host
    document = NodeDocument(
        host=host,
        origin=row.required("origin", row.choice("origin", ORIGINS)),
        identity=row.row_or_empty("identity", _identity),
        cpu=row.row_or_empty("cpu", _cpu),
        memory_total_bytes=row.row_or_empty("memory", lambda memory: memory.whole("total_bytes")),
        slurm=row.row("slurm", _slurm),
        gpus=row.rows("gpus", _gpu),
        nvswitches=row.texts("nvswitches"),
        nics=row.rows("nics", _nic),
        interfaces=row.rows("interfaces", _interface),
        pcie=row.row_or_empty("pcie", _pcie),
        versions=row.row_or_empty("versions", _versions),
        gpudirect=row.row_or_empty("gpudirect", lambda it: GpuDirect(it.flag("peermem"), it.flag("dmabuf"))),
        nccl_plugins=None if row.get("nccl_plugins") is None else row.texts("nccl_plugins"),
        limits=row.row_or_empty("limits", _limits),
        collection=row.row_or_empty("collection", _collection),
        acceptance=row.row("acceptance", _acceptance),
    )
    row.finish()
    _refuse_duplicates(document)
    return document


def _bdf(row: Row) -> str | None:
    value = row.text("bdf")
    if value is not None and not BDF.fullmatch(value):
        raise row.fail("bdf", "a PCI address with its domain, in lower case, like 0000:17:00.0, or null")
    return value


def _refuse_duplicates(document: NodeDocument) -> None:
    """Two entries with one identity would make every table keyed by it drop one of them."""
    identities: dict[str, list[int | str]] = {
        "gpus[].index": [gpu.index for gpu in document.gpus],
        "gpus[].bdf": [gpu.bdf for gpu in document.gpus if gpu.bdf],
        "gpus[].uuid": [gpu.uuid for gpu in document.gpus if gpu.uuid],
        "nics[].device": [nic.device for nic in document.nics],
        "interfaces[].name": [interface.name for interface in document.interfaces],
        **{f"nics[{nic.device}].ports[].port": [port.port for port in nic.ports] for nic in document.nics},
    }
    for key, values in identities.items():
        if len(set(values)) != len(values):
            twice = sorted({str(value) for value in values if values.count(value) > 1})
            raise DocumentError(f"{document.host}: {key} has {', '.join(twice)} more than once")


def _identity(row: Row) -> Identity:
    return Identity(
        vendor=row.text("vendor"),
        product=row.text("product"),
        serial=row.text("serial"),
        board_serial=row.text("board_serial"),
        uuid=row.text("uuid"),
        virtualization=row.text("virtualization"),
        hypervisor=row.text("hypervisor"),
        boot_id=row.text("boot_id"),
    )


def _cpu(row: Row) -> Cpu:
    return Cpu(
        model=row.text("model"),
        sockets=row.whole("sockets"),
        cores_per_socket=row.whole("cores_per_socket"),
        threads_per_core=row.whole("threads_per_core"),
        logical=row.whole("logical"),
        numa_nodes=row.rows("numa_nodes", _numa_node),
    )


def _numa_node(row: Row) -> NumaNode:
    return NumaNode(row.required("id", row.whole("id")), row.required("cpus", row.text("cpus")))


def _slurm(row: Row) -> SlurmNode:
    def whole(key: str) -> int:
        return row.required(key, row.whole(key))

    return SlurmNode(
        cpus=whole("cpus"),
        boards=whole("boards"),
        sockets_per_board=whole("sockets_per_board"),
        cores_per_socket=whole("cores_per_socket"),
        threads_per_core=whole("threads_per_core"),
        real_memory_mib=whole("real_memory_mib"),
    )


def _gpu(row: Row) -> Gpu:
    return Gpu(
        index=row.required("index", row.whole("index")),
        uuid=row.text("uuid"),
        bdf=_bdf(row),
        pci_id=row.text("pci_id"),
        slot=row.text("slot"),
        name=row.text("name"),
        serial=row.text("serial"),
        memory_bytes=row.whole("memory_bytes"),
        numa_node=row.whole("numa_node"),
        pcie_path=row.texts("pcie_path"),
        local_cpus=row.text("local_cpus"),
        nvlink_links=row.whole("nvlink_links"),
        ecc_enabled=row.flag("ecc_enabled"),
        max_sm_clock_mhz=row.whole("max_sm_clock_mhz"),
        power_limit_w=row.whole("power_limit_w"),
        vbios=row.text("vbios"),
        device_file=row.text("device_file"),
    )


def _nic(row: Row) -> Nic:
    return Nic(
        device=_device_name(row),
        bdf=_bdf(row),
        pci_id=row.text("pci_id"),
        slot=row.text("slot"),
        serial=row.text("serial"),
        node_guid=row.text("node_guid"),
        sys_image_guid=row.text("sys_image_guid"),
        hca_type=row.text("hca_type"),
        board_id=row.text("board_id"),
        firmware=row.text("firmware"),
        numa_node=row.whole("numa_node"),
        pcie_path=row.texts("pcie_path"),
        virtual_function=row.flag("virtual_function"),
        bond_slaves=row.texts("bond_slaves"),
        max_read_request=row.whole("max_read_request"),
        ports=row.rows("ports", _port),
        roce=row.row("roce", _roce),
    )


def _port(row: Row) -> Port:
    return Port(
        port=_from_one(row, "port"),
        state=row.text("state"),
        physical_state=row.text("physical_state"),
        rate_gbps=_rate(row),
        link_layer=row.choice("link_layer", LINK_LAYERS),
        netdev=row.text("netdev"),
        mac=row.text("mac"),
        mtu=row.whole("mtu"),
        active_mtu=row.whole("active_mtu"),
        port_guid=row.text("port_guid"),
        gids=_gid_rows(row),
    )


def _device_name(row: Row) -> str:
    """Return the name of an RDMA device; it becomes an entry of NCCL's list, where a colon or comma would part it."""
    name = row.required("device", row.text("device"))
    if not DEVICE_NAME.fullmatch(name):
        raise row.fail("device", "a device name like mlx5_0")
    return name


def _from_one(row: Row, key: str) -> int:
    value = row.required(key, row.whole(key))
    if value < 1:
        raise row.fail(key, "a number from 1")
    return value


def _rate(row: Row) -> float | None:
    value = row.number("rate_gbps")
    if value is not None and not (value >= 0 and math.isfinite(value)):
        raise row.fail("rate_gbps", "a rate in Gb/s")
    return value


def _gid_rows(row: Row) -> tuple[Gid, ...]:
    gids = row.rows("gids", _gid)
    if len({gid.index for gid in gids}) != len(gids):
        raise DocumentError(f"{row.where}: gids has one index more than once")
    return gids


def _gid(row: Row) -> Gid:
    index, gid = row.required("index", row.whole("index")), row.required("gid", row.text("gid"))
    if not 0 <= index < GID_ROWS:
        raise row.fail("index", f"a row from 0 to {GID_ROWS - 1}")
    try:
        gid_value(gid)
    except ValueError:
        raise row.fail("gid", "a GID, written like an IPv6 address") from None
    return Gid(
        index=index,
        gid=gid,
        type=row.text("type"),
        netdev=row.text("netdev"),
    )


def _roce(row: Row) -> Roce:
    roce = Roce(
        trust=row.choice("trust", ("dscp", "pcp", "port", "both")),
        dscp_to_priority=_priorities(row),
        pfc_priorities=row.wholes_or_null("pfc_priorities"),
        traffic_class=row.whole("traffic_class"),
        cma_tos=row.whole("cma_tos"),
        ecn_priorities=row.wholes_or_null("ecn_priorities"),
        cnp_dscp=row.whole("cnp_dscp"),
    )
    if roce.dscp_to_priority is not None and len(roce.dscp_to_priority) != DSCP_VALUES:
        raise row.fail("dscp_to_priority", f"a list of {DSCP_VALUES} priorities")
    for key in ("dscp_to_priority", "pfc_priorities", "ecn_priorities"):
        if not set(getattr(roce, key) or ()) <= set(range(PRIORITIES)):
            raise row.fail(key, f"a list of priorities from 0 to {PRIORITIES - 1}")
    return roce


def _priorities(row: Row) -> tuple[int, ...] | None:
    """Read a DSCP map as 64 numbers, or as runs (``0-7:0 8-15:1``)."""
    value = row.get("dscp_to_priority")
    if not isinstance(value, str):
        return row.wholes_or_null("dscp_to_priority")
    priorities = _runs(value)
    if priorities is None:
        raise row.fail("dscp_to_priority", "64 numbers, or runs like '0-7:0 8-15:1' without a gap")
    return priorities


@lru_cache(maxsize=1024)
def _runs(text: str) -> tuple[int, ...] | None:
    """Return the priorities that runs stand for, None where they are none. NICs of a fleet mostly have the same."""
    priorities: list[int] = []
    for run in text.split():
        match = re.fullmatch(r"(\d+)-(\d+):(\d+)", run, re.ASCII)
        if not match or int(match[1]) != len(priorities) or not int(match[1]) <= int(match[2]) < DSCP_VALUES:
            return None
        priorities += [int(match[3])] * (int(match[2]) - int(match[1]) + 1)
    return tuple(priorities)


def _interface(row: Row) -> Interface:
    return Interface(
        name=row.required("name", row.text("name")),
        mac=row.text("mac"),
        mtu=row.whole("mtu"),
        state=row.text("state"),
        addresses=_addresses(row),
        default_route=row.flag("default_route"),
        bdf=_bdf(row),
    )


def _addresses(row: Row) -> tuple[str, ...]:
    addresses = row.texts("addresses")
    try:
        for address in addresses:
            interface_address(address)
    except ValueError:
        raise row.fail("addresses", "a list of addresses like 192.0.2.1/24") from None
    return addresses


def _pcie(row: Row) -> Pcie:
    return Pcie(
        acs_bridges=None if row.get("acs_bridges") is None else row.texts("acs_bridges"),
        iommu=row.choice("iommu", IOMMU_STATES),
    )


def _versions(row: Row) -> Versions:
    return Versions(
        os=row.text("os"),
        kernel=row.text("kernel"),
        nvidia_driver=row.text("nvidia_driver"),
        nvidia_userspace=row.text("nvidia_userspace"),
        nvidia_kernel_module=row.choice("nvidia_kernel_module", ("open", "proprietary")),
        fabric_manager=row.text("fabric_manager"),
        cuda=row.text("cuda"),
        nccl=row.text("nccl"),
        ofed=row.text("ofed"),
        slurm=row.text("slurm"),
        python=row.text("python"),
    )


def _limits(row: Row) -> Limits:
    return Limits(
        memlock_effective_bytes=row.whole("memlock_effective_bytes"),
        memlock_configured_bytes=row.whole("memlock_configured_bytes"),
        shm_bytes=row.whole("shm_bytes"),
        rdma_devices_opened=row.whole("rdma_devices_opened"),
    )


def _acceptance(row: Row) -> AcceptanceTests:
    node, pair = (row.required(key, row.choice(key, ("pass", "pending"))) for key in ("node_test", "pair_test"))
    return AcceptanceTests(node, pair)


def _collection(row: Row) -> Collection:
    return Collection(
        gpu_source=row.choice("gpu_source", GPU_SOURCES),
        warnings=row.texts("warnings"),
    )
