"""Whether a machine is a container, a virtual machine, both or neither, by evidence; the hypervisor is asked first.

A mark of a container alone proves little: the root file system of a small virtual machine is often made from a
container image and still holds its ``/.dockerenv``. A process in a container is in other namespaces than the first ones
of the kernel.
"""

from __future__ import annotations

import re

from .system import System, ToolOutput

DMI = "/sys/class/dmi/id"
CLOCK_SOURCES = "/sys/devices/system/clocksource/clocksource0/available_clocksource"
# DMI vendors of virtual machines; the same vendor's bare metal lacks the processor's "hypervisor" flag.
VENDORS = {
    "QEMU": "kvm",
    "KVM": "kvm",
    "Google": "kvm",
    "Amazon EC2": "kvm",
    "OpenStack": "kvm",
    "Red Hat": "kvm",
    "oVirt": "kvm",
    "Nutanix": "kvm",
    "DigitalOcean": "kvm",
    "Microsoft Corporation": "hyperv",
    "VMware": "vmware",
    "Xen": "xen",
    "innotek": "virtualbox",
    "Parallels": "parallels",
}
# Names of products that are virtual whatever the flags say; processors other than x86 have no such flag.
PRODUCTS = {
    "KVM": "kvm",
    "QEMU": "kvm",
    "Standard PC (": "kvm",
    "VMware": "vmware",
    "VirtualBox": "virtualbox",
    "HVM domU": "xen",
}
CLOCKS = {"kvm-clock": "kvm", "xen": "xen", "hyperv_clocksource": "hyperv"}
# Words of `systemd-detect-virt --vm`; most clouds are KVM below.
DETECTED = {
    "qemu": "kvm",
    "amazon": "kvm",
    "google": "kvm",
    "microsoft": "hyperv",
    "oracle": "virtualbox",
    "vm-other": "vm",
}
# Numbers that the kernel gives its own first namespaces (include/linux/proc_ns.h).
FIRST_NAMESPACES = {"cgroup": 4026531835, "pid": 4026531836, "uts": 4026531838, "ipc": 4026531839}


def find_virtualization(system: System) -> tuple[str, str | None]:
    """Return what the machine is and, where one is found, its hypervisor.

    The first is ``container``, the name of the hypervisor, ``vm`` for an unknown one, or ``none``. In a container the
    second says what the machine below is.
    """
    hypervisor = find_hypervisor(system)
    if _in_container(system, hypervisor):
        return "container", hypervisor
    return hypervisor or "none", hypervisor


def find_hypervisor(system: System) -> str | None:
    """Return the name of the hypervisor, ``vm`` for an unknown one, None where nothing speaks of one."""
    if "control_d" in (system.read("/proc/xen/capabilities") or ""):
        return None  # the control domain of Xen has the hardware
    product = system.read(f"{DMI}/product_name") or ""
    named = next((kind for name, kind in PRODUCTS.items() if product.startswith(name)), None)
    flags = re.search(r"^flags\s*:(.*)$", system.read("/proc/cpuinfo") or "", re.MULTILINE)
    if flags and "hypervisor" in flags[1].split():
        vendor = system.read(f"{DMI}/sys_vendor") or ""
        by_vendor = next((kind for name, kind in VENDORS.items() if vendor.startswith(name)), None)
        return by_vendor or named or _by_kernel(system) or _by_tool(system) or "vm"
    return named or _by_kernel(system, clocks=False) or (None if flags else _by_tool(system))


def _by_kernel(system: System, clocks: bool = True) -> str | None:
    """Ask what the kernel itself learned: Xen's directory, the device tree, clocks that only a hypervisor offers."""
    if system.read("/sys/hypervisor/type"):
        return system.read("/sys/hypervisor/type")
    tree = (system.read("/sys/firmware/devicetree/base/hypervisor/compatible") or "").replace("\0", "")
    if tree:
        return "kvm" if "kvm" in tree else "xen" if "xen" in tree else "vm"
    offered = (system.read(CLOCK_SOURCES) or "").split() if clocks else []
    return next((kind for name, kind in CLOCKS.items() if any(clock.startswith(name) for clock in offered)), None)


def _by_tool(system: System) -> str | None:
    (answer,) = system.run_all([("systemd-detect-virt", "--vm")])
    word = _word(answer)
    return None if word in (None, "none") else DETECTED.get(word or "", word)


def _word(answer: ToolOutput | None) -> str | None:
    """Return the tool's one word; it ends with status 1 where it says none."""
    text = answer.stdout.strip() if answer else ""
    return text if re.fullmatch(r"[a-z][a-z0-9-]*", text) else None


def _in_container(system: System, hypervisor: str | None) -> bool:
    marked = bool(system.read("/run/systemd/container")) or ".containerenv" in system.names("/run")
    if not marked and ".dockerenv" not in system.names("/"):
        return False
    inside = _other_namespaces(system)
    # Unknown namespaces: the mark decides, except a file of the image on a virtual machine, which may be left over.
    return inside if inside is not None else marked or hypervisor is None


def _other_namespaces(system: System) -> bool | None:
    """Say whether this process is in other namespaces than the kernel's first ones; None where that is not readable."""
    found = {name: system.link(f"/proc/self/ns/{name}") for name in FIRST_NAMESPACES}
    known = {name: text for name, text in found.items() if text}
    if not known:
        return None
    return any(text != f"{name}:[{FIRST_NAMESPACES[name]}]" for name, text in known.items())
