"""What a package transaction would do, read from the package manager's own simulation, and whether it may.

Reads ``apt-get --simulate install`` and ``dnf repoquery`` output; runs nothing itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..errors import ProvisionError
from .versions import require_equal_versions, upstream_version

_APT_INSTALL = re.compile(r"^Inst (?P<name>[^\s:]+)(?::\S+)? (?:\[(?P<old>[^\]]+)\] )?\((?P<new>\S+) ")
_APT_REMOVE = re.compile(r"^(?:Remv|Purg) (?P<name>[^\s:]+)(?::\S+)? \[(?P<old>[^\]]+)\]")
_KERNEL_PACKAGE = re.compile(r"^(linux-image-(?!extra)|kernel(-core|-modules-core)?$|kernel-image-)")


@dataclass(frozen=True)
class PackageChange:
    """One package of a transaction; ``new`` is ``None`` for a removal, ``old`` for a first installation."""

    name: str
    old: str | None
    new: str | None


def parse_apt_simulation(text: str) -> tuple[PackageChange, ...]:
    """Return the changes in the output of ``LC_ALL=C apt-get --simulate install …``.

    Raises:
        ProvisionError: if the output is no such simulation, or apt could not resolve the set (its words are quoted).
    """
    unmet = [line.strip() for line in text.splitlines() if re.match(r"^\s*(E: |.* : Depends: |.*but it is not )", line)]
    if unmet:
        raise ProvisionError("apt cannot resolve the package set: " + "; ".join(unmet[:5]))
    if "Reading package lists" not in text and "Inst " not in text and "newly installed" not in text:
        raise ProvisionError("this is not the output of apt-get --simulate: " + repr(text[:80]))
    changes = []
    for line in text.splitlines():
        installed, removed = _APT_INSTALL.match(line), _APT_REMOVE.match(line)
        if installed:
            changes.append(PackageChange(installed["name"], installed["old"], installed["new"]))
        elif removed:
            changes.append(PackageChange(removed["name"], removed["old"], None))
    return tuple(changes)


def parse_apt_policy(text: str) -> dict[str, str]:
    """Return package to candidate version from ``LC_ALL=C apt-cache policy …``; packages without one are left out."""
    candidates: dict[str, str] = {}
    package = ""
    for line in text.splitlines():
        if line and not line[0].isspace() and line.endswith(":"):
            package = line[:-1]
        elif line.strip().startswith("Candidate:") and package:
            version = line.split(":", 1)[1].strip()
            if version != "(none)":
                candidates[package] = version
    return candidates


def check_candidates(candidates: Mapping[str, str], same_version: Sequence[str], version: str) -> str:
    """Return ``version`` if the repository offers exactly it for each package that must have it.

    Checked before the package manager resolves anything, because its own complaint about unmet dependencies does not
    say that the repository simply has another version of one component.

    Raises:
        ProvisionError: naming the packages that the repository lacks, or every package with the version it has.
    """
    missing = sorted(name for name in same_version if name not in candidates)
    if missing:
        raise ProvisionError(
            f"the configured repositories have no {', '.join(missing)}; add the repository that has it "
            "(gpu_driver_source, gpu_driver_repositories), or choose another source"
        )
    return require_equal_versions({name: candidates[name] for name in same_version}, wanted=version)


def packages_left_out(table: Sequence[Mapping[str, object]], candidates: Mapping[str, str]) -> list[str]:
    """Return the optional packages of a table that the repositories do not have of the very build of the others.

    Vendors move programs between packages within one branch. An optional package of the same driver version from
    another source (a distribution's beside NVIDIA's) would bring the same files twice, so whole versions are compared.
    """
    builds = {candidates.get(str(row["name"])) for row in table if row.get("same_version") and not row.get("optional")}
    builds.discard(None)
    optional = [str(row["name"]) for row in table if row.get("optional")]
    return sorted(name for name in optional if candidates.get(name) not in builds)


def parse_repoquery(text: str) -> dict[str, str]:
    """Return name to version from ``dnf repoquery --qf '%{name} %{evr}'`` lines; later lines of a name win."""
    candidates = {}
    for line in text.splitlines():
        fields = line.split()
        if len(fields) == 2:
            candidates[fields[0]] = fields[1]
    return candidates


def rpm_candidate(candidates: Mapping[str, str], package: str) -> str | None:
    """Return the version that a repository has of a package given with name, version, release and perhaps architecture.

    Args:
        candidates: of :func:`parse_repoquery`, by bare name.
        package: such as ``kernel-devel-5.14.0-503.14.1.el9_5.x86_64``.
    """
    for name, version in candidates.items():
        full = f"{name}-{version.rpartition(':')[2]}"
        if package == full or package.startswith(f"{full}."):
            return version
    return None


def rpm_transaction(
    table: Sequence[Mapping[str, object]], version: str, installed: Mapping[str, str], headers: str | None = None
) -> dict[str, list[str]]:
    """Return what dnf is to be asked for, and which of it is not there yet.

    Args:
        table: packages with ``name`` and ``same_version``.
        version: the pinned upstream version.
        installed: package versions before the transaction.
        headers: package that brings the headers of the running kernel, ``None`` where they are there.
    """
    pinned = {str(row["name"]): bool(row["same_version"]) for row in table}
    specs = {name: f"{name}-{version}*" if exact else name for name, exact in sorted(pinned.items())}
    there = {name for name, exact in pinned.items() if _is_installed(installed.get(name), version if exact else None)}
    further = [headers] if headers is not None else []
    return {
        "specs": list(specs.values()) + further,
        "changes": [name for name in specs if name not in there] + further,
    }


def stream_state(text: str, module: str, stream: str) -> str:
    """Return ``enabled``, ``available`` or ``absent`` for a module stream in the output of ``dnf module list``."""
    row = re.search(rf"^{re.escape(module)}\s+{re.escape(stream)}(?=\s)((?:\s*\[[a-z]\])*)", text, re.MULTILINE)
    if row is None:
        return "absent"
    return "enabled" if "[e]" in row.group(1) else "available"


def _is_installed(found: str | None, version: str | None) -> bool:
    return found is not None and (version is None or upstream_version(found) == version)


def parse_installed(text: str) -> dict[str, str]:
    """Return installed packages from lines of name, version and status, tab separated; others are left out."""
    rows = (line.split("\t") for line in text.splitlines())
    return {row[0]: row[1] for row in rows if len(row) == 3 and row[2] == "installed"}


def resulting_versions(
    names: Iterable[str], changes: Sequence[PackageChange], installed: Mapping[str, str]
) -> dict[str, str]:
    """Return the version each package has after the transaction.

    Raises:
        ProvisionError: naming the packages that would be neither installed nor upgraded.
    """
    planned = {change.name: change.new for change in changes if change.new is not None}
    result = {name: planned.get(name) or installed.get(name, "") for name in names}
    missing = sorted(name for name, version in result.items() if not version)
    if missing:
        raise ProvisionError(
            f"no version of {', '.join(missing)} would be installed: the repository does not have it, or another "
            "package of the set takes its place"
        )
    return result


def check_transaction(
    changes: Sequence[PackageChange],
    *,
    kernel_change_ok: bool,
    removable: Sequence[str] = (),
    kernel_variable: str,
) -> None:
    """Refuse a transaction that moves the kernel or takes away packages nobody asked to remove.

    Args:
        changes: of the simulation.
        kernel_change_ok: the operator's consent to a new kernel in this very transaction.
        removable: regular expressions of packages that the role replaces by design (another driver flavour).
        kernel_variable: name of the consent variable, for the message.
    """
    kernels = sorted(c.name for c in changes if c.new is not None and _KERNEL_PACKAGE.match(c.name))
    if kernels and not kernel_change_ok:
        raise ProvisionError(
            f"the transaction would also install a kernel ({', '.join(kernels)}), for which no module is built; "
            f"set {kernel_variable} to allow it, or hold the kernel packages"
        )
    removed = [c.name for c in changes if c.new is None]
    unexpected = sorted(name for name in removed if not any(re.fullmatch(pattern, name) for pattern in removable))
    if unexpected:
        raise ProvisionError(
            f"the transaction would remove {', '.join(unexpected)}, which this role did not ask for; "
            "install or pin the versions that can live together first"
        )


def check_driver_transaction(
    text: str,
    *,
    version: str,
    same_version: Sequence[str],
    installed: Mapping[str, str],
    kernel_change_ok: bool,
    removable: Sequence[str] = (),
) -> dict[str, object]:
    """Judge the simulated installation of a driver package set.

    Args:
        text: output of ``apt-get --simulate install``.
        version: the pinned upstream driver version.
        same_version: packages that must end at exactly that version (driver, kernel modules, fabric manager).
        installed: package versions before the transaction.
        kernel_change_ok: see :func:`check_transaction`.
        removable: see :func:`check_transaction`.

    Returns:
        ``{"version": …, "changes": [names]}``; an empty list means that the packages are there already.
    """
    changes = parse_apt_simulation(text)
    found = require_equal_versions(resulting_versions(same_version, changes, installed), wanted=version)
    check_transaction(
        changes,
        kernel_change_ok=kernel_change_ok,
        removable=removable,
        kernel_variable="gpu_driver_kernel_change_ok",
    )
    return {"version": found, "changes": sorted(change.name for change in changes)}


def check_package_transaction(
    text: str, *, kernel_change_ok: bool, kernel_variable: str, removable: Sequence[str] = ()
) -> list[str]:
    """Judge the simulated installation of packages without a version pin; return the names that would change."""
    changes = parse_apt_simulation(text)
    check_transaction(changes, kernel_change_ok=kernel_change_ok, removable=removable, kernel_variable=kernel_variable)
    return sorted(change.name for change in changes)
