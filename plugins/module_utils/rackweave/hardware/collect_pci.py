"""Facts of PCI functions from sysfs: path, NUMA node, slot, ACS of the bridges on the way."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..errors import ParseError
from .config_space import FULL_SIZE, read_config_space
from .order import bdf_key
from .system import System
from .tools import parse_lspci_acs

DEVICES = "/sys/bus/pci/devices"
NVIDIA_VENDOR = "0x10de"
# PCI class codes: 3D controller and VGA for GPUs, "bridge, other" for NVSwitch (PCI code and ID assignment 1.11).
GPU_CLASSES = ("0x0302", "0x0300")
NVSWITCH_CLASS = "0x0680"
_ELEMENT = re.compile(r"/(pci[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}|[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])(?=/|$)")


@dataclass(frozen=True)
class PciFunction:
    """One function: `path` from the host bridge to itself; `numa_node` None where the kernel says -1."""

    bdf: str
    pci_id: str | None
    path: tuple[str, ...]
    numa_node: int | None
    local_cpus: str | None
    slot: str | None


def pcie_path(target: str) -> tuple[str, ...]:
    """Return host bridge, bridges and device of a resolved sysfs path."""
    return tuple(_ELEMENT.findall(target))


def pci_function(system: System, bdf: str, slots: dict[str, str]) -> PciFunction:
    """Read one function; ``slots`` maps ``domain:bus:device`` to the name of a physical slot."""
    directory = f"{DEVICES}/{bdf}"
    path = pcie_path(system.target(directory) or "")
    numa = system.read(f"{directory}/numa_node")
    cpus = system.read(f"{directory}/local_cpulist")
    vendor, device = system.read(f"{directory}/vendor"), system.read(f"{directory}/device")
    known_numa = numa is not None and numa.isdigit()
    # A slot is registered for the bus below it, so the device itself or one of its bridges has the name.
    slot = next((slots[key] for key in (step.rsplit(".", 1)[0] for step in reversed(path)) if key in slots), None)
    return PciFunction(
        bdf,
        f"{vendor[2:]}:{device[2:]}" if vendor and device else None,
        path,
        int(numa) if numa is not None and known_numa else None,
        cpus if cpus and known_numa else None,
        slot,
    )


def physical_slots(system: System) -> dict[str, str]:
    """Return the slots of the machine by ``domain:bus:device``."""
    names = {name: system.read(f"/sys/bus/pci/slots/{name}/address") for name in system.names("/sys/bus/pci/slots")}
    return {address: name for name, address in names.items() if address}


def functions_of_class(system: System, classes: tuple[str, ...], vendor: str) -> list[str]:
    """Return the addresses of a vendor's functions whose class begins with one of ``classes``, in bus order."""
    found = []
    for bdf in system.names(DEVICES):
        if (system.read(f"{DEVICES}/{bdf}/vendor") or "") != vendor:
            continue
        if (system.read(f"{DEVICES}/{bdf}/class") or "").startswith(classes):
            found.append(bdf)
    return sorted(found, key=bdf_key)


def acs_bridges(system: System, paths: list[tuple[str, ...]], warnings: list[str]) -> tuple[str, ...] | None:
    """Return the bridges on the paths whose ACS is on, None (with a warning) where it cannot be read."""
    bridges = sorted({step for path in paths for step in path[1:-1]}, key=bdf_key)
    states: dict[str, bool] = {}
    for bdf in bridges:
        data = system.read_bytes(f"{DEVICES}/{bdf}/config", FULL_SIZE)
        acs = read_config_space(data).acs if data else None
        if acs is None:
            return _acs_by_lspci(system, bridges, warnings)
        states[bdf] = bool(acs)
    return tuple(bdf for bdf, on in states.items() if on)


def _acs_by_lspci(system: System, bridges: list[str], warnings: list[str]) -> tuple[str, ...] | None:
    output = system.run_all([("lspci", "-D", "-vvv")])[0]
    if output is None or output.status:
        warnings.append("ACS unknown: the configuration space is not readable (not root?) and lspci did not work")
        return None
    try:
        states = parse_lspci_acs(output.stdout)
    except ParseError as error:
        warnings.append(f"ACS unknown: {error}")
        return None
    return tuple(state.bdf for state in states if state.bdf in bridges and state.controls)


def iommu_state(system: System) -> str:
    """Return ``off``, ``passthrough`` or ``on``, from what the kernel really runs with."""
    if not system.names("/sys/class/iommu"):
        return "off"
    groups = system.names("/sys/kernel/iommu_groups")
    kinds = {system.read(f"/sys/kernel/iommu_groups/{group}/type") for group in groups[:64]}
    if kinds - {None}:
        return "passthrough" if kinds <= {"identity", None} else "on"
    words = (system.read("/proc/cmdline") or "").split()
    return "passthrough" if "iommu=pt" in words or "iommu.passthrough=1" in words else "on"
