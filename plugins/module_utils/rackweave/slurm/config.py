"""slurm.conf, gres.conf, cgroup.conf and the topology file as texts, from node documents and the settings of a site.

This is the only writer of these files; nothing edits them afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..errors import ProvisionError
from ..hardware.node import NodeDocument
from ..provision.inventory import expand_hosts
from .hardware import GpuGroup, NodeShape, configured_memory_mib, memory_classes, node_shape, real_memory_mib
from .hostlist import compress
from .munge import SlurmError
from .settings import check_name, check_word, merge
from .topology import Topology, read_topology, topology_files, topology_from_networks, topology_plugin
from .versions import Version, check_cgroup, check_parameters

MARKER = "# Written by Rackweave from node documents; a change made here is lost at the next run."
CONFIGLESS = "enable_configless"
SITE_PARAMETERS: Mapping[str, str] = {
    "AuthType": "auth/munge",
    "SlurmUser": "slurm",
    "StateSaveLocation": "/var/lib/slurm/slurmctld",
    "SlurmdSpoolDir": "/var/lib/slurm/slurmd",
    "SlurmctldLogFile": "/var/log/slurm/slurmctld.log",
    "SlurmdLogFile": "/var/log/slurm/slurmd.log",
    # Nodes fetch the files from the controller, so that a node that was down during a change cannot keep an old one.
    "SlurmctldParameters": CONFIGLESS,
    "SelectType": "select/cons_tres",
    "SelectTypeParameters": "CR_Core",
    "ProctrackType": "proctrack/cgroup",
    "TaskPlugin": "task/cgroup,task/affinity",
    "MpiDefault": "none",
    "ReturnToService": "1",
    "JobCompType": "jobcomp/filetxt",
    "JobCompLoc": "/var/log/slurm/jobcomp.log",
    "AccountingStorageType": "accounting_storage/none",
    # Otherwise the submit host's limit of locked memory reaches the job and RDMA registration fails.
    "PropagateResourceLimitsExcept": "MEMLOCK",
    # The last resort behind the limits that the scripts keep themselves; Slurm's own default is to wait for ever.
    "PrologEpilogTimeout": "120",
}
# Programs that must be on every node before slurm.conf names them.
HOOK_KEYS = ("Prolog", "Epilog", "HealthCheckProgram")
OWNED_KEYS = ("ClusterName", "SlurmctldHost", "NodeName", "PartitionName", "GresTypes", "Include")
LONGEST_CLUSTER_NAME = 40  # slurm.conf(5)


class MissingDocumentsError(SlurmError):
    """Hosts without a node document; in check mode of a first run they could not have been written yet."""


@dataclass(frozen=True)
class SlurmSite:
    """What the inventory says about Slurm.

    Args:
        cluster_name: ClusterName.
        controller: host name of slurmctld.
        hosts: every node that shall be in the file, reachable in this run or not.
        parameters: further slurm.conf keys; they win over :data:`SITE_PARAMETERS`. An empty value removes the key.
        cgroup: keys of cgroup.conf.
        partitions: name to further keys of the partition line.
        memory_margin_percent: how far RealMemory stays below what the nodes report.
        mem_spec_limit_mib: memory kept for the system, not for jobs; 0 for none.
        base: keys that roles add, below `parameters`: programs around jobs, accounting.
        topology: groups of :func:`.topology.read_topology`; empty for none.
        topology_block_sizes: block sizes in nodes; empty for a tree.
        topology_from_networks: whether groups are taken from the documents where `topology` is empty.
        version: Slurm's version as a pair such as ``(22, 5)``; None if it is not known.
    """

    cluster_name: str
    controller: str
    hosts: tuple[str, ...]
    parameters: Mapping[str, object] = field(default_factory=dict)
    cgroup: Mapping[str, object] = field(default_factory=dict)
    partitions: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    memory_margin_percent: float = 2.0
    mem_spec_limit_mib: int = 0
    base: Mapping[str, object] = field(default_factory=dict)
    topology: Mapping[str, object] = field(default_factory=dict)
    topology_block_sizes: tuple[int, ...] = ()
    topology_from_networks: bool = False
    version: Version = None


@dataclass(frozen=True)
class NodeLine:
    """Nodes of one shape and about the same memory, and the least memory that any of them reports."""

    hosts: tuple[str, ...]
    shape: NodeShape
    memory_mib: int


def slurm_files(site: SlurmSite, documents: Sequence[NodeDocument]) -> dict[str, str]:
    """Return the texts by file name; an empty one means that the file must not be there.

    Raises:
        SlurmError: if a host has no document, a document is an example, or a key cannot be set.
    """
    _check_names(site)
    lines = node_lines(site, documents)
    topology = _topology(site, documents)
    texts = {
        "slurm.conf": _slurm_conf(site, lines, topology),
        "gres.conf": _gres_conf(lines),
        "cgroup.conf": _cgroup_conf(site),
        **topology_files(topology, site.version),
    }
    return {name: f"{MARKER}\n{text}" if text or name == "cgroup.conf" else "" for name, text in texts.items()}


def check_site(site: SlurmSite) -> None:
    """Find what the inventory alone has wrong, before there is any document.

    Raises:
        SlurmError: for the first name, key, partition or switch that Slurm would not take.
    """
    _check_names(site)
    _parameters(site, read_topology(site.topology, site.hosts, site.topology_block_sizes), gpus=False)
    _partitions(site)
    _cgroup_conf(site)


def _check_names(site: SlurmSite) -> None:
    check_name("slurm_cluster_name", site.cluster_name)
    if len(site.cluster_name) > LONGEST_CLUSTER_NAME:
        raise SlurmError(
            f"slurm_cluster_name has {len(site.cluster_name)} characters; Slurm takes {LONGEST_CLUSTER_NAME}"
        )
    check_name("slurm_controller_host", site.controller)
    for host in site.hosts:
        check_name("host", host)
    twice = (
        sorted({host for host in site.hosts if site.hosts.count(host) > 1})
        if len(set(site.hosts)) < len(site.hosts)
        else []
    )
    if twice:
        raise SlurmError(f"slurm_nodes names {compress(twice)} more than once")


def node_lines(site: SlurmSite, documents: Sequence[NodeDocument]) -> list[NodeLine]:
    """Group the hosts of the site by the shape and the memory that their documents show."""
    by_host = {document.host: document for document in documents}
    missing = [host for host in site.hosts if host not in by_host]
    if missing:
        raise MissingDocumentsError(
            f"no node document of {compress(missing)}: a partial slurm.conf is never written; run provision once with "
            "these hosts, or take them out of the inventory"
        )
    examples = [host for host in site.hosts if by_host[host].origin == "example"]
    if examples:
        raise SlurmError(f"the documents of {compress(examples)} are examples: Slurm is configured from real ones only")
    groups: dict[NodeShape, list[tuple[str, int]]] = {}
    for host in site.hosts:
        groups.setdefault(node_shape(by_host[host]), []).append((host, real_memory_mib(by_host[host])))
    return [
        NodeLine(hosts, shape, memory) for shape, members in groups.items() for hosts, memory in memory_classes(members)
    ]


def _topology(site: SlurmSite, documents: Sequence[NodeDocument]) -> Topology | None:
    topology = read_topology(site.topology, site.hosts, site.topology_block_sizes)
    if topology is None and site.topology_from_networks:
        return topology_from_networks(site.hosts, documents)
    return topology


def _slurm_conf(site: SlurmSite, lines: Sequence[NodeLine], topology: Topology | None) -> str:
    gpus = any(line.shape.gpus for line in lines)
    parameters = _parameters(site, topology, gpus)
    head = [f"ClusterName={site.cluster_name}", f"SlurmctldHost={site.controller}"]
    if gpus:
        head.append("GresTypes=gpu")
    body = [f"{key}={value}" for key, value in sorted(parameters.items())]
    nodes = [_node_line(line, site, parameters) for line in lines]
    return "\n".join([*head, *body, *nodes, *_partitions(site)]) + "\n"


def _parameters(site: SlurmSite, topology: Topology | None, gpus: bool) -> dict[str, str]:
    owned = {key.lower() for key in OWNED_KEYS}
    for key in site.parameters:
        if str(key).lower() in owned:
            raise SlurmError(
                f"slurm_parameters must not set {key}: it follows from the inventory and the node documents"
            )
    base = merge("slurm", SITE_PARAMETERS, {**site.base, "TopologyPlugin": topology_plugin(topology, site.version)})
    parameters = merge("slurm_parameters", base, site.parameters)
    # Whatever else the site sets here: without this word no node would get its files any more.
    words = [word.strip() for word in parameters.get("SlurmctldParameters", "").split(",") if word.strip()]
    if CONFIGLESS not in words:
        parameters["SlurmctldParameters"] = ",".join([*words, CONFIGLESS])
    check_parameters(parameters, site.version)
    if gpus and parameters.get("AccountingStorageType") == "accounting_storage/slurmdbd":
        parameters.setdefault("AccountingStorageTRES", "gres/gpu")
    return parameters


def _node_line(line: NodeLine, site: SlurmSite, parameters: Mapping[str, str]) -> str:
    processors = line.shape.processors
    memory = configured_memory_mib(line.memory_mib, site.memory_margin_percent)
    words = [
        f"NodeName={compress(line.hosts)}",
        f"CPUs={processors.cpus} Sockets={processors.sockets} CoresPerSocket={processors.cores_per_socket}",
        f"ThreadsPerCore={processors.threads_per_core} RealMemory={memory}",
    ]
    if site.mem_spec_limit_mib:
        words.append(f"MemSpecLimit={_mem_spec_limit(line, site, memory, parameters)}")
    if line.shape.gpus:
        words.append(f"Gres={_gres(line.shape.gpus)}")
    return " ".join([*words, "State=UNKNOWN"])


def _mem_spec_limit(line: NodeLine, site: SlurmSite, memory_mib: int, parameters: Mapping[str, str]) -> int:
    """Return MemSpecLimit where it has an effect: slurm.conf(5) wants memory to be a consumable resource for it."""
    limit, consumable = site.mem_spec_limit_mib, parameters.get("SelectTypeParameters", "")
    if "memory" not in consumable.lower():
        raise SlurmError(
            f"slurm_mem_spec_limit_mib={limit} has no effect with SelectTypeParameters={consumable}: memory must be a "
            "consumable resource, as with slurm_parameters: {SelectTypeParameters: CR_Core_Memory}"
        )
    if not 0 < limit < memory_mib:
        raise SlurmError(
            f"slurm_mem_spec_limit_mib={limit} must be above 0 and below RealMemory={memory_mib} of "
            f"{compress(line.hosts)}"
        )
    return limit


def _gres(groups: Sequence[GpuGroup]) -> str:
    counts: dict[str, int] = {}
    for group in groups:
        counts[group.type] = counts.get(group.type, 0) + len(group.files)
    return ",".join(f"gpu:{kind}:{count}" if kind else f"gpu:{count}" for kind, count in counts.items())


def _partitions(site: SlurmSite) -> list[str]:
    for name, keys in site.partitions.items():
        if keys is not None and not isinstance(keys, Mapping):
            raise SlurmError(
                f"slurm_partitions: {name} must be a mapping such as {{MaxTime: 2-00:00:00}}, or empty, not {keys!r}"
            )
    given = {
        name: {str(key).lower(): value for key, value in (keys or {}).items()} for name, keys in site.partitions.items()
    }
    chosen = any("default" in keys for keys in given.values())
    lines = []
    for index, (name, keys) in enumerate(site.partitions.items()):
        check_name("slurm_partitions: partition", str(name))
        default = {} if chosen else {"Default": "YES" if index == 0 else "NO"}
        merged = merge(
            "slurm_partitions", {"Nodes": "ALL", **default, "MaxTime": "INFINITE", "State": "UP"}, keys or {}
        )
        merged["Nodes"] = _partition_nodes(site, name, merged.get("Nodes", "ALL"))
        words = (f"{key}={check_word('slurm_partitions', key, value)}" for key, value in merged.items())
        lines.append(f"PartitionName={name} {' '.join(words)}")
    return lines


def _partition_nodes(site: SlurmSite, name: str, text: str) -> str:
    """Return the nodes of a partition as a host list; one that slurm.conf does not define would end slurmctld."""
    if text.upper() == "ALL":
        return "ALL"
    try:
        nodes = expand_hosts(text)
    except ProvisionError as error:
        raise SlurmError(f"slurm_partitions: Nodes of {name}: {error}") from error
    unknown = sorted(set(nodes) - set(site.hosts))
    if unknown:
        raise SlurmError(f"slurm_partitions: {name} names {compress(unknown)}, which slurm_nodes does not")
    return compress(nodes)


def _gres_conf(lines: Sequence[NodeLine]) -> str:
    """Return gres.conf with explicit files: what Slurm is told is what the documents saw, and both can be compared."""
    groups: dict[tuple[GpuGroup, ...], list[str]] = {}
    for line in lines:
        if line.shape.gpus:
            groups.setdefault(line.shape.gpus, []).extend(line.hosts)
    text = ["AutoDetect=off"]
    for gpus, hosts in groups.items():
        for group in gpus:
            kind = f" Type={group.type}" if group.type else ""
            cores = f" Cores={group.cores}" if group.cores else ""
            text.append(f"NodeName={compress(hosts)} Name=gpu{kind} File={compress(group.files)}{cores}")
    return "\n".join(text) + "\n"


def _cgroup_conf(site: SlurmSite) -> str:
    settings = merge("slurm_cgroup", {}, site.cgroup)
    check_cgroup(settings, site.version)
    return "".join(f"{key}={value}\n" for key, value in settings.items())
