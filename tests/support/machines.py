"""Machines as compact descriptions, written out as trees of /sys and /proc with shims for the tools.

Everything made here is synthesised: from prose about public machine types and from the public formats of the kernel and
the tools, never recorded on such a machine.
"""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass, field
from pathlib import Path

TOOL_OUTPUT = Path(__file__).parents[1] / "fixtures/nodes/tools"
GPU_CLASS, BRIDGE_CLASS, NET_CLASS = "0x030200", "0x060400", "0x020000"
RATES = {400: "4X NDR", 200: "4X HDR", 100: "4X EDR", 800: "4X XDR", 50: "1X HDR", 25: "1X EDR", 10: "4X SDR"}
STATES = {"ACTIVE": ("4: ACTIVE", "5: LinkUp"), "DOWN": ("1: DOWN", "3: Disabled")}


@dataclass(frozen=True)
class Gpu:
    """A GPU at the end of a path (host bridge, bridges, itself)."""

    path: tuple[str, ...]
    numa: int = 0

    @property
    def bdf(self) -> str:
        return self.path[-1]


@dataclass(frozen=True)
class Nic:
    """One RDMA device (function); `card` is shared by the functions of one card; rates in Gb/s."""

    device: str
    path: tuple[str, ...]
    numa: int = 0
    rate: int = 400
    layer: str = "Ethernet"
    hca_type: str = "MT4129"
    board: str = "MT_0000000838"
    firmware: str = "28.39.1002"
    card: str | None = None
    netdev: str | None = None
    mtu: int = 9000
    active_mtu: int = 4096
    state: str = "ACTIVE"
    addresses: tuple[str, ...] = ()
    vf: bool = False
    slaves: tuple[str, ...] = ()
    default_route: bool = False
    slot: str | None = None
    serial: str | None = None
    gids: tuple[tuple[int, str, str], ...] | None = None

    @property
    def bdf(self) -> str:
        return self.path[-1]


@dataclass(frozen=True)
class Machine:
    """One node; `tools` are extra shims: name to a shell script's body."""

    gpus: tuple[Gpu, ...]
    nics: tuple[Nic, ...]
    sockets: int = 2
    cores_per_socket: int = 56
    hypervisor: str | None = None
    management: str | None = "eno1"
    nvswitches: tuple[tuple[str, ...], ...] = ()
    acs_bridges: tuple[str, ...] = ()
    tools: dict[str, str] = field(default_factory=dict)
    gpu_name: str = "NVIDIA H100 80GB HBM3"
    driver: str = "560.35.05"


def path(host_bridge: str, *steps: str) -> tuple[str, ...]:
    """Return a PCIe path: ``path("0000:15", "15:01.0", "17:00.0")`` puts the bridge's domain before each step."""
    domain = host_bridge.split(":")[0]
    return (f"pci{host_bridge}", *(f"{domain}:{step}" for step in steps))


def build(machine: Machine, root: Path) -> Path:
    """Write the machine below ``root`` and return it."""
    tree = _Tree(root)
    tree.write("/SYNTHESISED", "This tree was made from a description; it was recorded on no machine.\n")
    _processors(tree, machine)
    for index, gpu in enumerate(machine.gpus):
        tree.function(gpu.path, "0x10de", "0x2330", GPU_CLASS, gpu.numa, machine)
        text = (
            f"Model: \t\t {machine.gpu_name}\nIRQ:   \t\t 100\nGPU UUID: \t GPU-00000000-0000-4000-8000-{index:012x}\n"
            f"Video BIOS: \t 96.00.61.00.01\nBus Type: \t PCIe\nBus Location: \t {gpu.bdf}\nDevice Minor: \t {index}\n"
        )
        tree.write(f"/proc/driver/nvidia/gpus/{gpu.bdf}/information", text)
    for steps in machine.nvswitches:
        tree.function(steps, "0x10de", "0x22a3", "0x068000", 0, machine)
    for nic in machine.nics:
        _nic(tree, nic, machine)
    _software(tree, machine)
    return root


class _Tree:
    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, name: str, content: str | bytes, mode: int = 0o644) -> None:
        target = self.root / name.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content if isinstance(content, bytes) else content.encode())
        target.chmod(mode)

    def link(self, name: str, target: str) -> None:
        place = self.root / name.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.is_symlink():
            place.symlink_to(os.path.relpath(self.root / target.lstrip("/"), place.parent))

    def tool(self, name: str, body: str) -> None:
        self.write(f"/usr/bin/{name}", f"#!/bin/sh\n{body}\n", 0o755)

    def function(self, steps: tuple[str, ...], vendor: str, device: str, kind: str, numa: int, machine: Machine) -> str:
        """Write a device and the bridges above it; return its directory."""
        for depth in range(1, len(steps)):
            bdf, place = steps[depth], "/sys/devices/" + "/".join(steps[: depth + 1])
            self.link(f"/sys/bus/pci/devices/{bdf}", place)
            if depth < len(steps) - 1 and not (self.root / place.lstrip("/") / "class").exists():
                self._identity(place, "0x1000", "0xc010", BRIDGE_CLASS, numa, machine)
                self.write(f"{place}/config", config_space(bdf in machine.acs_bridges))
        self._identity(place, vendor, device, kind, numa, machine)
        self.write(f"{place}/config", config_space(False))
        return place

    def _identity(self, place: str, vendor: str, device: str, kind: str, numa: int, machine: Machine) -> None:
        self.write(f"{place}/vendor", vendor + "\n")
        self.write(f"{place}/device", device + "\n")
        self.write(f"{place}/class", kind + "\n")
        self.write(f"{place}/numa_node", f"{numa}\n")
        self.write(f"{place}/local_cpulist", numa_cpus(machine, max(0, numa)) + "\n")


def config_space(acs: bool) -> bytes:
    """Return 4096 bytes with a PCI Express capability (read request 4096 bytes) and the ACS capability, on or off."""
    data = bytearray(4096)
    data[0x34] = 0x40
    data[0x40:0x42] = bytes((0x10, 0x00))
    data[0x48:0x4A] = (5 << 12).to_bytes(2, "little")
    data[0x100:0x104] = (0x0001 | 1 << 16 | 0x148 << 20).to_bytes(4, "little")
    data[0x148:0x14C] = (0x000D | 1 << 16).to_bytes(4, "little")
    data[0x14E:0x150] = (0x1D if acs else 0).to_bytes(2, "little")
    return bytes(data)


def vital_product_data(serial: str) -> bytes:
    """Return vital product data: the product name, then the read-only section with part and serial number."""
    name = b"ConnectX-7 Ethernet adapter card"
    fields = b"PN" + bytes([5]) + b"MCX75" + b"SN" + bytes([len(serial)]) + serial.encode() + b"RV" + bytes([1, 0])
    head = bytes([0x82]) + len(name).to_bytes(2, "little") + name
    return head + bytes([0x90]) + len(fields).to_bytes(2, "little") + fields + bytes([0x78])


def numa_cpus(machine: Machine, node: int) -> str:
    """Return the CPUs of a socket, hyper-threads in a second block, as two-socket servers number them."""
    cores, total = machine.cores_per_socket, machine.sockets * machine.cores_per_socket
    first = node % machine.sockets * cores
    return f"{first}-{first + cores - 1},{total + first}-{total + first + cores - 1}"


def _processors(tree: _Tree, machine: Machine) -> None:
    total = machine.sockets * machine.cores_per_socket
    tree.write("/sys/devices/system/cpu/online", f"0-{2 * total - 1}\n")
    for cpu in range(2 * total):
        core = cpu % total
        base = f"/sys/devices/system/cpu/cpu{cpu}/topology"
        tree.write(f"{base}/physical_package_id", f"{core // machine.cores_per_socket}\n")
        tree.write(f"{base}/core_id", f"{core % machine.cores_per_socket}\n")
    for node in range(machine.sockets):
        tree.write(f"/sys/devices/system/node/node{node}/cpulist", numa_cpus(machine, node) + "\n")
    flags = "fpu sse" + (" hypervisor" if machine.hypervisor else "")
    tree.write("/proc/cpuinfo", f"processor\t: 0\nmodel name\t: Example CPU\nflags\t\t: {flags}\n")
    tree.write("/proc/meminfo", "MemTotal:       2113400320 kB\nMemFree:        1 kB\n")
    tree.write("/sys/class/dmi/id/sys_vendor", (machine.hypervisor or "Example Systems") + "\n")
    tree.write("/sys/class/dmi/id/product_name", "GX-8\n")
    tree.write("/sys/class/dmi/id/product_serial", "EX0001\n")
    tree.write("/proc/sys/kernel/random/boot_id", "11111111-0000-4000-8000-000000000001\n")


def default_gids(nic: Nic) -> tuple[tuple[int, str, str], ...]:
    """Return the rows that a RoCE port has for its link-local address and its addresses, two versions of each."""
    if nic.gids is not None:
        return nic.gids
    if nic.layer == "InfiniBand":
        return ((0, "fe80::a088:c203:ab:" + f"{int(nic.bdf[5:7], 16):x}", "IB/RoCE v1"),)
    link_local = f"fe80::200:5eff:fe00:{int(nic.bdf[5:7], 16):x}"
    addresses = [link_local, *(str(ipaddress.ip_interface(address).ip) for address in nic.addresses)]
    full = [address if ":" in address else f"::ffff:{address}" for address in addresses]
    rows = [(address, kind) for address in full for kind in ("IB/RoCE v1", "RoCE v2")]
    return tuple((index, address, kind) for index, (address, kind) in enumerate(rows))


def _nic(tree: _Tree, nic: Nic, machine: Machine) -> None:
    place = tree.function(nic.path, "0x15b3", "0x101e" if nic.vf else "0x1021", NET_CLASS, nic.numa, machine)
    if nic.vf:
        tree.link(f"{place}/physfn", "/sys/devices/" + "/".join(machine.nics[0].path))
    if nic.serial:
        tree.write(f"{place}/vpd", vital_product_data(nic.serial))
    if nic.slot:
        tree.write(f"/sys/bus/pci/slots/{nic.slot}/address", nic.bdf.rsplit(".", 1)[0] + "\n")
    device = f"{place}/infiniband/{nic.device}"
    tree.link(f"/sys/class/infiniband/{nic.device}", device)
    tree.link(f"{device}/device", place)
    domain, bus, slot, function = nic.bdf.replace(".", ":").split(":")
    guid = nic.card or f"a088:c203:{domain}:{bus}{slot}"
    tree.write(f"{device}/node_guid", f"a088:{domain}:00{bus}:{slot}0{function}\n")
    tree.write(f"{device}/sys_image_guid", guid + "\n")
    for name, value in (("hca_type", nic.hca_type), ("board_id", nic.board), ("fw_ver", nic.firmware)):
        tree.write(f"{device}/{name}", value + "\n")
    port = f"{device}/ports/1"
    state, physical = STATES[nic.state]
    tree.write(f"{port}/state", state + "\n")
    tree.write(f"{port}/phys_state", physical + "\n")
    tree.write(f"{port}/rate", f"{nic.rate} Gb/sec ({RATES[nic.rate]})\n")
    tree.write(f"{port}/link_layer", nic.layer + "\n")
    netdev = nic.netdev or (f"net{nic.device}" if nic.layer == "Ethernet" else f"ib{nic.device}")
    rows = {index: (gid, kind) for index, gid, kind in default_gids(nic)}
    for index in range(max(rows, default=0) + 4):
        gid, kind = rows.get(index, ("::", ""))
        tree.write(f"{port}/gids/{index}", ipaddress.IPv6Address(gid).exploded + "\n")
        if index in rows:
            tree.write(f"{port}/gid_attrs/types/{index}", kind + "\n")
            tree.write(f"{port}/gid_attrs/ndevs/{index}", netdev + "\n")
    _netdev(tree, nic, place, netdev)


def _netdev(tree: _Tree, nic: Nic, place: str, netdev: str) -> None:
    base = f"/sys/class/net/{netdev}"
    tree.write(f"{base}/address", f"02:00:5e:00:{nic.bdf[5:7]}:{int(nic.bdf[-1]):02x}\n")
    tree.write(f"{base}/mtu", f"{nic.mtu}\n")
    tree.write(f"{base}/operstate", "up\n" if nic.state == "ACTIVE" else "down\n")
    tree.write(f"{place}/net/{netdev}/address", "")
    if nic.slaves:
        tree.write(f"{base}/bonding/slaves", " ".join(nic.slaves) + "\n")
    else:
        tree.link(f"{base}/device", place)


def _software(tree: _Tree, machine: Machine) -> None:
    text = (
        f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {machine.driver}  Release Build\nGCC version: 12\n"
    )
    if machine.gpus:
        tree.write("/proc/driver/nvidia/version", text)
    tree.write("/proc/sys/kernel/osrelease", "6.1.0-27-amd64\n")
    tree.write("/etc/os-release", 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nID=debian\n')
    tree.write("/proc/cmdline", "BOOT_IMAGE=/vmlinuz ro iommu=pt\n")
    tree.write("/sys/class/iommu/dmar0/devices", "")
    limits = "Limit                     Soft Limit           Hard Limit           Units     \n"
    tree.write(
        "/proc/self/limits", limits + "Max locked memory         unlimited            unlimited            bytes     \n"
    )
    tree.write("/etc/systemd/system/slurmd.service.d/limits.conf", "[Service]\nLimitMEMLOCK=infinity\n")
    for index in range(len(machine.nics)):
        tree.write(f"/dev/infiniband/uverbs{index}", "")
    if machine.management:
        base = f"/sys/class/net/{machine.management}"
        tree.write(f"{base}/address", "02:00:5e:00:00:01\n")
        tree.write(f"{base}/mtu", "1500\n")
        tree.write(f"{base}/operstate", "up\n")
    tree.tool("ibv_devinfo", _here(_devinfo(machine)))
    tree.tool("slurmd", _slurmd(machine))
    tree.tool("ip", _ip(machine))
    tree.tool("mlnx_qos", _here((TOOL_OUTPUT / "mlnx_qos.txt").read_text()))
    tree.tool("nv-fabricmanager", f"echo 'Fabric Manager version is : {machine.driver}'")
    for name, body in machine.tools.items():
        tree.tool(name, body)


def _here(text: str) -> str:
    return f"cat <<'END_OF_OUTPUT'\n{text}END_OF_OUTPUT"


def _devinfo(machine: Machine) -> str:
    codes = {4096: 5, 2048: 4, 1024: 3}
    blocks = []
    for nic in machine.nics:
        state = "PORT_ACTIVE (4)" if nic.state == "ACTIVE" else "PORT_DOWN (1)"
        blocks.append(
            f"hca_id:\t{nic.device}\n\ttransport:\t\t\tInfiniBand (0)\n\tfw_ver:\t\t\t\t{nic.firmware}\n"
            "\tnode_guid:\t\t\ta088:c203:00ab:cd12\n\tsys_image_guid:\t\t\ta088:c203:00ab:cd12\n"
            f"\tvendor_id:\t\t\t0x02c9\n\tvendor_part_id:\t\t\t4129\n\thw_ver:\t\t\t\t0x0\n\tboard_id:\t\t\t{nic.board}\n"
            f"\tphys_port_cnt:\t\t\t1\n\t\tport:\t1\n\t\t\tstate:\t\t\t{state}\n\t\t\tmax_mtu:\t\t4096 (5)\n"
            f"\t\t\tactive_mtu:\t\t{nic.active_mtu} ({codes[nic.active_mtu]})\n\t\t\tsm_lid:\t\t\t0\n"
            f"\t\t\tport_lid:\t\t0\n\t\t\tport_lmc:\t\t0x00\n\t\t\tlink_layer:\t\t{nic.layer}\n\n"
        )
    return "".join(blocks) or "No IB devices found\n"


def _slurmd(machine: Machine) -> str:
    cores, sockets = machine.cores_per_socket, machine.sockets
    line = (
        f"NodeName=here CPUs={2 * cores * sockets} Boards=1 SocketsPerBoard={sockets} CoresPerSocket={cores} "
        "ThreadsPerCore=2 RealMemory=2063751"
    )
    return f'if [ "$1" = -V ]; then echo "slurm-wlm 22.05.8"; else echo "{line}"; echo "UpTime=0-01:02:03"; fi'


def _ip(machine: Machine) -> str:
    rows = [
        (nic.netdev or f"net{nic.device}", address)
        for nic in machine.nics
        if nic.layer == "Ethernet"
        for address in nic.addresses
    ]
    if machine.management:
        rows.append((machine.management, "192.0.2.11/24"))
    entries = ",".join(
        '{{"ifname":"{}","addr_info":[{{"family":"{}","local":"{}","prefixlen":{}}}]}}'.format(
            name, "inet6" if ":" in address else "inet", *address.split("/")
        )
        for name, address in rows
    )
    routed = [nic.netdev or f"net{nic.device}" for nic in machine.nics if nic.default_route] or [machine.management]
    routes = ",".join(f'{{"dst":"default","dev":"{name}"}}' for name in routed if name)
    return (
        'case "$*" in\n"-j address show") cat <<\'END\'\n'
        f"[{entries}]\nEND\n;;\n\"-j route show default\") echo '[{routes}]' ;;\n*) echo '[]' ;;\nesac"
    )
