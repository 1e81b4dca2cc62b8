"""The rest of a node: identity, processors, interfaces, versions, limits."""

from __future__ import annotations

import ipaddress
import json
import re
from dataclasses import replace

from ..errors import ParseError
from .kernel import UNLIMITED, cpu_list, driver_version, memlock_bytes
from .node import Cpu, Identity, Interface, Limits, NumaNode
from .order import natural_key
from .system import System
from .tools import parse_ip_addresses, parse_ip_default_routes
from .virtualization import DMI, find_virtualization

DEVICE_TREE = "/sys/firmware/devicetree/base"
NO_VALUES = ("", "None", "Not Specified", "To be filled by O.E.M.", "Default string")
CPUS = "/sys/devices/system/cpu"
NODES = "/sys/devices/system/node"
NET = "/sys/class/net"
LIBRARY_DIRECTORIES = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
    "/usr/local/cuda/lib64",
    "/usr/local/nvidia/lib64",
)
_MEMLOCK_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def find_identity(system: System) -> Identity:
    """Return who the machine is; a container has no identity of its own in DMI (it would show the host's)."""
    kind, hypervisor = find_virtualization(system)
    boot_id = system.read("/proc/sys/kernel/random/boot_id")
    if kind == "container":
        return Identity(virtualization=kind, hypervisor=hypervisor, boot_id=boot_id)

    def value(name: str, *others: str) -> str | None:
        texts = [(system.read(path) or "").replace("\0", "").strip() for path in (f"{DMI}/{name}", *others)]
        return next((text for text in texts if text not in NO_VALUES), None)

    return Identity(
        vendor=value("sys_vendor"),
        product=value("product_name", f"{DEVICE_TREE}/model"),
        serial=value("product_serial", f"{DEVICE_TREE}/serial-number"),
        board_serial=value("board_serial"),
        uuid=value("product_uuid", "/sys/hypervisor/uuid"),
        virtualization=kind,
        hypervisor=hypervisor,
        boot_id=boot_id,
    )


def find_cpu(system: System) -> Cpu:
    """Count sockets, cores and threads from the kernel's topology files."""
    online = cpu_list(system.read(f"{CPUS}/online") or "0")
    packages: dict[str, set[str]] = {}
    for cpu in online:
        package = system.read(f"{CPUS}/cpu{cpu}/topology/physical_package_id")
        core = system.read(f"{CPUS}/cpu{cpu}/topology/core_id")
        if package is not None and core is not None:
            packages.setdefault(package, set()).add(core)
    cores = {len(group) for group in packages.values()}
    even = len(cores) == 1 and len(online) % (len(packages) * min(cores)) == 0
    model = re.search(r"^model name\s*: (.+)$", system.read("/proc/cpuinfo") or "", re.MULTILINE)
    return Cpu(
        model=model[1] if model else None,
        sockets=len(packages) or None,
        cores_per_socket=min(cores) if even else None,
        threads_per_core=len(online) // (len(packages) * min(cores)) if even else None,
        logical=len(online),
        numa_nodes=_numa_nodes(system),
    )


def _numa_nodes(system: System) -> tuple[NumaNode, ...]:
    nodes = [int(name[4:]) for name in system.names(NODES) if re.fullmatch(r"node\d+", name)]
    lists = {node: system.read(f"{NODES}/node{node}/cpulist") for node in sorted(nodes)}
    # Memory of a coherent accelerator shows as a NUMA node without CPUs; it is no place for a process.
    return tuple(NumaNode(node, cpus) for node, cpus in lists.items() if cpus)


def find_interfaces(system: System, rdma_netdevs: frozenset[str], warnings: list[str]) -> tuple[Interface, ...]:
    """Return the network interfaces except the loopback; virtual ones only where they reach further than the link."""
    addresses, defaults = _addresses(system, warnings)
    result = []
    for name in sorted(system.names(NET), key=natural_key):
        if name == "lo" or system.read(f"{NET}/{name}/address") is None:
            continue
        target = system.target(f"{NET}/{name}/device")
        routed = [address for address in addresses.get(name, ()) if not ipaddress.ip_interface(address).is_link_local]
        if target is None and not routed and name not in defaults:
            continue
        bdf = (target or "").rsplit("/", 1)[-1]
        interface = Interface(
            name,
            addresses=addresses.get(name, ()),
            default_route=name in defaults,
            bdf=bdf if re.fullmatch(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", bdf) else None,
        )
        result.append(interface if name in rdma_netdevs else _with_link(system, interface))
    return tuple(result)


def _with_link(system: System, interface: Interface) -> Interface:
    base = f"{NET}/{interface.name}"
    mtu = system.read(f"{base}/mtu")
    return replace(
        interface,
        mac=system.read(f"{base}/address"),
        mtu=int(mtu) if mtu and mtu.isdigit() else None,
        state=system.read(f"{base}/operstate"),
    )


def _addresses(system: System, warnings: list[str]) -> tuple[dict[str, tuple[str, ...]], frozenset[str]]:
    commands = [
        ("ip", "-j", "address", "show"),
        ("ip", "-j", "route", "show", "default"),
        ("ip", "-6", "-j", "route", "show", "default"),
    ]
    outputs = system.run_all(commands)
    shown = [output.stdout for output in outputs if output is not None and output.status == 0]
    if len(shown) == len(commands):
        try:
            routes = parse_ip_default_routes(shown[1]) | parse_ip_default_routes(shown[2])
            return parse_ip_addresses(shown[0]), routes
        except ParseError as error:
            warnings.append(str(error))
    return _kernel_addresses(system), _kernel_default_routes(system)


def _kernel_addresses(system: System) -> dict[str, tuple[str, ...]]:
    """Return addresses without any tool: local addresses of the routing trie, placed by the connected routes."""
    trie = system.read("/proc/net/fib_trie") or ""
    local = re.findall(r"\|-- (\d+\.\d+\.\d+\.\d+)\n\s+/32 host LOCAL", trie)
    found: dict[str, list[str]] = {}
    for interface, network in _connected_routes(system):
        inside = [address for address in dict.fromkeys(local) if ipaddress.IPv4Address(address) in network]
        found.setdefault(interface, []).extend(f"{address}/{network.prefixlen}" for address in inside)
    for line in (system.read("/proc/net/if_inet6") or "").splitlines():
        words = line.split()
        if len(words) == 6 and words[5] != "lo":
            address = ipaddress.IPv6Address(bytes.fromhex(words[0]))
            found.setdefault(words[5], []).append(f"{address}/{int(words[2], 16)}")
    return {name: tuple(dict.fromkeys(values)) for name, values in found.items()}


def _routes(system: System) -> list[list[str]]:
    return [line.split() for line in (system.read("/proc/net/route") or "").splitlines()[1:] if len(line.split()) > 7]


def _connected_routes(system: System) -> list[tuple[str, ipaddress.IPv4Network]]:
    routes = []
    for words in _routes(system):
        destination, gateway, mask = (bytes.fromhex(words[column])[::-1] for column in (1, 2, 7))
        if not any(gateway) and any(mask):
            prefix = bin(int.from_bytes(mask, "big")).count("1")
            routes.append((words[0], ipaddress.IPv4Network((destination, prefix))))
    return routes


def _kernel_default_routes(system: System) -> frozenset[str]:
    return frozenset(words[0] for words in _routes(system) if words[1] == words[7] == "00000000")


def find_versions(system: System, warnings: list[str]) -> dict[str, str | None]:
    """Return versions by the keys of `Versions`, except those that the source of the GPUs knows."""
    kernel_text = system.read("/proc/driver/nvidia/version")
    driver, module = None, None
    if kernel_text:
        try:
            driver, module = driver_version(kernel_text)
        except ParseError as error:
            warnings.append(str(error))
    outputs = system.run_all([("nv-fabricmanager", "--version"), ("slurmd", "-V"), ("ofed_info", "-s")])
    texts = [output.stdout + output.stderr if output and output.status == 0 else "" for output in outputs]
    return {
        "os": _os_name(system),
        "kernel": system.read("/proc/sys/kernel/osrelease"),
        "nvidia_driver": driver,
        "nvidia_userspace": _library_version(system, "libnvidia-ml.so"),
        "nvidia_kernel_module": module,
        "fabric_manager": _first_match(r"(\d{3,4}\.\d+(?:\.\d+)?)", texts[0]),
        "cuda": _cuda(system),
        "nccl": _library_version(system, "libnccl.so"),
        "ofed": texts[2].strip().rstrip(":") or None,
        "slurm": _first_match(r"^slurm(?:-wlm)? (\S+)", texts[1]),
    }


def _cuda(system: System) -> str | None:
    try:
        values = json.loads(system.read("/usr/local/cuda/version.json") or "{}")
    except ValueError:
        return None
    version = values.get("cuda", {}).get("version") if isinstance(values, dict) else None
    return version if isinstance(version, str) else None


def _os_name(system: System) -> str | None:
    return _first_match(r'^PRETTY_NAME="?([^"\n]+)"?', system.read("/etc/os-release") or "")


def _first_match(pattern: str, text: str) -> str | None:
    match = re.search(pattern, text, re.MULTILINE)
    return match[1] if match else None


def _library_version(system: System, name: str) -> str | None:
    for directory in LIBRARY_DIRECTORIES:
        for entry in system.names(directory):
            if re.fullmatch(rf"{re.escape(name)}\.\d+(\.\d+)+", entry):
                return entry[len(name) + 1 :]
    return None


def find_nccl_plugins(system: System) -> tuple[str, ...]:
    """Return the network plugins that NCCL could load from the library directories, by file name."""
    names = {entry for directory in LIBRARY_DIRECTORIES for entry in system.names(directory)}
    return tuple(sorted(name for name in names if re.match(r"libnccl-net(-[A-Za-z0-9_.-]+)?\.so", name)))


def find_limits(system: System, warnings: list[str]) -> Limits:
    """Return limits as this process has them, and as they are configured for jobs."""
    effective = None
    try:
        effective = memlock_bytes(system.read("/proc/self/limits") or "")
    except ParseError as error:
        warnings.append(str(error))
    devices = [name for name in system.names("/dev/infiniband") if name.startswith("uverbs")]
    return Limits(
        memlock_effective_bytes=effective,
        memlock_configured_bytes=_configured_memlock(system),
        shm_bytes=system.capacity_bytes("/dev/shm"),
        rdma_devices_opened=sum(system.can_open(f"/dev/infiniband/{name}") for name in devices),
    )


def _configured_memlock(system: System) -> int | None:
    """Return what the slurmd unit gives to jobs, else what the limits files give to everybody."""
    value: int | None = None
    for directory in ("/usr/lib/systemd/system", "/lib/systemd/system", "/etc/systemd/system"):
        texts = [system.read(f"{directory}/slurmd.service")]
        drop_ins = f"{directory}/slurmd.service.d"
        texts += [system.read(f"{drop_ins}/{name}") for name in system.names(drop_ins) if name.endswith(".conf")]
        for match in (re.search(r"^LimitMEMLOCK=(\S+)", text or "", re.MULTILINE) for text in texts):
            value = _size(match[1]) if match else value
    if value is not None:
        return value
    names = [f"/etc/security/limits.d/{name}" for name in system.names("/etc/security/limits.d")]
    for path in ["/etc/security/limits.conf", *names]:
        for kilobytes in re.findall(r"^\*\s+(?:-|hard)\s+memlock\s+(\S+)", system.read(path) or "", re.MULTILINE):
            value = UNLIMITED if kilobytes in ("unlimited", "infinity", "-1") else _size(kilobytes + "K")
    return value


def _size(text: str) -> int | None:
    last = text.split(":")[-1]
    if last == "infinity":
        return UNLIMITED
    match = re.fullmatch(r"(\d+)([KMGT]?)", last)
    return int(match[1]) * _MEMLOCK_UNITS[match[2]] if match else None
