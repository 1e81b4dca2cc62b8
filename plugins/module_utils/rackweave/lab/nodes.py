"""Names and addresses of the lab's nodes, and the podman arguments that start one."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .host import HostMode, LabError

LABEL_DIGEST = "rackweave.lab.digest"
LABEL_LAB = "rackweave.lab.name"
LABEL_CHECKOUT = "rackweave.lab.checkout"
# NET_RAW: ping has it as a file capability. NET_ADMIN: fault injection cuts links. MKNOD: simulated GPUs.
CAPABILITIES = ("NET_RAW", "NET_ADMIN", "IPC_LOCK", "SYS_NICE", "SYS_PTRACE", "MKNOD")
HOST_NAME = re.compile(r"^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$")


@dataclass(frozen=True)
class LabNode:
    """One node: its name, its fixed address on the bridge, and how many GPUs Slurm is shown."""

    name: str
    address: str
    simulated_gpus: int


@dataclass(frozen=True)
class LabSite:
    """What all nodes of one lab share.

    ``volumes`` are podman volume arguments (``SOURCE:TARGET[:OPTIONS]``); ``checkout`` is the owning directory;
    ``privileged`` nodes can run a container engine of their own, and could also harm the machine.
    """

    name: str
    checkout: str
    network: str
    image: str
    volumes: tuple[str, ...] = ()
    shm_mib: int = 1024
    privileged: bool = False


def _address_in(address: str, network: ipaddress.IPv4Network, host: str) -> ipaddress.IPv4Address:
    try:
        parsed = ipaddress.IPv4Address(address)
    except ValueError:
        raise LabError(f"lab node {host}: '{address}' is no IPv4 address") from None
    if parsed not in network or parsed in (
        network.network_address,
        network.network_address + 1,
        network.broadcast_address,
    ):
        raise LabError(f"lab node {host}: address {address} is not a free host address of the lab's network {network}")
    return parsed


def lab_nodes(
    hosts: Mapping[str, str], gpu_hosts: Sequence[str], subnet: str, compute_count: int, gpus_per_node: int
) -> list[LabNode]:
    """Return the nodes to start: those of the inventory, and numbered ones beyond them if more are asked for.

    Args:
        hosts: inventory name to ``ansible_host`` of every node, controller included.
        gpu_hosts: those of them that carry simulated GPUs.
        subnet: the bridge's network, CIDR.
        compute_count: number of GPU nodes wanted; not below ``len(gpu_hosts)``.
        gpus_per_node: simulated GPUs on each GPU node.

    Raises:
        LabError: for an address outside the subnet or given twice, a bad name, or a count below the inventory's.
    """
    try:
        network = ipaddress.IPv4Network(subnet)
    except ValueError:
        raise LabError(f"lab_node_subnet '{subnet}' is no IPv4 network such as 10.89.77.0/24") from None
    if compute_count < len(gpu_hosts):
        raise LabError(
            f"lab_node_compute_count={compute_count} is below the {len(gpu_hosts)} GPU nodes that the inventory names: "
            "take them out of it first"
        )
    if not 0 <= gpus_per_node <= 16:
        raise LabError(f"lab_node_gpus={gpus_per_node} is outside 0 to 16")
    used: dict[ipaddress.IPv4Address, str] = {}
    nodes: list[LabNode] = []
    for name, address in hosts.items():
        if not HOST_NAME.match(name):
            raise LabError(f"lab node '{name}' is no plain host name (letters, digits and '-')")
        parsed = _address_in(address, network, name)
        if parsed in used:
            raise LabError(f"lab nodes {used[parsed]} and {name} both have the address {address}")
        used[parsed] = name
        nodes.append(LabNode(name, str(parsed), gpus_per_node if name in gpu_hosts else 0))
    return nodes + _additional_nodes(nodes, gpu_hosts, network, compute_count, gpus_per_node)


def _additional_nodes(
    nodes: Sequence[LabNode],
    gpu_hosts: Sequence[str],
    network: ipaddress.IPv4Network,
    compute_count: int,
    gpus_per_node: int,
) -> list[LabNode]:
    """Continue the numbering and the addresses of the last GPU node of the inventory."""
    wanted = compute_count - len(gpu_hosts)
    if not wanted:
        return []
    by_name = {node.name: node for node in nodes}
    last = sorted(gpu_hosts)[-1] if gpu_hosts else ""
    match = re.match(r"^(.*?)(\d+)$", last)
    if not match:
        raise LabError(f"cannot number nodes beyond '{last}': the last GPU node of the inventory must end in digits")
    prefix, digits = match.groups()
    address = ipaddress.IPv4Address(by_name[last].address)
    taken = {node.address for node in nodes}
    added: list[LabNode] = []
    for number in range(int(digits) + 1, int(digits) + 1 + wanted):
        name = f"{prefix}{number:0{len(digits)}d}"
        address += 1
        if str(address) in taken or name in by_name:
            raise LabError(
                f"lab_node_compute_count={compute_count}: {name} at {address} collides with a node of the inventory"
            )
        _address_in(str(address), network, name)
        added.append(LabNode(name, str(address), gpus_per_node))
    return added


def container_name(site: LabSite, node: LabNode) -> str:
    """Return the container's name, which carries the lab's so that several labs can stand side by side."""
    return f"{site.name}-{node.name}"


def run_arguments(site: LabSite, node: LabNode, mode: HostMode) -> list[str]:
    """Return the arguments of ``podman`` that start the node, the digest label of :func:`node_digest` included."""
    digest = node_digest(site, node, mode)
    return [
        "run",
        "--detach",
        *_identity(site, node),
        "--label",
        f"{LABEL_DIGEST}={digest}",
        *_limits(mode),
        *_devices(node),
        *(argument for volume in site.volumes for argument in ("--volume", volume)),
        site.image,
    ]


def node_digest(site: LabSite, node: LabNode, mode: HostMode) -> str:
    """Return a digest of everything that shapes the container; another digest means it must be made anew."""
    shape = [_identity(site, node), _limits(mode), _devices(node), list(site.volumes), site.image]
    return hashlib.sha256(json.dumps(shape).encode()).hexdigest()[:16]


def _identity(site: LabSite, node: LabNode) -> list[str]:
    return [
        "--name",
        container_name(site, node),
        "--hostname",
        node.name,
        "--network",
        site.network,
        "--ip",
        node.address,
        "--network-alias",
        node.name,
        "--label",
        f"{LABEL_LAB}={site.name}",
        "--label",
        f"{LABEL_CHECKOUT}={site.checkout}",
        # `always`, so that a reboot or poweroff inside brings the node back as a machine would come back.
        "--restart=always",
        "--systemd=always",
        "--shm-size",
        f"{site.shm_mib}m",
        *(["--privileged"] if site.privileged else ["--cap-add", ",".join(CAPABILITIES)]),
    ]


def _limits(mode: HostMode) -> list[str]:
    limits = ["--ulimit", f"nofile={mode.nofile}:{mode.nofile}", "--ulimit", f"nproc={mode.nproc}:{mode.nproc}"]
    if mode.raise_limits:
        limits += ["--ulimit", "memlock=-1:-1"]
    # The private cgroup tree has no controllers at all, so podman must not try to set one.
    return [*limits, "--pids-limit=-1"]


def _devices(node: LabNode) -> list[str]:
    """Return device arguments: /dev/null under the names of GPUs, enough for Slurm to count them and hand them out."""
    return [
        argument for index in range(node.simulated_gpus) for argument in ("--device", f"/dev/null:/dev/nvidia{index}")
    ]
