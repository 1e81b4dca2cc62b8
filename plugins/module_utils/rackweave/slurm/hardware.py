"""The part of a node document that slurm.conf and gres.conf need: processors, memory, GPUs with their cores."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..hardware.node import Gpu, NodeDocument, NumaNode
from .munge import SlurmError
from .processors import Processors, sockets_near

MIB = 1024**2
# RealMemory is rounded down to this, so that a kernel that reserves a little more does not change the file.
MEMORY_STEP_MIB = 256
# Nodes of one shape whose memory differs by more are of different classes, each with a line of its own.
MEMORY_CLASS_SPREAD = 1.05
_PRODUCT = re.compile(r"[A-Za-z]{1,4}\d+[A-Za-z]*")
_DEVICE_FILE = re.compile(r"^/[A-Za-z0-9_./-]+$")


@dataclass(frozen=True)
class GpuGroup:
    """GPUs of one node that share a type and a set of cores: one line of gres.conf."""

    type: str
    files: tuple[str, ...]
    cores: str


@dataclass(frozen=True)
class NodeShape:
    """What Slurm must know of a node, its memory left out; equal shapes share a line."""

    processors: Processors
    gpus: tuple[GpuGroup, ...]


def node_shape(document: NodeDocument) -> NodeShape:
    """Return the shape of a node; ``slurmd -C``, where the document has it, wins over the kernel's own count.

    Raises:
        SlurmError: if the document does not say how many processors there are, or a GPU cannot be handed out whole.
    """
    processors = _processors(document)
    return NodeShape(processors, _gpu_groups(document, processors))


def _processors(document: NodeDocument) -> Processors:
    cpu, slurm = document.cpu, document.slurm
    if slurm is not None:
        sockets = slurm.boards * slurm.sockets_per_board
        return Processors.counted(sockets, slurm.cores_per_socket, slurm.threads_per_core, slurm.cpus)
    if cpu.sockets and cpu.cores_per_socket and cpu.threads_per_core:
        return Processors.counted(cpu.sockets, cpu.cores_per_socket, cpu.threads_per_core, cpu.logical)
    if cpu.logical:
        return Processors.counted(1, cpu.logical, 1, cpu.logical)
    raise SlurmError(f"the document of {document.host} does not say how many processors it has; collect it again")


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


def memory_classes(memory_mib: Sequence[tuple[str, int]]) -> list[tuple[tuple[str, ...], int]]:
    """Return hosts of about the same memory together, each class with the least that one of them reports.

    Args:
        memory_mib: host and what it reports; the order of hosts is kept within a class.
    """
    bounds: list[int] = []
    for memory in sorted(amount for _, amount in memory_mib):
        if not bounds or memory > bounds[-1] * MEMORY_CLASS_SPREAD:
            bounds.append(memory)
    classes: dict[int, list[str]] = {}
    for host, amount in memory_mib:
        classes.setdefault(max(bound for bound in bounds if bound <= amount), []).append(host)
    return [(tuple(hosts), bound) for bound, hosts in classes.items()]


def configured_memory_mib(reported_mib: int, margin_percent: float) -> int:
    """Return RealMemory: below what any node of the class reports, for a node that reports less is drained."""
    below = int(reported_mib * (100.0 - margin_percent) / 100.0)
    return max(below // MEMORY_STEP_MIB * MEMORY_STEP_MIB, min(below, MEMORY_STEP_MIB), 1)


def gpu_type(name: str | None) -> str:
    """Return the gres type of a GPU product: ``NVIDIA H100 80GB HBM3`` -> ``h100``; empty if it names no product.

    Slurm compares the type with the detected name as a substring, so it is a piece of that name in lower case. A name
    without a product word (``NVIDIA GeForce RTX 4090``) is taken whole, with ``_`` for everything else.
    """
    if not name:
        return ""
    words = [word for word in name.replace("-", " ").split() if _PRODUCT.fullmatch(word)]
    if words:
        return words[0].lower()
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_") if any(letter.isdigit() for letter in name) else ""


def _gpu_groups(document: NodeDocument, processors: Processors) -> tuple[GpuGroup, ...]:
    gpus = sorted(document.gpus, key=lambda entry: entry.index)
    files = [_device_file(document.host, gpu) for gpu in gpus]
    twice = sorted({file for file in files if files.count(file) > 1})
    if twice:
        raise SlurmError(
            f"more than one GPU of {document.host} has the device file {twice[0]}; collect the document again"
        )
    types = [gpu_type(gpu.name) for gpu in gpus]
    if any(types):
        # Slurm does not take GPUs with and without a type on one node.
        types = [kind or "unknown" for kind in types]
    groups: dict[tuple[str, str], list[str]] = {}
    for gpu, kind, file in zip(gpus, types, files):
        groups.setdefault((kind, gpu_cores(document.cpu.numa_nodes, gpu, processors)), []).append(file)
    return tuple(GpuGroup(kind, tuple(members), cores) for (kind, cores), members in groups.items())


def _device_file(host: str, gpu: Gpu) -> str:
    if "MIG" in f"{gpu.name or ''} {gpu.uuid or ''}".upper().replace("-", " ").split():
        raise SlurmError(
            f"GPU {gpu.index} of {host} is divided (MIG): training takes whole GPUs; switch it off with "
            "`nvidia-smi -mig 0` and collect the document again"
        )
    if not gpu.device_file:
        raise SlurmError(f"GPU {gpu.index} of {host} has no device file; gres.conf cannot name it")
    if not _DEVICE_FILE.match(gpu.device_file):
        raise SlurmError(f"GPU {gpu.index} of {host}: {gpu.device_file!r} is not the path of a device file")
    return gpu.device_file


def gpu_cores(numa_nodes: Sequence[NumaNode], gpu: Gpu, processors: Processors) -> str:
    """Return the cores near a GPU as Slurm numbers them, always those of whole sockets; empty if that says nothing.

    Slurm counts cores socket by socket, whatever the kernel's numbers are, so the kernel's CPU list of the GPU
    (``0-55,112-167``, hardware threads included) must never be copied: only the sockets of its NUMA node count.
    """
    if gpu.numa_node is None:
        return ""
    near = sockets_near(numa_nodes, gpu.numa_node, processors)
    if not near:
        return ""
    first, last = near[0] * processors.cores_per_socket, (near[-1] + 1) * processors.cores_per_socket - 1
    return f"{first}-{last}" if last > first else str(first)
