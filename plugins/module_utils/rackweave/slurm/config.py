"""slurm.conf, gres.conf and cgroup.conf as texts, from node documents and the settings of a site.

This is the only writer of these files; nothing edits them afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..hardware.node import NodeDocument
from .hardware import GpuGroup, NodeShape, configured_memory_mib, node_shape, real_memory_mib
from .hostlist import compress
from .munge import SlurmError

MARKER = "# Written by Rackweave from node documents; a change made here is lost at the next run."
SITE_PARAMETERS: Mapping[str, str] = {
    "AuthType": "auth/munge",
    "SlurmUser": "slurm",
    "StateSaveLocation": "/var/lib/slurm/slurmctld",
    "SlurmdSpoolDir": "/var/lib/slurm/slurmd",
    "SlurmctldLogFile": "/var/log/slurm/slurmctld.log",
    "SlurmdLogFile": "/var/log/slurm/slurmd.log",
    # Nodes fetch the files from the controller, so that a node that was down during a change cannot keep an old one.
    "SlurmctldParameters": "enable_configless",
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
}
# Key: the first version that refuses it (slurmd ends with a fatal error).
REMOVED_CGROUP_KEYS = {"CgroupAutomount": (23, 11), "CgroupReleaseAgentDir": (20, 2)}
OWNED_KEYS = ("ClusterName", "SlurmctldHost", "NodeName", "PartitionName", "GresTypes")
_KEY = re.compile(r"^[A-Za-z][A-Za-z0-9_]*$")


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
        version: Slurm's version as a pair such as ``(22, 5)``; None if it is not known.
    """

    cluster_name: str
    controller: str
    hosts: tuple[str, ...]
    parameters: Mapping[str, object] = field(default_factory=dict)
    cgroup: Mapping[str, object] = field(default_factory=dict)
    partitions: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    memory_margin_percent: float = 2.0
    version: tuple[int, int] | None = None


@dataclass(frozen=True)
class NodeLine:
    """Nodes of one shape, and the least memory that any of them reports."""

    hosts: tuple[str, ...]
    shape: NodeShape
    memory_mib: int


def slurm_files(site: SlurmSite, documents: Sequence[NodeDocument]) -> dict[str, str]:
    """Return the texts of slurm.conf, gres.conf and cgroup.conf by file name.

    Raises:
        SlurmError: if a host has no document, a document is an example, or a key cannot be set.
    """
    lines = node_lines(site, documents)
    return {
        "slurm.conf": _slurm_conf(site, lines),
        "gres.conf": _gres_conf(lines),
        "cgroup.conf": _cgroup_conf(site),
    }


def node_lines(site: SlurmSite, documents: Sequence[NodeDocument]) -> list[NodeLine]:
    """Group the hosts of the site by the shape their documents show."""
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
    groups: dict[NodeShape, list[str]] = {}
    for host in site.hosts:
        groups.setdefault(node_shape(by_host[host]), []).append(host)
    return [
        NodeLine(tuple(hosts), shape, min(real_memory_mib(by_host[host]) for host in hosts))
        for shape, hosts in groups.items()
    ]


def _slurm_conf(site: SlurmSite, lines: Sequence[NodeLine]) -> str:
    parameters = _parameters(site)
    head = [MARKER, f"ClusterName={site.cluster_name}", f"SlurmctldHost={site.controller}"]
    if any(line.shape.gpus for line in lines):
        head.append("GresTypes=gpu")
    body = [f"{key}={value}" for key, value in sorted(parameters.items())]
    nodes = [_node_line(line, site.memory_margin_percent) for line in lines]
    return "\n".join([*head, *body, *nodes, *_partitions(site)]) + "\n"


def _parameters(site: SlurmSite) -> dict[str, str]:
    merged: dict[str, str] = dict(SITE_PARAMETERS)
    names = {key.lower(): key for key in merged}
    for key, value in site.parameters.items():
        if not _KEY.match(key):
            raise SlurmError(f"slurm_parameters: {key!r} is not a key of slurm.conf")
        if key.lower() in {owned.lower() for owned in OWNED_KEYS}:
            raise SlurmError(
                f"slurm_parameters must not set {key}: it follows from the inventory and the node documents"
            )
        text = _value("slurm_parameters", key, value)
        known = names.get(key.lower(), key)  # slurm.conf does not care about case, and a key given twice is an error
        names[key.lower()] = known
        merged[known] = text
    return {key: value for key, value in merged.items() if value != ""}


def _value(where: str, key: str, value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ",".join(str(item) for item in value)
    text = str(value)
    if "\n" in text:
        raise SlurmError(f"{where}: the value of {key} has more than one line")
    return text


def _node_line(line: NodeLine, margin_percent: float) -> str:
    shape = line.shape
    words = [
        f"NodeName={compress(line.hosts)}",
        f"CPUs={shape.cpus} Sockets={shape.sockets} CoresPerSocket={shape.cores_per_socket}",
        f"ThreadsPerCore={shape.threads_per_core} RealMemory={configured_memory_mib(line.memory_mib, margin_percent)}",
    ]
    if shape.gpus:
        words.append(f"Gres={_gres(shape.gpus)}")
    return " ".join([*words, "State=UNKNOWN"])


def _gres(groups: Sequence[GpuGroup]) -> str:
    counts: dict[str, int] = {}
    for group in groups:
        counts[group.type] = counts.get(group.type, 0) + len(group.files)
    return ",".join(f"gpu:{kind}:{count}" if kind else f"gpu:{count}" for kind, count in counts.items())


def _partitions(site: SlurmSite) -> list[str]:
    lines = []
    for index, (name, keys) in enumerate(site.partitions.items()):
        merged = {
            "Nodes": "ALL",
            "Default": "YES" if index == 0 else "NO",
            "MaxTime": "INFINITE",
            "State": "UP",
            **keys,
        }
        words = (f"{key}={_value('slurm_partitions', key, value)}" for key, value in merged.items())
        lines.append(f"PartitionName={name} {' '.join(words)}")
    return lines


def _gres_conf(lines: Sequence[NodeLine]) -> str:
    """Return gres.conf with explicit files: what Slurm is told is what the documents saw, and both can be compared."""
    text = [MARKER, "AutoDetect=off"]
    for line in lines:
        for group in line.shape.gpus:
            kind = f" Type={group.type}" if group.type else ""
            cores = f" Cores={group.cores}" if group.cores else ""
            text.append(f"NodeName={compress(line.hosts)} Name=gpu{kind} File={compress(group.files)}{cores}")
    return "\n".join(text) + "\n"


def _cgroup_conf(site: SlurmSite) -> str:
    text = [MARKER]
    for key, value in site.cgroup.items():
        removed = REMOVED_CGROUP_KEYS.get(key)
        if removed and site.version is not None and site.version >= removed:
            raise SlurmError(
                f"slurm_cgroup sets {key}, which Slurm {site.version[0]}.{site.version[1]:02d} refuses to start with "
                f"(removed in {removed[0]}.{removed[1]:02d})"
            )
        text.append(f"{key}={_value('slurm_cgroup', key, value)}")
    return "\n".join(text) + "\n"


def version_pair(text: str) -> tuple[int, int] | None:
    """Return ``(22, 5)`` for ``22.05.8``, ``slurm-wlm 22.05.8`` or a package version; None for an empty text."""
    match = re.search(r"(\d+)\.(\d+)", text)
    return (int(match.group(1)), int(match.group(2))) if match else None
