"""From the old and the new text of Slurm's files to what must happen: nothing, a reconfigure, or a restart of whom."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .config import HOOK_KEYS, MARKER
from .munge import SlurmError
from .versions import RECONFIGURE_IS_RESTART, Version

# From the weakest to the strongest. Jobs live on through a restart of slurmctld; one of slurmd waits until its node is
# drained and idle.
ACTIONS = ("none", "reconfigure", "restart_controller", "restart")


def _lower(*keys: str) -> frozenset[str]:
    return frozenset(key.lower() for key in keys)


# slurm.conf(5) of 22.05.8, "A restart of slurmctld is required".
CONTROLLER_KEYS = _lower(
    "AccountingStorageEnforce", "AccountingStorageHost", "AccountingStoragePort", "AccountingStorageType",
    "JobCompType", "JobContainerType", "MaxJobCount", "PowerPlugin", "SchedulerParameters", "SchedulerType",
    "SelectTypeParameters", "SlurmctldParameters", "StateSaveLocation",
)  # fmt: skip
# The same page, "and the slurmd daemons"; and plugins that slurmd loads when it starts.
NODE_KEYS = _lower(
    "AuthInfo", "AuthType", "ClusterName", "CoreSpecPlugin", "CredType", "GresTypes", "JobAcctGatherType", "MpiDefault",
    "NodeName", "PluginDir", "ProctrackType", "SelectType", "SlurmctldHost", "SlurmctldPort", "SlurmdParameters",
    "SlurmdPort", "SlurmdSpoolDir", "SlurmdUser", "SlurmUser", "SwitchType", "TaskPlugin", "TopologyPlugin",
)  # fmt: skip
NODE_FILES = ("gres.conf", "cgroup.conf")
# From 23.11 on a reconfigure starts new daemons, which changes all but these: scontrol(1) of 24.11.5; and what an old
# daemon must let go of before a new one can take it.
ALWAYS_RESTART = _lower(
    "AuthInfo", "AuthType", "ClusterName", "CredType", "PluginDir", "SlurmctldHost", "SlurmctldPort", "SlurmdPort",
    "SlurmdSpoolDir", "SlurmdUser", "SlurmUser",
)  # fmt: skip
# slurm.conf(5): a change of these loses the records of all jobs, the running ones too.
JOB_LOSING_KEYS = _lower("SelectType", "StateSaveLocation", "SwitchType")


@dataclass(frozen=True)
class ConfigChange:
    """What changed and what it asks for: `action` is one of :data:`ACTIONS`."""

    files: tuple[str, ...]
    keys: tuple[str, ...]
    action: str


def config_change(old: Mapping[str, str], new: Mapping[str, str], version: Version = None) -> ConfigChange:
    """Compare the texts by file name; a file that was not there counts as empty."""
    files = tuple(sorted(name for name, text in new.items() if old.get(name, "") != text))
    if not files:
        return ConfigChange((), (), "none")
    keys = tuple(sorted(changed_keys(old.get("slurm.conf", ""), new.get("slurm.conf", ""))))
    return ConfigChange(files, keys, _action(files, {key.lower() for key in keys}, version))


def _action(files: Iterable[str], keys: set[str], version: Version) -> str:
    if version is not None and version >= RECONFIGURE_IS_RESTART:
        if keys & ALWAYS_RESTART:
            return "restart"
        return "restart_controller" if "statesavelocation" in keys else "reconfigure"
    if keys & NODE_KEYS or set(files) & set(NODE_FILES):
        return "restart"
    return "restart_controller" if keys & CONTROLLER_KEYS else "reconfigure"


def changed_keys(old: str, new: str) -> set[str]:
    """Return the first key of every line of slurm.conf that is in only one of the texts."""
    before, after = set(_lines(old)), set(_lines(new))
    return {line.split("=", 1)[0].strip() for line in before ^ after}


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def is_ours(text: str) -> bool:
    """Return whether a file was written by us: its first line says so."""
    return text.split("\n", 1)[0] == MARKER


def foreign_files(old: Mapping[str, str], new: Mapping[str, str]) -> tuple[str, ...]:
    """Return files that are there, are not ours, and would be replaced, or would make Slurm ignore ours."""
    foreign = {name for name, text in old.items() if text.strip() and not is_ours(text)}
    replaced = {name for name in foreign if new.get(name)}
    if "topology.yaml" in foreign and new.get("topology.conf"):
        replaced.add("topology.yaml")
    return tuple(sorted(replaced))


def with_left_alone(old: Mapping[str, str], new: Mapping[str, str], replaced: Iterable[str]) -> dict[str, str]:
    """Return the texts with files that are neither ours nor wanted as they are, but for those that are replaced."""
    return {
        name: old.get(name, "") if not text and name not in replaced and not is_ours(old.get(name, "")) else text
        for name, text in new.items()
    }


def settled(
    old: Mapping[str, str], new: Mapping[str, str], absent: Iterable[str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the texts for a run that leaves out some nodes, and the keys that wait for a run over all of them.

    A prolog, epilog or health program must be on every node before slurm.conf names it: where it is missing, a node
    fails its next job. So a run that does not reach all nodes adds none of them; what is there already stays.

    Args:
        old: the texts that are there.
        new: the wanted texts.
        absent: nodes of slurm.conf that this run does not reach.
    """
    wanted, have = _values(new.get("slurm.conf", "")), _values(old.get("slurm.conf", ""))
    waiting = tuple(key for key in HOOK_KEYS if key in wanted and have.get(key) != wanted[key])
    if not waiting or not list(absent):
        return dict(new), ()
    lines = []
    for line in new["slurm.conf"].splitlines():
        key = line.split("=", 1)[0]
        if key not in waiting:
            lines.append(line)
        elif key in have:
            lines.append(f"{key}={have[key]}")
    return {**new, "slurm.conf": "\n".join(lines) + "\n"}, waiting


def _values(text: str) -> dict[str, str]:
    pairs = (line.split("=", 1) for line in _lines(text) if "=" in line)
    return {key.strip(): value.strip() for key, value in pairs}


def check_jobs_survive(old: Mapping[str, str], new: Mapping[str, str], jobs: int) -> None:
    """Refuse a change that would lose jobs, or that slurmctld would refuse to start with.

    Args:
        old: the texts that are there.
        new: the wanted texts.
        jobs: jobs that Slurm knows, waiting ones included.

    Raises:
        SlurmError: naming the key and the way out.
    """
    before, after = _values(old.get("slurm.conf", "")), _values(new["slurm.conf"])
    lost = sorted(
        key for key, value in before.items() if key.lower() in JOB_LOSING_KEYS and value != after.get(key, value)
    )
    if lost and jobs:
        raise SlurmError(
            f"{', '.join(lost)} would change, which loses the records of all jobs, and Slurm has {jobs}: wait until "
            "the queue is empty, or leave the key as it is"
        )
    if before.get("ClusterName") and before["ClusterName"] != after["ClusterName"]:
        raise SlurmError(
            f"slurm_cluster_name is {after['ClusterName']}, but this Slurm is {before['ClusterName']}: slurmctld does "
            "not start with the saved state of another cluster; keep the name"
        )
