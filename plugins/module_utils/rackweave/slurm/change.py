"""From the old and the new text of Slurm's files to what must happen: nothing, a reconfigure, or a restart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .config import MARKER

# Keys that slurmctld and slurmd read only when they start: slurm.conf(5), and scontrol(1) "reconfigure".
RESTART_KEYS = frozenset(
    key.lower()
    for key in (
        "AccountingStorageType", "AuthType", "AuthInfo", "ClusterName", "CredType", "GresTypes", "JobAcctGatherType",
        "JobCompType", "MpiDefault", "NodeName", "PluginDir", "ProctrackType", "SchedulerType", "SelectType",
        "SlurmctldHost", "SlurmctldPort", "SlurmdPort", "SlurmdSpoolDir", "SlurmUser", "StateSaveLocation",
        "SwitchType", "TaskPlugin", "TopologyPlugin",
    )
)  # fmt: skip
RESTART_FILES = ("gres.conf", "cgroup.conf")


@dataclass(frozen=True)
class ConfigChange:
    """What changed and what it asks for: `action` is ``none``, ``reconfigure`` or ``restart``."""

    files: tuple[str, ...]
    keys: tuple[str, ...]
    action: str


def config_change(old: Mapping[str, str], new: Mapping[str, str]) -> ConfigChange:
    """Compare the texts by file name; a file that was not there counts as empty."""
    files = tuple(sorted(name for name, text in new.items() if old.get(name) != text))
    if not files:
        return ConfigChange((), (), "none")
    keys = sorted(changed_keys(old.get("slurm.conf", ""), new.get("slurm.conf", "")))
    restart = set(files) & set(RESTART_FILES) or {key.lower() for key in keys} & RESTART_KEYS
    return ConfigChange(files, tuple(keys), "restart" if restart else "reconfigure")


def changed_keys(old: str, new: str) -> set[str]:
    """Return the first key of every line of slurm.conf that is in only one of the texts."""
    before, after = set(_lines(old)), set(_lines(new))
    return {line.split("=", 1)[0].strip() for line in before ^ after}


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def is_ours(text: str) -> bool:
    """Return whether a file was written by us: its first line says so."""
    return text.split("\n", 1)[0] == MARKER
