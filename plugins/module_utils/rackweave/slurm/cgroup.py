"""Whether slurmd can use the cgroups of a node: what its plugin needs, against what is there.

Sources: cgroup.conf(5) and the page "Control Group v2 plugin" of Slurm 22.05 to 24.11.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .config import SITE_PARAMETERS
from .settings import merge

_USERS = ("ProctrackType", "TaskPlugin", "JobAcctGatherType")
_VERSION_2 = "cgroup2fs"  # what `stat --file-system --format=%T /sys/fs/cgroup` says of the unified hierarchy
_BUS = "/run/dbus/system_bus_socket"


@dataclass(frozen=True)
class CgroupFacts:
    """What a node has: the kind of file system at /sys/fs/cgroup, Slurm's cgroup plugins, and the bus of systemd."""

    hierarchy: str
    plugins: tuple[str, ...]
    bus: bool


def parse_cgroup_facts(text: str) -> CgroupFacts:
    """Read the file system's kind on the first line, then the paths that exist, one a line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    names = tuple(line.rsplit("/", 1)[-1] for line in lines[1:] if line.endswith(".so"))
    return CgroupFacts(lines[0] if lines else "", names, _BUS in lines[1:])


def cgroup_complaint(
    facts: CgroupFacts, parameters: Mapping[str, object], settings: Mapping[str, object]
) -> str | None:
    """Return why slurmd would not start with its cgroup plugin on this node, and the way out; None if it would.

    Args:
        facts: of the node, with Slurm installed.
        parameters: ``slurm_parameters``, over our own defaults.
        settings: ``slurm_cgroup``.
    """
    merged = merge("slurm_parameters", SITE_PARAMETERS, parameters)
    users = [f"{key}={merged[key]}" for key in _USERS if "cgroup" in merged.get(key, "")]
    cgroup = {key.lower(): value for key, value in merge("slurm_cgroup", {}, settings).items()}
    plugin = cgroup.get("cgroupplugin", "autodetect").lower()
    if not users or plugin == "disabled":
        return None
    unified = facts.hierarchy == _VERSION_2
    if plugin == "autodetect":
        plugin = "cgroup/v2" if unified else "cgroup/v1"
    file = f"{plugin.replace('/', '_')}.so"
    why = ""
    if file not in facts.plugins:
        why = f"this build of Slurm has no {file} (it has {', '.join(sorted(facts.plugins)) or 'none'})"
    elif plugin == "cgroup/v2" and not unified:
        why = f"/sys/fs/cgroup is {facts.hierarchy or 'not mounted'}, not the one hierarchy of version 2 (cgroup2fs)"
    elif plugin == "cgroup/v2" and not facts.bus and cgroup.get("ignoresystemd", "no").lower() not in ("yes", "true"):
        why = f"{plugin} asks systemd for its scope by D-Bus, and {_BUS} is not there"
    if not why:
        return None
    return (
        f"slurmd would not start with {plugin} ({', '.join(users)}): {why}. Install what is missing (dbus; a Slurm "
        "built with its cgroup plugins), or boot with one hierarchy. In a container for tests only: IgnoreSystemd: "
        "true or CgroupPlugin: cgroup/v1 in slurm_cgroup, with proctrack/linuxproc and task/none in slurm_parameters"
    )
