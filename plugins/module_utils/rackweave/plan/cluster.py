"""The machines a layout is made for: hosts with their GPUs, in the order in which ranks are dealt out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from ..errors import FabricError, PlanError
from ..fabric.block import Fabric
from ..fabric.hca_list import parse_hca_list
from ..fabric.rails import RailPlan, plan_rails
from ..hardware.catalog import GIB, Gpu, find_gpu, gpu_named
from ..hardware.document import NodeDocument, read_document
from ..hardware.node import Nic

ORIGINS = ("measured", "simulated", "example", "declared")

MOST_GPUS = 2_000_000


@dataclass(frozen=True)
class GpuSlot:
    """One GPU of a host; what is not known is None."""

    index: int
    bdf: str | None = None
    hca: str | None = None


@dataclass(frozen=True)
class Host:
    """A host with its GPUs in CUDA order, and the leaf switch it hangs on where that is known."""

    name: str
    slots: tuple[GpuSlot, ...]
    gpu_product: str | None = None
    leaf: str | None = None


@dataclass(frozen=True)
class Cluster:
    """Hosts in rank order; `gpu` is None where no catalog row describes the GPUs."""

    hosts: tuple[Host, ...]
    origin: str
    source: str
    gpu: Gpu | None = None
    gpu_memory_bytes: int | None = None
    nic_gbps_per_gpu: float | None = None
    host_memory_bytes: int | None = None
    assumed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.hosts:
            raise PlanError("the cluster has no hosts")
        counts = {len(host.slots) for host in self.hosts}
        if len(counts) > 1:
            found = ", ".join(f"{host.name} has {len(host.slots)}" for host in self.hosts[:8])
            raise PlanError(f"hosts differ in their number of GPUs ({found}); a layout needs the same on each")
        if counts == {0}:
            raise PlanError(f"{self.hosts[0].name} and the other hosts have no GPU; nothing can be laid out on 0 GPUs")
        names = [host.name for host in self.hosts]
        if len(set(names)) < len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise PlanError(f"hosts appear twice: {', '.join(twice)}")

    @property
    def gpus_per_host(self) -> int:
        """GPUs of each host."""
        return len(self.hosts[0].slots)

    @property
    def num_gpus(self) -> int:
        """GPUs of all hosts."""
        return len(self.hosts) * self.gpus_per_host

    @property
    def domain_size(self) -> int:
        """GPUs of one NVLink domain within which tensor parallelism stays: a host, or a rack of hosts."""
        if self.gpu is None:
            return self.gpus_per_host
        if self.gpu.nvlink_domain <= self.gpus_per_host:
            return min(self.gpu.nvlink_domain, self.gpus_per_host)
        hosts = min(self.gpu.nvlink_domain // self.gpus_per_host, len(self.hosts))
        return hosts * self.gpus_per_host

    def first_hosts(self, count: int) -> Cluster:
        """Return the cluster of the first hosts only."""
        return replace(self, hosts=self.hosts[:count])

    @classmethod
    def from_shorthand(cls, text: str) -> Cluster:
        """Read ``<hosts>x<GPUs per host>x<GPU>``, such as ``4x8xH100``.

        Raises:
            PlanError: if the text is not of that form or names an unknown GPU.
        """
        match = re.fullmatch(r"\s*(\d{1,9})\s*[xX]\s*(\d{1,9})\s*[xX]\s*(\S.*?)\s*", text)
        if match is None:
            raise PlanError(
                f"cluster {text!r} is not HOSTSxGPUSxPRODUCT (such as 4x8xH100) or a directory of documents"
            )
        hosts, gpus, product = int(match[1]), int(match[2]), match[3]
        if not 1 <= hosts * gpus <= MOST_GPUS:
            raise PlanError(
                f"cluster {text!r}: {hosts} hosts x {gpus} GPUs = {hosts * gpus} GPUs; it must be 1 to {MOST_GPUS}"
            )
        names = [f"node{number:0{len(str(hosts - 1))}d}" for number in range(hosts)]
        return cls.declared(names, {"gpu": product, "gpus_per_host": gpus}, source=text.strip())

    @classmethod
    def declared(cls, hosts: Sequence[str], hardware_class: Mapping[str, Any], source: str = "inventory") -> Cluster:
        """Build a cluster from host names and a declared hardware class; the order of the names is kept.

        Args:
            hosts: names in rank order.
            hardware_class: `gpu` (product) and `gpus_per_host`; optional `gpu_memory_gib`, `nic_gbps_per_gpu`,
                `host_memory_gib`, `gpu_bdfs`, `hcas` (one per GPU), `leafs` (host name to leaf switch).
            source: shown in the plan.

        Raises:
            PlanError: if a key is unknown, missing or not a positive number.
        """
        declared = _HardwareClass.read(hardware_class)
        slots = declared.slots()
        built = tuple(Host(name, slots, declared.gpu, declared.leafs.get(name)) for name in hosts)
        gpu = find_gpu(declared.gpu) if declared.unlisted_gpu_ok else gpu_named(declared.gpu)
        return cls(
            hosts=built,
            origin="declared",
            source=source,
            gpu=gpu,
            gpu_memory_bytes=declared.gpu_memory_bytes or (gpu.memory_bytes if gpu else None),
            nic_gbps_per_gpu=declared.nic_gbps_per_gpu or (gpu.nic_gbps if gpu else None),
            host_memory_bytes=declared.host_memory_bytes or (gpu.host_memory_bytes if gpu else None),
            assumed=declared.assumed(gpu),
        )

    @classmethod
    def from_documents(
        cls,
        documents: Iterable[NodeDocument | Mapping[str, Any]],
        order: Sequence[str] | None = None,
        fabric: Fabric | None = None,
        hardware_class: Mapping[str, Any] | None = None,
    ) -> Cluster:
        """Build a cluster from node documents.

        Args:
            documents: parsed documents or mappings of them.
            order: host names in rank order; without it the order is natural (node2 before node10).
            fabric: the network between the nodes; with it, each rank's NIC is the one its NCCL environment names,
                the operator's overrides included.
            hardware_class: stands in for the hosts of `order` that have no document (keys of `declared`).

        Raises:
            PlanError: if documents differ in GPUs, or a host of `order` has no document.
            DocumentError: if a mapping is not a node document.
            FabricError: if the fabric's overrides do not fit a node, or a virtual machine's tree tells nothing.
        """
        parsed = [item if isinstance(item, NodeDocument) else read_document(item) for item in documents]
        if not parsed:
            raise PlanError("no node document was found; collect them, or declare a hardware class")
        absent = [] if order is None else _absent(parsed, order)
        if order is not None and absent and hardware_class is not None and len(absent) < len(order):
            seen = cls.from_documents(parsed, [name for name in order if name not in absent], fabric)
            return seen._with_declared(cls.declared(absent, hardware_class), order)
        chosen = _in_order(parsed, order)
        products = sorted({gpu.name or "unknown" for document in chosen for gpu in document.gpus})
        if len(products) > 1:
            raise PlanError(f"the hosts have different GPUs ({', '.join(products)}); plan each kind on its own")
        gpu = find_gpu(products[0]) if products else None
        memories = [gpu.memory_bytes for document in chosen for gpu in document.gpus if gpu.memory_bytes]
        host_memories = [document.memory_total_bytes for document in chosen if document.memory_total_bytes]
        rails = [_rails_of(document, fabric) for document in chosen]
        rates = [_nic_rate_per_gpu(document, fabric, plan) for document, plan in zip(chosen, rails)]
        return cls(
            hosts=tuple(_host_of(document, plan) for document, plan in zip(chosen, rails)),
            origin=_common_origin(chosen),
            source="documents",
            gpu=gpu,
            gpu_memory_bytes=min(memories) if memories else (gpu.memory_bytes if gpu else None),
            nic_gbps_per_gpu=min(rates) or (gpu.nic_gbps if gpu else None),
            host_memory_bytes=min(host_memories) if host_memories else None,
        )

    def _with_declared(self, declared: Cluster, order: Sequence[str]) -> Cluster:
        """Return this cluster with declared hosts beside its own; the least of each quantity holds for all."""
        if self.gpu is not None and declared.gpu is not None and self.gpu != declared.gpu:
            raise PlanError(
                f"{self.hosts[0].name} has {self.hosts[0].gpu_product}, but {declared.hosts[0].name}, which has no "
                f"node document, is declared as {declared.hosts[0].gpu_product}; plan each kind on its own"
            )
        by_name = {host.name: host for host in (*self.hosts, *declared.hosts)}
        return replace(
            self,
            hosts=tuple(by_name[name] for name in order),
            origin=declared.origin,
            source=f"documents; declared: {', '.join(host.name for host in declared.hosts)}",
            gpu=self.gpu or declared.gpu,
            gpu_memory_bytes=_least(self.gpu_memory_bytes, declared.gpu_memory_bytes),
            nic_gbps_per_gpu=_least(self.nic_gbps_per_gpu, declared.nic_gbps_per_gpu),
            host_memory_bytes=_least(self.host_memory_bytes, declared.host_memory_bytes),
            assumed=declared.assumed,
        )


@dataclass(frozen=True)
class _HardwareClass:
    gpu: str
    gpus_per_host: int
    gpu_memory_bytes: int | None
    nic_gbps_per_gpu: float | None
    host_memory_bytes: int | None
    gpu_bdfs: tuple[str, ...]
    hcas: tuple[str, ...]
    leafs: Mapping[str, str]
    unlisted_gpu_ok: bool

    KEYS = (
        "gpu",
        "gpus_per_host",
        "gpu_memory_gib",
        "nic_gbps_per_gpu",
        "host_memory_gib",
        "gpu_bdfs",
        "hcas",
        "leafs",
        "unlisted_gpu_ok",
    )

    @classmethod
    def read(cls, mapping: Mapping[str, Any]) -> _HardwareClass:
        unknown = sorted(set(mapping) - set(cls.KEYS))
        if unknown:
            raise PlanError(f"hardware class: unknown keys {', '.join(unknown)}; known are {', '.join(cls.KEYS)}")
        for key in ("gpu", "gpus_per_host"):
            if not mapping.get(key):
                raise PlanError(f"hardware class: {key} is missing")
        count = _positive(mapping, "gpus_per_host")
        for key in ("gpu_bdfs", "hcas"):
            found = mapping.get(key)
            if found and len(found) != count:
                raise PlanError(f"hardware class: {key} names {len(found)}, but gpus_per_host={count}")
        memory, host_memory = _positive(mapping, "gpu_memory_gib"), _positive(mapping, "host_memory_gib")
        return cls(
            gpu=str(mapping["gpu"]),
            gpus_per_host=int(count or 0),
            gpu_memory_bytes=int(memory * GIB) if memory else None,
            nic_gbps_per_gpu=_positive(mapping, "nic_gbps_per_gpu"),
            host_memory_bytes=int(host_memory * GIB) if host_memory else None,
            gpu_bdfs=tuple(mapping.get("gpu_bdfs") or ()),
            hcas=tuple(mapping.get("hcas") or ()),
            leafs=dict(mapping.get("leafs") or {}),
            unlisted_gpu_ok=bool(mapping.get("unlisted_gpu_ok", False)),
        )

    def slots(self) -> tuple[GpuSlot, ...]:
        bdfs = self.gpu_bdfs or (None,) * self.gpus_per_host
        hcas = self.hcas or (None,) * self.gpus_per_host
        return tuple(GpuSlot(index, bdfs[index], hcas[index]) for index in range(self.gpus_per_host))

    def assumed(self, gpu: Gpu | None) -> tuple[str, ...]:
        if gpu is None:
            return ()
        notes = []
        if self.gpu_memory_bytes is None:
            notes.append(f"{gpu.memory_bytes / GIB:.1f} GiB of memory per GPU ({gpu.source})")
        if self.nic_gbps_per_gpu is None:
            notes.append(f"{gpu.nic_gbps:g} Gb/s of network per GPU ({gpu.source})")
        return tuple(notes)


def _positive(mapping: Mapping[str, Any], key: str) -> float | None:
    value = mapping.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
        raise PlanError(f"hardware class: {key}={value!r} must be a positive number")
    return float(value) if key != "gpus_per_host" else int(value)


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """Return a key that sorts node2 before node10."""
    parts = re.split(r"(\d+)", name)
    return [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in parts]


_Quantity = TypeVar("_Quantity", int, float)


def _least(first: _Quantity | None, second: _Quantity | None) -> _Quantity | None:
    known = [value for value in (first, second) if value is not None]
    return min(known) if known else None


def _absent(documents: Iterable[NodeDocument], order: Sequence[str]) -> list[str]:
    known = {document.host for document in documents}
    return [name for name in order if name not in known]


def _in_order(documents: list[NodeDocument], order: Sequence[str] | None) -> list[NodeDocument]:
    by_host = {document.host: document for document in documents}
    if len(by_host) < len(documents):
        raise PlanError("two node documents name the same host")
    if order is None:
        return [by_host[name] for name in sorted(by_host, key=natural_key)]
    missing = _absent(documents, order)
    if missing:
        raise PlanError(f"no node document for {', '.join(missing)}; collect it first")
    return [by_host[name] for name in order]


def _common_origin(documents: Iterable[NodeDocument]) -> str:
    """Return the least trustworthy origin among the documents: one example makes the whole an example."""
    found = {document.origin for document in documents}
    return next(origin for origin in ("example", "simulated", "measured") if origin in found)


def _host_of(document: NodeDocument, rails: RailPlan | None) -> Host:
    slots = tuple(
        GpuSlot(gpu.index, gpu.bdf, rails.hca_of_gpu(gpu.index) if rails else None)
        for gpu in sorted(document.gpus, key=lambda gpu: gpu.index)
    )
    return Host(document.host, slots, document.gpus[0].name if document.gpus else None)


def _fabric_nics(document: NodeDocument) -> list[Nic]:
    """Return the physical RDMA devices with a usable port."""
    return [nic for nic in document.nics if not nic.virtual_function and any(port.rate_gbps for port in nic.ports)]


def _nic_rate_per_gpu(document: NodeDocument, fabric: Fabric | None, rails: RailPlan | None) -> float:
    """Return the network rate that one GPU can count on, in Gb/s: that of its rails where the fabric is known.

    Otherwise the fastest kind of NIC counts, shared by all GPUs.
    """
    if not document.gpus:
        return 0.0
    if fabric is not None and rails is not None:
        return sum(rail.rate_gbps for rail in rails.rails) / len(document.gpus)
    rates = [max(port.rate_gbps or 0.0 for port in nic.ports) for nic in _fabric_nics(document)]
    fastest = max(rates, default=0.0)
    return sum(rate for rate in rates if rate == fastest) / len(document.gpus)


def _rails_of(document: NodeDocument, fabric: Fabric | None) -> RailPlan | None:
    """Return the rails that the NCCL environment follows; None on plain Ethernet, or where nothing can be told."""
    if fabric is not None:
        return None if fabric.kind == "ethernet" else plan_rails(_with_listed_nics(document, fabric), fabric)
    layers = {port.link_layer for nic in document.nics for port in nic.ports}
    try:
        return plan_rails(document, Fabric("infiniband" if layers == {"InfiniBand"} else "roce"))
    except FabricError:
        return None


def _with_listed_nics(document: NodeDocument, fabric: Fabric) -> NodeDocument:
    """Leave out the NICs that the operator's own NCCL_IB_HCA does not select."""
    text = dict(fabric.variables).get("NCCL_IB_HCA")
    if text is None:
        return document
    listed = parse_hca_list(text)
    chosen = [nic for nic in document.nics if any(listed.selects(nic.device, port.port) for port in nic.ports)]
    return replace(document, nics=tuple(chosen))
