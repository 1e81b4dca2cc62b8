"""Which installed packages are held at their version: kernel, NVIDIA and OFED. All others go on being updated."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ..errors import ProvisionError

# What moves a kernel module away from its kernel, its user-space library or its fabric manager. User-space headers
# (linux-libc-dev, kernel-headers) and exporters bind nothing, so they are not among them.
_FAMILIES = {
    "kernel": (
        r"linux-(image|headers|modules|modules-extra|kbuild)(-.+)?",
        r"linux-(generic|virtual|aws|azure|gcp|oracle|nvidia|lowlatency)(-.+)?",
        r"kernel(-core|-modules|-modules-core|-modules-extra|-devel|-devel-matched)?",
        r"kernel-64k(-.+)?",
    ),
    "NVIDIA": (
        r"(lib)?nvidia-.+",
        r"(kmod|dkms|firmware)-nvidia.*",
        r"xserver-xorg-video-nvidia.*",
        r"libcuda1|libcudadebugger1",
        r"cuda-(drivers|compat)(-.+)?",
        r"datacenter-gpu-manager(-\d.*)?",
        r"nvlsm",
    ),
    "OFED": (
        r"doca-.+",
        r"(mlnx|ofed)-.+",
        r"(kmod-)?(iser|isert|srp|knem|xpmem|mft|kernel-mft|fwctl)(-dkms|-modules|-kernel.*|-mlnx.*)?",
        r"kmod-(mlnx|kernel-mft|rshim).*",
    ),
}
# The distribution's own RDMA packages are free; OFED brings packages of the same names, known by their version.
_RDMA = re.compile(
    r"(rdma-core.*|lib(ibverbs|rdmacm|ibumad|ibmad|ibnetdisc|opensm).*|ibverbs-.*|infiniband-diags.*|perftest|ucx.*|opensm.*)"
)
_OFED_VERSION = re.compile(r"(mlnx|MLNX|OFED|doca)")


def family(name: str, version: str, patterns: Sequence[str] = ()) -> str | None:
    """Return the family that an installed package belongs to, ``None`` if its updates go on."""
    for title, expressions in _FAMILIES.items():
        if any(re.fullmatch(expression, name) for expression in expressions):
            return title
    if _RDMA.fullmatch(name) and _OFED_VERSION.search(version):
        return "OFED"
    return "site" if any(re.fullmatch(expression, name) for expression in patterns) else None


def to_hold(installed: Mapping[str, str], patterns: Sequence[str] = ()) -> list[str]:
    """Return the installed packages that are held, sorted.

    Args:
        installed: name to version.
        patterns: regular expressions of further names.

    Raises:
        ProvisionError: for a pattern that is no regular expression.
    """
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as exc:
            raise ProvisionError(f"{pattern!r} is no regular expression of package names: {exc}") from exc
    return sorted(name for name, version in installed.items() if family(name, version, patterns))


def lock_changes(wanted: Sequence[str], held: Sequence[str], locks: Sequence[str]) -> dict[str, list[str]]:
    """Return which version locks of dnf are to be added and deleted.

    Args:
        wanted: installed packages to be held, as ``name-epoch:version-release``.
        held: names of the packages behind them.
        locks: present locks, as ``dnf versionlock list`` prints them (``name-epoch:version-release.*``).

    A lock of a held name at a version that is not installed would stop the next upgrade or rollback, so it goes. Locks
    of other packages are the site's own and stay.
    """
    present = {lock[:-2] if lock.endswith(".*") else lock: lock for lock in locks}
    names = {key: re.sub(r"-\d+:[^-]+-[^-]+$", "", key) for key in present}
    return {
        "add": sorted(set(wanted) - set(present)),
        "delete": sorted(present[key] for key in present if names[key] in held and key not in wanted),
    }
