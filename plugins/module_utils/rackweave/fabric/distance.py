"""PCIe distance of two functions from their paths, in the words of ``nvidia-smi topo -m``.

PIX: at most one switch between them. PXB: several switches, below one root port. PHB: through the host bridge (the
processor). NODE: another host bridge of the same NUMA node. SYS: through the link between processors.
"""

from __future__ import annotations

from ..hardware.node import NodeDocument

LEVELS = ("PIX", "PXB", "PHB", "NODE", "SYS")
# NCCL knows no NODE; GPUDirect RDMA is used up to PXB unless told otherwise (NCCL_NET_GDR_LEVEL).
GPUDIRECT_LEVELS = ("PIX", "PXB")
# Host bridge, at most a port, and the device: what a hypervisor shows when it passes devices through one by one.
FLAT_PATH_LENGTH = 3


def pcie_distance(
    first: tuple[str, ...], second: tuple[str, ...], numa: tuple[int | None, int | None], sockets: int | None
) -> str | None:
    """Return one of `LEVELS`, None where a path is unknown.

    Args:
        first, second: paths as in the node document: host bridge, bridges, the device itself.
        numa: NUMA nodes of the two; None is unknown (the kernel's -1), never node 0.
        sockets: processors of the machine; on a single one no transfer crosses between processors.
    """
    if not first or not second:
        return None
    if first[0] != second[0]:
        known = numa[0] is not None and numa[1] is not None
        same = numa[0] == numa[1] if known else sockets == 1
        return "NODE" if same else "SYS"
    common = 0
    while common < min(len(first), len(second)) - 1 and first[common] == second[common]:
        common += 1
    if common == 1:
        return "PHB"
    return "PIX" if _switches(first, second, common) <= 1 else "PXB"


def _switches(first: tuple[str, ...], second: tuple[str, ...], common: int) -> int:
    """Count the switches between two devices whose paths share ``common`` elements.

    A switch shows as two bridges, an upstream and a downstream port. The last common element is the upstream port of
    the switch where the paths part (or the downstream port above two functions of one card: no switch at all); each
    further switch on a branch adds two bridges after that branch's first downstream port.
    """
    branches = (len(first) - 1 - common, len(second) - 1 - common)
    if max(branches) <= 0:
        return 0
    return 1 + sum(max(0, branch) // 2 for branch in branches)


def flat_virtual_machine(document: NodeDocument) -> bool:
    """Say whether the tree is a hypervisor's: nothing in it tells which GPU is near which NIC."""
    kinds = {document.identity.virtualization, document.identity.hypervisor} - {None, "none", "container"}
    if not kinds:
        return False
    paths = [gpu.pcie_path for gpu in document.gpus] + [nic.pcie_path for nic in document.nics if nic.bdf]
    return bool(paths) and all(len(path) <= FLAT_PATH_LENGTH for path in paths)
