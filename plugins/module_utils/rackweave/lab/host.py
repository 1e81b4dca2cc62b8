"""Decide from facts of a machine whether, and in which way, it can carry the embedded cluster."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import RackweaveError

SUPPORTED_DISTRIBUTIONS = ("debian",)
SLURM_DAEMONS = ("slurmctld", "slurmd", "slurmstepd")
# podman lowers its own NPROC limit to this before it starts a container, so a larger request fails.
PODMAN_NPROC_LIMIT = 32768
CAP_SYS_RESOURCE = 24


class LabError(RackweaveError):
    """A machine that cannot carry the embedded cluster, or a lab described in a way that cannot work."""


@dataclass(frozen=True)
class HostFacts:
    """What was read from the machine.

    Args:
        user_id: effective user id of the play.
        distribution: ``ID`` of ``/etc/os-release``.
        mounts: text of ``/proc/self/mounts``.
        init_name: ``/proc/1/comm``.
        processes: names of the running processes outside the lab's own containers.
        effective_capabilities: ``CapEff`` of ``/proc/self/status`` as a number.
        nofile_hard_limit: hard limit of open files, -1 for unlimited.
    """

    user_id: int
    distribution: str
    mounts: str
    init_name: str
    processes: tuple[str, ...]
    effective_capabilities: int
    nofile_hard_limit: int


@dataclass(frozen=True)
class HostMode:
    """How containers are started on this machine.

    ``private_cgroup``: podman must run in a mount namespace of its own with a pure cgroup2 tree.
    ``raise_limits``: the machine may give containers larger limits than its own.
    ``nofile``, ``nproc``: limits that a container can be given.
    ``verified``: whether this combination was ever run, or follows from documentation only.
    """

    private_cgroup: bool
    raise_limits: bool
    nofile: int
    nproc: int
    verified: bool


def has_pure_cgroup2(mounts: str) -> bool:
    """Return whether ``/sys/fs/cgroup`` itself is a cgroup2 tree (neither hybrid nor version 1)."""
    found = False
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) >= 3 and fields[1] == "/sys/fs/cgroup":
            found = fields[2] == "cgroup2"  # the last mount on a path is the visible one
    return found


def check_host(facts: HostFacts) -> HostMode:
    """Return how this machine can carry the lab.

    Raises:
        LabError: if it cannot, with the one thing to change.
    """
    if facts.user_id != 0:
        raise LabError(
            f"the lab must be started as root (user id 0), not as user id {facts.user_id}: "
            "it creates a bridge, mounts and containers"
        )
    if facts.distribution not in SUPPORTED_DISTRIBUTIONS:
        raise LabError(
            f"the lab runs on Debian; this machine's distribution is '{facts.distribution or 'unknown'}': "
            "use a Debian 12 machine or VM"
        )
    running = sorted(set(facts.processes).intersection(SLURM_DAEMONS))
    if running:
        raise LabError(
            f"{' and '.join(running)} already run on this machine: the lab is not started beside an existing Slurm; "
            "use another machine"
        )
    pure = has_pure_cgroup2(facts.mounts)
    if pure and facts.init_name != "systemd":
        raise LabError(
            f"this machine has a pure cgroup2 tree but its first process is '{facts.init_name}', not systemd: "
            "podman has no cgroup to start nodes in"
        )
    can_raise = bool(facts.effective_capabilities >> CAP_SYS_RESOURCE & 1)
    nofile = facts.nofile_hard_limit if facts.nofile_hard_limit > 0 else 1048576
    return HostMode(
        private_cgroup=not pure,
        raise_limits=can_raise,
        nofile=nofile,
        nproc=PODMAN_NPROC_LIMIT,
        verified=not pure and not can_raise,
    )
