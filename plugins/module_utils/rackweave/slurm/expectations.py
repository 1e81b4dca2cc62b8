"""What the scripts that slurmd runs on a node (health, prolog) compare the node with: its own document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..hardware.node import NodeDocument
from .hardware import configured_memory_mib, real_memory_mib


def expectations(document: NodeDocument, memory_margin_percent: float) -> dict[str, object]:
    """Return what must be there, as plain data.

    Addresses on buses and RDMA ports are expected of measured hardware only; simulated GPUs are device files without a
    device behind them.
    """
    measured = document.origin == "measured"
    return {
        "node": document.host,
        "gpu_files": [gpu.device_file for gpu in document.gpus if gpu.device_file],
        "gpu_bdfs": [gpu.bdf for gpu in document.gpus if gpu.bdf and measured],
        "rdma_ports": _rdma_ports(document) if measured else {},
        "modules": ["nvidia_peermem"] if measured and document.gpudirect.peermem and document.gpus else [],
        "memory_mib": configured_memory_mib(real_memory_mib(document), memory_margin_percent),
        "driver": document.versions.nvidia_driver if measured and document.gpus else None,
    }


def _rdma_ports(document: NodeDocument) -> dict[str, list[int]]:
    """Return the ports that were up when the document was made, by PCI address; names of devices may change."""
    ports: dict[str, list[int]] = {}
    for nic in document.nics:
        up = [port.port for port in nic.ports if port.state == "ACTIVE"]
        if nic.bdf and up and not nic.virtual_function:
            ports[nic.bdf] = up
    return ports


def node_expectations(
    hosts: Sequence[str], documents: Sequence[NodeDocument], memory_margin_percent: float
) -> Mapping[str, dict[str, object]]:
    """Return the expectations of every host that has a document."""
    members = set(hosts)
    return {
        document.host: expectations(document, memory_margin_percent)
        for document in documents
        if document.host in members
    }
