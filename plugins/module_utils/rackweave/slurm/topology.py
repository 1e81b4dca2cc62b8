"""Which nodes hang on which switch: topology.conf, or topology.yaml from Slurm 25.05 on.

The groups come from the inventory (switches, rail groups) or from the documents: nodes whose RDMA ports lie in the same
IP networks hang on the same leaf switches of a routed fabric.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..hardware.node import NodeDocument
from ..provision.inventory import expand_hosts
from .hostlist import compress
from .munge import SlurmError
from .settings import check_name
from .versions import TOPOLOGY_BLOCK, TOPOLOGY_YAML, Version, version_text

WHERE = "slurm_topology"
CONF, YAML = "topology.conf", "topology.yaml"
_KEYS = ("nodes", "switches")
_LONGEST_NAME = 64  # topology.conf(5)


@dataclass(frozen=True)
class Switch:
    """A switch (or a block) with either nodes or switches below it."""

    name: str
    nodes: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()


@dataclass(frozen=True)
class Topology:
    """All switches; with `block_sizes`, the switches are blocks of nodes (topology/block)."""

    switches: tuple[Switch, ...]
    block_sizes: tuple[int, ...] = ()


def read_topology(
    groups: Mapping[str, object], hosts: Sequence[str], block_sizes: Sequence[int] = ()
) -> Topology | None:
    """Return the topology of the inventory; None where it describes none.

    Args:
        groups: name to ``{nodes: [...]}`` or ``{switches: [...]}``, members as lists or as host list texts.
        hosts: every node of slurm.conf.
        block_sizes: base block size and larger ones, in nodes; empty for a tree.

    Raises:
        SlurmError: if Slurm would refuse it, or would silently keep some nodes from ever sharing a job.
    """
    if not groups:
        return None
    topology = Topology(tuple(_switch(name, value) for name, value in groups.items()), tuple(block_sizes))
    _check_nodes(topology, hosts)
    if topology.block_sizes:
        _check_blocks(topology)
    else:
        _check_tree(topology)
    return topology


def _switch(name: str, value: object) -> Switch:
    check_name(f"{WHERE}: switch", str(name))
    if len(str(name)) > _LONGEST_NAME:
        raise SlurmError(f"{WHERE}: the name {name} has {len(str(name))} characters; Slurm takes {_LONGEST_NAME}")
    if not isinstance(value, Mapping) or len(value) != 1 or next(iter(value)) not in _KEYS:
        raise SlurmError(f"{WHERE}: {name} needs either `nodes` or `switches`, and nothing else; it is {value!r}")
    members = {key: _members(name, key, value[key]) for key in value}
    return Switch(str(name), members.get("nodes", ()), members.get("switches", ()))


def _members(name: str, key: str, value: object) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, (list, tuple)) or not texts:
        raise SlurmError(f"{WHERE}: `{key}` of {name} must be a list of names, or a text such as gpu[01-08]")
    # Names of switches may hold what names of hosts may not, so only what is a list is read as one.
    parts = (expand_hosts(str(text)) if re.search(r"[\[,\s]", str(text)) else [str(text)] for text in texts)
    return tuple(member for part in parts for member in part)


def _check_nodes(topology: Topology, hosts: Sequence[str]) -> None:
    """Each node hangs on exactly one switch."""
    places: dict[str, list[str]] = {}
    for switch in topology.switches:
        for node in switch.nodes:
            places.setdefault(node, []).append(switch.name)
    unknown = sorted(set(places) - set(hosts))
    if unknown:
        raise SlurmError(f"{WHERE} names {compress(unknown)}, which slurm_nodes does not")
    twice = sorted(node for node, switches in places.items() if len(switches) > 1)
    if twice:
        raise SlurmError(f"{WHERE}: {compress(twice)} hangs on more than one switch ({', '.join(places[twice[0]])})")
    left = [host for host in hosts if host not in places]
    if left:
        raise SlurmError(f"{WHERE} leaves out {compress(left)}, which could then never share a job with another node")


def _check_blocks(topology: Topology) -> None:
    sizes = topology.block_sizes
    above = [switch.name for switch in topology.switches if switch.switches]
    if above:
        raise SlurmError(f"{WHERE}: with slurm_topology_block_sizes every group holds nodes; {above[0]} holds switches")
    for small, large in zip((sizes[0], *sizes), sizes):
        ratio, rest = divmod(large, small) if small > 0 else (0, 1)
        if rest or ratio & (ratio - 1):
            raise SlurmError(
                f"slurm_topology_block_sizes {list(sizes)}: each must be the one before times a power of two"
            )
    for switch in topology.switches:
        if len(switch.nodes) < sizes[0]:
            raise SlurmError(
                f"{WHERE}: block {switch.name} has {len(switch.nodes)} nodes, fewer than the base block size {sizes[0]}"
            )


def _check_tree(topology: Topology) -> None:
    """One root from which every switch is reached once."""
    names = {switch.name: switch for switch in topology.switches}
    below = [child for switch in topology.switches for child in switch.switches]
    unknown = sorted(set(below) - set(names))
    if unknown:
        raise SlurmError(f"{WHERE} hangs {', '.join(unknown)} below a switch, but does not describe it")
    twice = sorted({child for child in below if below.count(child) > 1})
    if twice:
        raise SlurmError(f"{WHERE}: switch {twice[0]} hangs below more than one switch")
    roots = [name for name in names if name not in below]
    if len(roots) > 1:
        raise SlurmError(
            f"{WHERE}: {', '.join(roots)} have no switch above them, so their nodes could never share a job; "
            "add one, such as `spine: {switches: [" + ", ".join(roots) + "]}`"
        )
    reached, queue = set(), list(roots)
    while queue:
        name = queue.pop()
        reached.add(name)
        queue += names[name].switches
    circle = sorted(set(names) - reached)
    if circle:
        raise SlurmError(f"{WHERE}: {', '.join(circle)} hang in a circle")


def topology_from_networks(hosts: Sequence[str], documents: Sequence[NodeDocument]) -> Topology | None:
    """Return leaf groups by the IP networks of the RDMA ports, below one root; None if all nodes are in the same ones.

    Raises:
        SlurmError: if a node's document shows no network of an RDMA port.
    """
    by_host = {document.host: document for document in documents}
    groups: dict[tuple[str, ...], list[str]] = {}
    for host in hosts:
        networks = rdma_networks(by_host[host])
        if not networks:
            raise SlurmError(
                f"slurm_topology_from_networks: the document of {host} has no RDMA port with an IP network; "
                "describe the switches in slurm_topology"
            )
        groups.setdefault(networks, []).append(host)
    if len(groups) < 2:
        return None
    leafs = [Switch(_leaf_name(networks[0]), tuple(nodes)) for networks, nodes in sorted(groups.items())]
    names = [leaf.name for leaf in leafs]
    if len(set(names)) < len(names):
        raise SlurmError(
            "slurm_topology_from_networks: groups of nodes share some networks and not others; describe the switches "
            "in slurm_topology"
        )
    return Topology((*leafs, Switch("fabric", switches=tuple(names))))


def rdma_networks(document: NodeDocument) -> tuple[str, ...]:
    """Return the IP networks of the interfaces above RDMA ports, sorted."""
    above = {port.netdev for nic in document.nics for port in nic.ports if port.netdev}
    networks = {
        ipaddress.ip_interface(address).network
        for interface in document.interfaces
        if interface.name in above
        for address in interface.addresses
    }
    return tuple(str(net) for net in sorted(networks, key=lambda net: (net.version, net)) if not net.is_link_local)


def _leaf_name(network: str) -> str:
    """Return a name that stays the same when nodes come and go: that of the group's first network."""
    return "net-" + "".join(letter if letter.isalnum() else "-" for letter in network)


def topology_files(topology: Topology | None, version: Version) -> dict[str, str]:
    """Return both files by name, without our marker; an empty text means that the file must not be there.

    Raises:
        SlurmError: if this Slurm has no blocks.
    """
    files = {CONF: "", YAML: ""}
    if topology is None:
        return files
    if topology.block_sizes and version is not None and version < TOPOLOGY_BLOCK:
        raise SlurmError(
            f"slurm_topology_block_sizes needs Slurm {version_text(TOPOLOGY_BLOCK)}; this is {version_text(version)}"
        )
    yaml = version is not None and version >= TOPOLOGY_YAML
    files[YAML if yaml else CONF] = _yaml(topology) if yaml else _conf(topology)
    return files


def topology_plugin(topology: Topology | None, version: Version) -> str:
    """Return the value of TopologyPlugin; empty where topology.yaml says it, or there is nothing to say."""
    if topology is None or (version is not None and version >= TOPOLOGY_YAML):
        return ""
    return "topology/block" if topology.block_sizes else "topology/tree"


def _conf(topology: Topology) -> str:
    kind = "BlockName" if topology.block_sizes else "SwitchName"
    lines = [f"{kind}={switch.name} {_below(switch)}" for switch in topology.switches]
    if topology.block_sizes:
        lines.append(f"BlockSizes={','.join(map(str, topology.block_sizes))}")
    return "\n".join(lines) + "\n"


def _below(switch: Switch) -> str:
    return f"Nodes={compress(switch.nodes)}" if switch.nodes else f"Switches={compress(switch.switches)}"


def _yaml(topology: Topology) -> str:
    kind, group, entry = ("block", "blocks", "block") if topology.block_sizes else ("tree", "switches", "switch")
    lines = ["- topology: default", "  cluster_default: true", f"  {kind}:"]
    if topology.block_sizes:
        lines += ["    block_sizes:", *(f"      - {size}" for size in topology.block_sizes)]
    lines.append(f"    {group}:")
    for switch in topology.switches:
        below = f"nodes: {_quoted(switch.nodes)}" if switch.nodes else f"children: {_quoted(switch.switches)}"
        lines += [f'      - {entry}: "{switch.name}"', f"        {below}"]
    return "\n".join(lines) + "\n"


def _quoted(names: Sequence[str]) -> str:
    return f'"{compress(names)}"'
