"""What differs between versions of Slurm, 22.05 to 25.05, as data.

Sources: slurm.conf(5), cgroup.conf(5), topology.conf(5), scontrol(1) of 22.05.8 and 24.11.5, topology.yaml(5) of 25.05,
and the release notes of 23.11. A version is a pair such as ``(22, 5)``; None is an unknown one, which is not judged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Optional

from .munge import SlurmError

Version = Optional[tuple[int, int]]

# From this version on `scontrol reconfigure` starts new daemons with the new files; before, most keys need a restart.
RECONFIGURE_IS_RESTART = (23, 11)
TOPOLOGY_YAML = (25, 5)
TOPOLOGY_BLOCK = (23, 11)


@dataclass(frozen=True)
class Span:
    """Versions that know something: from `since` up to, but not including, `until`; None is no bound."""

    since: Version = None
    until: Version = None

    def holds(self, version: Version) -> bool:
        """Return whether the version lies inside; an unknown one does."""
        if version is None:
            return True
        return (self.since is None or version >= self.since) and (self.until is None or version < self.until)


# A key of cgroup.conf that a version does not know ends its daemons with a fatal error.
CGROUP_KEYS: Mapping[str, Span] = {
    "CgroupAutomount": Span(until=(23, 11)),
    "CgroupReleaseAgentDir": Span(until=(20, 2)),
    "AllowedKmemSpace": Span(until=(23, 11)),
    "ConstrainKmemSpace": Span(until=(23, 11)),
    "MaxKmemPercent": Span(until=(23, 11)),
    "MinKmemSpace": Span(until=(23, 11)),
    # Not in the manual of 22.05, in that of 24.11; the exact version in between was not looked up.
    "EnableControllers": Span(since=(23, 2)),
    "SystemdTimeout": Span(since=(23, 2)),
    "SignalChildrenProcesses": Span(since=(23, 11)),
}
CGROUP_VALUES: Mapping[tuple[str, str], Span] = {("CgroupPlugin", "disabled"): Span(since=(23, 2))}
# A plugin that a version does not have is fatal too.
SLURM_VALUES: Mapping[tuple[str, str], Span] = {
    ("SelectType", "select/cons_res"): Span(until=(23, 11)),
    ("TopologyPlugin", "topology/none"): Span(until=(23, 11)),
    ("TopologyPlugin", "topology/default"): Span(since=(23, 11), until=(25, 5)),
    ("TopologyPlugin", "topology/flat"): Span(since=(25, 5)),
    ("TopologyPlugin", "topology/block"): Span(since=TOPOLOGY_BLOCK),
}


def version_pair(text: str) -> Version:
    """Return ``(22, 5)`` for ``22.05.8``, ``slurm-wlm 22.05.8`` or a package version; None for an empty text."""
    match = re.search(r"(\d+)\.(\d+)", text)
    return (int(match.group(1)), int(match.group(2))) if match else None


def version_text(version: Version) -> str:
    """Return ``22.05`` for ``(22, 5)``."""
    return "of an unknown version" if version is None else f"{version[0]}.{version[1]:02d}"


def check_cgroup(settings: Mapping[str, str], version: Version) -> None:
    """Refuse keys and values of cgroup.conf that this Slurm would not start with.

    Raises:
        SlurmError: naming key, version and the versions that know it.
    """
    _check_keys("slurm_cgroup", settings, CGROUP_KEYS, version)
    _check_values("slurm_cgroup", settings, CGROUP_VALUES, version)


def check_parameters(settings: Mapping[str, str], version: Version) -> None:
    """Refuse values of slurm.conf that this Slurm would not start with.

    Raises:
        SlurmError: naming key, version and the versions that know it.
    """
    _check_values("slurm_parameters", settings, SLURM_VALUES, version)


def _check_keys(where: str, settings: Mapping[str, str], spans: Mapping[str, Span], version: Version) -> None:
    known = {key.lower(): span for key, span in spans.items()}
    for key in settings:
        span = known.get(key.lower())
        if span is not None and not span.holds(version):
            raise SlurmError(
                f"{where} sets {key}, which Slurm {version_text(version)} does not start with ({_when(span)})"
            )


def _check_values(
    where: str, settings: Mapping[str, str], spans: Mapping[tuple[str, str], Span], version: Version
) -> None:
    known = {(key.lower(), value): span for (key, value), span in spans.items()}
    for key, value in settings.items():
        span = known.get((key.lower(), value.lower()))
        if span is not None and not span.holds(version):
            raise SlurmError(
                f"{where} sets {key}={value}, which Slurm {version_text(version)} does not have ({_when(span)})"
            )


def _when(span: Span) -> str:
    parts = [f"since {version_text(span.since)}"] if span.since else []
    parts += [f"removed in {version_text(span.until)}"] if span.until else []
    return ", ".join(parts)
