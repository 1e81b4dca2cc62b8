"""Sockets, cores and threads as Slurm takes them, and which sockets a NUMA node belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..hardware.kernel import cpu_list
from ..hardware.node import NumaNode


@dataclass(frozen=True)
class Processors:
    """A node's processors for slurm.conf. `cpus` is never more than what the node has online.

    `whole` says whether every thread of every core is there; without it the numbers of cores cannot be trusted.
    """

    sockets: int
    cores_per_socket: int
    threads_per_core: int
    cpus: int
    whole: bool = True

    @classmethod
    def counted(cls, sockets: int, cores_per_socket: int, threads_per_core: int, online: int | None) -> Processors:
        """Return what slurm.conf may say of a node with this many logical processors online.

        Slurm takes as CPUs the number of threads or of cores, nothing else, and drains a node that has less. So with a
        processor offline, or sockets of different size, each core counts once, and if even that is too much, sockets
        are made smaller.
        """
        cores, threads = sockets * cores_per_socket, sockets * cores_per_socket * threads_per_core
        if online is None or online >= threads:
            return cls(sockets, cores_per_socket, threads_per_core, threads)
        if online >= cores:
            return cls(sockets, cores_per_socket, threads_per_core, cores, whole=False)
        smaller = max(online // sockets, 1)
        return cls(min(sockets, max(online, 1)), smaller, 1, min(sockets, max(online, 1)) * smaller, whole=False)


def sockets_near(numa_nodes: Sequence[NumaNode], numa_node: int, processors: Processors) -> range:
    """Return the sockets that the processors of a NUMA node lie in; empty if that is all of them, or not clear.

    NUMA nodes without processors (memory of GPUs, CXL) do not count. A socket may hold several NUMA nodes (NPS4, SNC),
    and one may hold several sockets, where Slurm was told to call caches sockets.
    """
    ordered = sorted(numa_nodes, key=lambda node: node.id)
    counts = {node.id: len(cpu_list(node.cpus)) if node.cpus.strip() else 0 for node in ordered}
    ids = [number for number, count in counts.items() if count]
    sockets = processors.sockets
    if not processors.whole or sockets < 2 or numa_node not in ids:
        return range(0)
    position, sizes = ids.index(numa_node), [counts[number] for number in ids]
    if len(ids) % sockets == 0:
        per_socket = len(ids) // sockets
        totals = [sum(sizes[first : first + per_socket]) for first in range(0, len(ids), per_socket)]
        first = position // per_socket
        near = range(first, first + 1)
    elif sockets % len(ids) == 0:
        per_node = sockets // len(ids)
        totals = sizes
        near = range(position * per_node, (position + 1) * per_node)
    else:
        return range(0)
    return near if len(set(totals)) == 1 and len(near) < sockets else range(0)
