"""What a rank sees inside its own container and cgroup, against what was planned for its host.

A value can be shadowed on its way: by the job's environment, the image's, or a file that NCCL reads itself. NCCL looks
into the process environment first, then the user's file (``NCCL_CONF_FILE``, else ``~/.nccl.conf``), then
``/etc/nccl.conf``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from .findings import Finding
from .hca_list import parse_hca_list

PLANNED = "the host's file"
UNKNOWN_ORIGIN = "the program itself, or something started before it"
# What these set is known and means nothing else: the launcher's own file names, and a default of torchrun.
OWN_ORIGINS = ("launch.sh", "torchrun")
TORCHRUN = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}
PREFIXES = ("NCCL_", "TORCH_NCCL_", "TORCH_FR_", "GLOO_")


@dataclass(frozen=True)
class Traced:
    """One variable as a rank has it: its value, where that comes from, and the value that was planned."""

    name: str
    value: str | None
    origin: str
    planned: str | None

    @property
    def shadowed(self) -> bool:
        return self.planned is not None and self.value != self.planned

    def as_dict(self) -> dict[str, object]:
        return {**asdict(self), "shadowed": self.shadowed}


def trace_values(
    planned: Mapping[str, str],
    seen: Mapping[str, str],
    layers: Mapping[str, Mapping[str, str]],
    files: Mapping[str, Mapping[str, str]],
) -> tuple[Traced, ...]:
    """Return every communication variable that the rank has or should have.

    Args:
        planned: the host's file.
        seen: the process environment of the rank.
        layers: environments before ours was exported (``job environment``, ``image``), nearest first.
        files: what NCCL reads itself, in its order (user file, ``/etc/nccl.conf``).
    """
    names = set(planned) | {name for name in seen if name.startswith(PREFIXES)}
    for content in files.values():
        names |= {name for name in content if name.startswith(PREFIXES)}
    return tuple(_trace(name, planned, seen, layers, files) for name in sorted(names))


def _trace(
    name: str,
    planned: Mapping[str, str],
    seen: Mapping[str, str],
    layers: Mapping[str, Mapping[str, str]],
    files: Mapping[str, Mapping[str, str]],
) -> Traced:
    wanted = planned.get(name)
    if name in seen:
        value = seen[name]
        if value == wanted:
            return Traced(name, value, PLANNED, wanted)
        origin = next((layer for layer, content in layers.items() if content.get(name) == value), UNKNOWN_ORIGIN)
        return Traced(name, value, origin, wanted)
    for path, content in files.items():
        if name in content:
            return Traced(name, content[name], path, wanted)
    return Traced(name, None, "nowhere", wanted)


def shadow_findings(host: str, traced: Sequence[Traced]) -> list[Finding]:
    """Return a finding for every variable whose planned value did not arrive."""
    findings = []
    for it in traced:
        if it.shadowed:
            message = f"{it.name} was planned as {it.planned}, the rank has {it.value} from {it.origin}"
            findings.append(Finding("shadowed", host, message))
        elif it.planned is None and it.value is not None and it.origin not in OWN_ORIGINS:
            message = f"{it.name}={it.value} comes from {it.origin}; nothing was planned for it"
            findings.append(Finding("unplanned-variable", host, message))
    return findings


def device_findings(host: str, planned: Mapping[str, str], openable: Mapping[str, bool]) -> list[Finding]:
    """Compare the planned RDMA devices with those that the rank can open.

    Args:
        openable: RDMA device name to whether its verbs device could be opened inside the job.
    """
    text = planned.get("NCCL_IB_HCA")
    if text is None or planned.get("NCCL_IB_DISABLE") == "1":
        return []
    wanted = list(dict.fromkeys(entry.name for entry in parse_hca_list(text).entries))
    missing = [name for name in wanted if name not in openable]
    closed = [name for name in wanted if openable.get(name) is False]
    findings = []
    if missing:
        message = f"{len(missing)} of {len(wanted)} planned RDMA devices are not there: {', '.join(missing)}"
        findings.append(Finding("job-devices", host, f"{message} (mount /dev/infiniband into the container)"))
    if closed:
        message = f"{len(closed)} of {len(wanted)} planned RDMA devices cannot be opened: {', '.join(closed)}"
        findings.append(Finding("job-devices", host, f"{message} (device cgroup, or permissions)"))
    return findings


def limit_findings(host: str, rdma: bool, memlock_bytes: int | None, shm_bytes: int | None) -> list[Finding]:
    """Judge the limits that hold inside the job: those of a login session say nothing about it."""
    findings = []
    if rdma and memlock_bytes not in (None, -1):
        message = f"memlock inside the job is {memlock_bytes} bytes, not unlimited: NICs cannot register memory"
        findings.append(Finding("memlock", host, message))
    if rdma and shm_bytes is not None and shm_bytes < 16 << 30:
        message = f"/dev/shm inside the job has {shm_bytes} bytes; use the host's ipc namespace or a larger one"
        findings.append(Finding("shm", host, message))
    return findings
