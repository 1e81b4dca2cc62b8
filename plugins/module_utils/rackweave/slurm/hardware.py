"""The part of a node document that slurm.conf and gres.conf need: processors, memory, GPUs with their cores."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..hardware.node import Gpu, NodeDocument
from .munge import SlurmError

MIB = 1024**2
# RealMemory is rounded down to this, so that a kernel that reserves a little more does not change the file.
MEMORY_STEP_MIB = 256
_PRODUCT = re.compile(r"[A-Za-z]{1,4}\d+[A-Za-z]*")


@dataclass(frozen=True)
class GpuGroup:
    """GPUs of one node that share a type and a set of cores: one line of gres.conf."""

    type: str
    files: tuple[str, ...]
    cores: str


@dataclass(frozen=True)
class NodeShape:
    """What Slurm must know of a node, its memory left out; equal shapes share a line."""

    sockets: int
    cores_per_socket: int
    threads_per_core: int
    gpus: tuple[GpuGroup, ...]

    @property
    def cpus(self) -> int:
        """Logical processors."""
        return self.sockets * self.cores_per_socket * self.threads_per_core


def node_shape(document: NodeDocument) -> NodeShape:
    """Return the shape of a node; ``slurmd -C``, where the document has it, wins over the kernel's own count.

    Raises:
        SlurmError: if the document does not say how many processors there are, or a GPU has no device file.
    """
    cpu, slurm = document.cpu, document.slurm
    if slurm is not None:
        sockets, cores, threads = slurm.boards * slurm.sockets_per_board, slurm.cores_per_socket, slurm.threads_per_core
    elif cpu.sockets and cpu.cores_per_socket and cpu.threads_per_core:
        sockets, cores, threads = cpu.sockets, cpu.cores_per_socket, cpu.threads_per_core
    elif cpu.logical:
        sockets, cores, threads = 1, cpu.logical, 1
    else:
        raise SlurmError(f"the document of {document.host} does not say how many processors it has; collect it again")
    return NodeShape(sockets, cores, threads, _gpu_groups(document, sockets, cores))


def real_memory_mib(document: NodeDocument) -> int:
    """Return the memory that the node reports to Slurm, in MiB.

    Raises:
        SlurmError: if the document does not say.
    """
    if document.slurm is not None:
        return document.slurm.real_memory_mib
    if document.memory_total_bytes is not None:
        return int(document.memory_total_bytes) // MIB
    raise SlurmError(f"the document of {document.host} does not say how much memory the node has; collect it again")


def configured_memory_mib(reported_mib: int, margin_percent: float) -> int:
    """Return RealMemory: below what any node of the class reports, for a node that reports less is drained."""
    below = int(reported_mib * (100.0 - margin_percent) / 100.0)
    return max(below // MEMORY_STEP_MIB * MEMORY_STEP_MIB, 1)


def gpu_type(name: str | None) -> str:
    """Return the gres type of a GPU product: ``NVIDIA H100 80GB HBM3`` -> ``h100``; empty if it has no name.

    Slurm compares the type with the detected name as a substring, so it is a piece of that name in lower case.
    """
    if not name:
        return ""
    words = [word for word in name.replace("-", " ").split() if _PRODUCT.fullmatch(word)]
    return words[0].lower() if words else ""


def _gpu_groups(document: NodeDocument, sockets: int, cores_per_socket: int) -> tuple[GpuGroup, ...]:
    groups: dict[tuple[str, str], list[str]] = {}
    for gpu in sorted(document.gpus, key=lambda entry: entry.index):
        if not gpu.device_file:
            raise SlurmError(f"GPU {gpu.index} of {document.host} has no device file; gres.conf cannot name it")
        cores = gpu_cores(document, gpu, sockets, cores_per_socket)
        groups.setdefault((gpu_type(gpu.name), cores), []).append(gpu.device_file)
    return tuple(GpuGroup(kind, tuple(files), cores) for (kind, cores), files in groups.items())


def gpu_cores(document: NodeDocument, gpu: Gpu, sockets: int, cores_per_socket: int) -> str:
    """Return the cores near a GPU as Slurm numbers them, always those of whole sockets; empty if that says nothing.

    Slurm counts cores socket by socket, whatever the kernel's numbers are, so the kernel's CPU list of the GPU
    (``0-55,112-167``, hardware threads included) must never be copied: only the socket of its NUMA node counts.
    """
    nodes = sorted(node.id for node in document.cpu.numa_nodes)
    if sockets < 2 or gpu.numa_node not in nodes or len(nodes) % sockets:
        return ""
    socket = nodes.index(gpu.numa_node) // (len(nodes) // sockets)
    first = socket * cores_per_socket
    return f"{first}-{first + cores_per_socket - 1}"
