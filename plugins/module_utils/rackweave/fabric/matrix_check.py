"""Distances from sysfs paths against ``nvidia-smi topo -m`` of the same machine: two sources that must agree."""

from __future__ import annotations

from ..hardware.node import NodeDocument
from ..hardware.topo_matrix import TopoMatrix
from .distance import LEVELS, pcie_distance
from .findings import Finding


def compare_with_matrix(document: NodeDocument, matrix: TopoMatrix) -> list[Finding]:
    """Return a finding for each GPU and NIC whose distance in the matrix is another than their paths say."""
    findings = []
    nics = {nic.device: nic for nic in document.nics}
    for column, device in matrix.nic_devices.items():
        nic = nics.get(device)
        if nic is None:
            message = f"the matrix has {column} = {device}, the document has no such device"
            findings.append(Finding("topology-differs", document.host, message))
            continue
        for gpu in document.gpus:
            shown = matrix.cells.get(f"GPU{gpu.index}", {}).get(column)
            numa = (gpu.numa_node, nic.numa_node)
            computed = pcie_distance(gpu.pcie_path, nic.pcie_path, numa, document.cpu.sockets)
            if shown in LEVELS and computed is not None and shown != computed:
                message = f"GPU {gpu.index} to {device}: {computed} by the paths in sysfs, {shown} in the matrix"
                findings.append(Finding("topology-differs", document.host, message))
    if len(document.gpus) != len(matrix.gpus):
        message = f"the matrix has {len(matrix.gpus)} GPUs, the document {len(document.gpus)}"
        findings.append(Finding("topology-differs", document.host, message))
    return findings
