"""Versions of drivers, kernels and packages: reading them out of package versions, and comparing them exactly.

Not a general version library: only the forms that NVIDIA, kernels, dpkg and rpm really print.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..errors import ProvisionError

_DRIVER = re.compile(r"^\d{3}\.\d{1,3}(\.\d{1,3})?$")
_LEADING_NUMBERS = re.compile(r"^\d+(?:\.\d+)*")


def upstream_version(package_version: str) -> str:
    """Return the upstream part of a dpkg or rpm version: ``3:535.309.01-1~deb12u1`` -> ``535.309.01``.

    The epoch and the packager's revision are dropped; a ``+ds`` or ``~rc`` suffix of the upstream part is dropped too,
    since it never distinguishes two driver releases.

    Raises:
        ProvisionError: if no number stands where the upstream version should.
    """
    without_epoch = package_version.strip().rpartition(":")[2]
    match = _LEADING_NUMBERS.match(without_epoch)
    if match is None:
        raise ProvisionError(f"package version {package_version!r} does not start with a number after its epoch")
    return match.group(0)


def version_key(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version for ordering: ``5.14.0-284.el9`` -> ``(5, 14, 0)``.

    Trailing zeros are kept out, so that ``5.12`` and ``5.12.0`` are equal.
    """
    numbers = [int(part) for part in upstream_version(version).split(".")]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def require_driver_version(version: str, variable: str) -> str:
    """Return ``version`` if it is a full NVIDIA driver version, such as ``535.309.01``.

    A branch (``535``) or ``latest`` would let the driver and its fabric manager drift apart, so both are refused.
    """
    if not isinstance(version, str) or not _DRIVER.match(version):  # YAML reads 570.86 as a number
        raise ProvisionError(
            f"{variable}={version!r} is not a full driver version; write it as NVIDIA does, for example 535.309.01, "
            "because driver, fabric manager and kernel modules are held at exactly this one"
        )
    return version


def driver_branch(version: str) -> str:
    """Return the release branch of a driver version: ``535.309.01`` -> ``535``."""
    return upstream_version(version).split(".")[0]


def require_equal_versions(versions: Mapping[str, str], wanted: str | None = None) -> str:
    """Return the one upstream version that all named components share.

    Args:
        versions: component or package name to package version; must not be empty.
        wanted: upstream version all of them must have, or ``None`` if any common one will do.

    Raises:
        ProvisionError: naming every component with its version if two differ or one is not the wanted one.

    The comparison is textual on the full version: 530.30.02 and 530.41.03 are one branch, and the fabric manager of the
    first still refuses to start with the driver of the second (CUDA error 802).
    """
    if not versions:
        raise ProvisionError("no versions to compare: the package set is empty")
    upstream = {name: upstream_version(version) for name, version in versions.items()}
    target = wanted if wanted is not None else upstream[sorted(upstream)[0]]
    if all(version == target for version in upstream.values()):
        return target
    found = ", ".join(f"{name} {upstream[name]}" for name in sorted(upstream))
    aim = f"all must be {wanted}" if wanted is not None else "all must be the same full version"
    raise ProvisionError(
        f"NVIDIA component versions differ: {found}; {aim}. Pick a version that the repository has for each of them, "
        "or point the repository variables at one that has"
    )
