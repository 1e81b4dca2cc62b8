"""What the acceptance job is to do, as one JSON object for its programs, and the options of its submission."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import FabricError
from ..fabric.request import NodeEnvironment
from ..hardware.node import NodeDocument
from .pairs import pair_rounds

MEASUREMENT = 1
"""Raised when what is measured changes, so that earlier verdicts no longer stand in for a new one."""


@dataclass(frozen=True)
class Settings:
    """How much is measured; sizes in bytes, times in seconds.

    `ranks` on each node; 0 takes one for each GPU. `message_bytes`: sizes of the all-reduce, the largest is judged.
    """

    backend: str
    ranks: int
    python: str
    storage_path: str
    storage_bytes: int
    message_bytes: tuple[int, ...]
    calls: int
    partners: int
    cpu_s: float
    group_timeout_s: int
    dcgm_level: int
    dcgm_timeout_s: int

    def __post_init__(self) -> None:
        if not 0 <= self.dcgm_level <= 4:
            raise FabricError(f"acceptance_dcgm_level={self.dcgm_level} must be 0 (off) to 4")
        if self.ranks < 0 or self.partners < 1 or self.calls < 10 or self.storage_bytes < 2**20:
            raise FabricError(
                f"acceptance: ranks={self.ranks} (0 or more), partners={self.partners} (1 or more), calls={self.calls} "
                f"(10 or more) and storage_bytes={self.storage_bytes} (1 MiB or more) do not make a measurement"
            )
        if not self.message_bytes or min(self.message_bytes) < 4:
            raise FabricError(f"acceptance_message_bytes={list(self.message_bytes)} needs sizes of 4 bytes or more")


def ranks_of(settings: Settings, documents: Sequence[NodeDocument]) -> int:
    """Return the ranks on each node: as asked, else one for each GPU of the node that has the fewest."""
    if settings.ranks:
        return settings.ranks
    return max(1, min((len(document.gpus) for document in documents), default=1))


def build_schedule(
    hosts: Sequence[str],
    neighbours: Sequence[str],
    documents: Mapping[str, NodeDocument],
    environments: Mapping[str, NodeEnvironment],
    settings: Settings,
) -> dict[str, object]:
    """Return ``schedule.json`` but for the address of the echo, which only the submit host knows."""
    everyone = [*hosts, *neighbours]
    here = [documents[host] for host in everyone]
    return {
        "hosts": everyone,
        "rounds": pair_rounds(hosts, neighbours, settings.partners),
        "backend": settings.backend,
        "ranks": ranks_of(settings, here),
        "python": settings.python,
        "storage": {"path": settings.storage_path, "bytes": settings.storage_bytes},
        "message_bytes": list(settings.message_bytes),
        "calls": settings.calls,
        "cpu_s": settings.cpu_s,
        "group_timeout_s": settings.group_timeout_s,
        "dcgm": {"level": settings.dcgm_level, "timeout_s": settings.dcgm_timeout_s},
        "dmabuf": all(document.gpudirect.dmabuf for document in here),
        "bdfs": {document.host: _addresses(document) for document in here},
        "rails": {host: _rails(environments[host]) for host in everyone},
    }


def _addresses(document: NodeDocument) -> list[str]:
    devices = [*(gpu.bdf for gpu in document.gpus), *(nic.bdf for nic in document.nics if not nic.virtual_function)]
    return [bdf for bdf in devices if bdf]


def _rails(environment: NodeEnvironment) -> list[dict[str, object]]:
    """Return one entry for each rail: its first port, its GPU, and the GID row and class that NCCL would use."""
    gids = {(it.device, it.port): it.index for it in environment.gids}
    traffic_class = environment.variables.get("NCCL_IB_TC", "")
    return [
        {
            "device": rail.members[0].device,
            "port": rail.members[0].port,
            "gpu": rail.gpus[0] if rail.gpus else None,
            "gid_index": gids.get((rail.members[0].device, rail.members[0].port)),
            "traffic_class": int(traffic_class) if traffic_class.isdigit() else None,
        }
        for rail in environment.rails.rails
    ]


def stages_of(schedule: Mapping[str, object], settings: Settings, documents: Sequence[NodeDocument]) -> list[str]:
    """Return the steps of the job: what none of its nodes has the hardware for is left out."""
    stages = ["self", "write", "read", "collective"]
    rails = schedule["rails"]
    if isinstance(rails, Mapping) and any(rails.values()) and schedule["rounds"]:
        stages.append("rails")
    if settings.dcgm_level and any(gpu.bdf for document in documents for gpu in document.gpus):
        stages.append("dcgm")
    return stages


def inputs_digest(document: NodeDocument, settings: Settings, more: Mapping[str, object]) -> str:
    """Return a digest of what a verdict on a node rests on: its document, and what is measured with which bars."""
    content = {
        "measurement": MEASUREMENT,
        "document": document.without_volatile().as_dict(),
        "settings": repr(settings),
        "more": more,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
