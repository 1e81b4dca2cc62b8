"""Node documents for tests of Slurm's files: machines of different processors, memory and GPUs."""

from __future__ import annotations

from rackweave.hardware.node import Cpu, Gpu, NodeDocument, NumaNode, SlurmNode


def h100_node(host: str, memory_mib: int = 2063937, gpus: int = 8) -> NodeDocument:
    """A dual-socket node with 56 cores and two threads each; the kernel counts the second threads from 112 on."""
    return node(host, (2, 56, 2), ["0-55,112-167", "56-111,168-223"], [index // 4 for index in range(gpus)], memory_mib)


def node(
    host: str,
    processors: tuple[int, int, int],
    numa: list[str],
    gpus: list[int],
    memory_mib: int = 2063937,
    name: str = "NVIDIA H100 80GB HBM3",
    cpus: int | None = None,
) -> NodeDocument:
    """Return a node.

    Args:
        host: its name.
        processors: sockets, cores of each, threads of each.
        numa: CPU list of each NUMA node.
        gpus: NUMA node of each GPU.
        memory_mib: what ``slurmd -C`` says.
        name: product of the GPUs.
        cpus: processors online; all by default.
    """
    sockets, cores, threads = processors
    online = sockets * cores * threads if cpus is None else cpus
    return NodeDocument(
        host=host,
        origin="measured",
        cpu=Cpu(
            sockets=sockets,
            cores_per_socket=cores,
            threads_per_core=threads,
            logical=online,
            numa_nodes=tuple(NumaNode(index, text) for index, text in enumerate(numa)),
        ),
        slurm=SlurmNode(online, 1, sockets, cores, threads, memory_mib),
        gpus=tuple(
            Gpu(index, name=name, numa_node=numa_node, device_file=f"/dev/nvidia{index}")
            for index, numa_node in enumerate(gpus)
        ),
    )
