"""From a machine to its node document. Pure: all reading goes through the `System` that is given."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import DocumentError, ParseError
from .collect_gpus import find_gpus
from .collect_host import (
    find_cpu,
    find_identity,
    find_interfaces,
    find_limits,
    find_nccl_plugins,
    find_versions,
)
from .collect_nics import find_nics
from .collect_pci import NVIDIA_VENDOR, NVSWITCH_CLASS, acs_bridges, functions_of_class, iommu_state, physical_slots
from .kernel import memory_total_bytes
from .node import Collection, GpuDirect, NodeDocument, Pcie, SlurmNode, Versions
from .nvidia_smi import GpuReading
from .system import System
from .tools import parse_slurmd_c
from .version import at_least

COLLECTED_ORIGINS = ("measured", "simulated")
# The kernel can export GPU memory to a NIC by dmabuf from these versions on (NVIDIA's GPUDirect RDMA guide).
DMABUF_KERNEL = "5.12"
DMABUF_DRIVER = "515"


def collect_node(
    system: System, host: str, origin: str, python: str | None, nvml: Callable[[], GpuReading] | None
) -> NodeDocument:
    """Return the document of the machine behind ``system``.

    Args:
        python: version of the interpreter that runs there.
        nvml: reads NVML, None where its bindings are missing.

    Raises:
        DocumentError: for an origin that no collection has.
    """
    if origin not in COLLECTED_ORIGINS:
        raise DocumentError(f"origin={origin!r}: a collected document is {' or '.join(COLLECTED_ORIGINS)}")
    warnings: list[str] = []
    slots = physical_slots(system)
    found = find_gpus(system, nvml, slots, host if origin == "simulated" else None, warnings)
    nics = find_nics(system, slots, warnings)
    versions = find_versions(system, warnings)
    versions["nvidia_userspace"] = found.driver or versions["nvidia_userspace"]
    versions["cuda"] = versions["cuda"] or found.cuda
    netdevs = frozenset(port.netdev for nic in nics for port in nic.ports if port.netdev)
    paths = [gpu.pcie_path for gpu in found.gpus] + [nic.pcie_path for nic in nics]
    return NodeDocument(
        host=host,
        origin=origin,
        identity=find_identity(system),
        cpu=find_cpu(system),
        memory_total_bytes=_memory(system, warnings),
        slurm=_slurm(system, warnings),
        gpus=found.gpus,
        nvswitches=tuple(functions_of_class(system, (NVSWITCH_CLASS,), NVIDIA_VENDOR)),
        nics=nics,
        interfaces=find_interfaces(system, netdevs, warnings),
        pcie=Pcie(acs_bridges(system, paths, warnings), iommu_state(system)),
        versions=Versions(python=python, **versions),
        gpudirect=_gpudirect(system, versions),
        nccl_plugins=find_nccl_plugins(system),
        limits=find_limits(system, warnings),
        collection=Collection(found.source, tuple(warnings)),
    )


def _memory(system: System, warnings: list[str]) -> int | None:
    try:
        return memory_total_bytes(system.read("/proc/meminfo") or "")
    except ParseError as error:
        warnings.append(str(error))
        return None


def _slurm(system: System, warnings: list[str]) -> SlurmNode | None:
    output = system.run_all([("slurmd", "-C")])[0]
    if output is None:
        return None
    try:
        return parse_slurmd_c(output.stdout)
    except ParseError as error:
        warnings.append(str(error))
        return None


def _gpudirect(system: System, versions: dict[str, str | None]) -> GpuDirect:
    modules = set(system.names("/sys/module"))
    peers = system.names("/sys/kernel/mm/memory_peers")
    open_module = versions["nvidia_kernel_module"] == "open"
    known = versions["nvidia_driver"] is not None
    dmabuf = (
        open_module
        and at_least(versions["kernel"], DMABUF_KERNEL) is True
        and at_least(versions["nvidia_driver"], DMABUF_DRIVER) is True
    )
    peermem = bool(modules & {"nvidia_peermem", "nv_peer_mem"}) or any("nv" in name for name in peers)
    return GpuDirect(peermem=peermem, dmabuf=dmabuf if known else None)
