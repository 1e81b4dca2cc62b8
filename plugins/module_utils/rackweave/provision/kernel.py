"""Decisions about a node's kernel: which one boots next, its command line, nouveau, sysctl, reasons for a reboot.

Facts come from the module ``gpu_driver_facts``; nothing is read here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import ProvisionError

_FLAVOUR = re.compile(r"-(?!rc\d)[a-z][a-z0-9-]*$")
_ARCHITECTURE = re.compile(r"\.(x86_64|aarch64|ppc64le)$")
_SIZE = re.compile(r"^(?P<number>[1-9]\d*)(?P<unit>[KMGT])$")
_UNITS = {"K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}
_ARGUMENT = re.compile(r"^[A-Za-z0-9_.-]+(=[A-Za-z0-9_.,:@/+-]*)?$")
_SYSCTL = re.compile(r"^[a-z0-9_]+([./][A-Za-z0-9_*-]+)+$")


def kernel_order(release: str) -> tuple[tuple[int, int, str], ...]:
    """Return a key that orders kernel releases as rpm and dpkg do; flavour (``-amd64``) and architecture do not count.

    ``6.1.0-9-amd64`` < ``6.1.0-18-amd64``, and ``5.14.0-362.el9`` < ``5.14.0-362.8.1.el9_3``: a number is newer than
    a word.
    """
    bare = _FLAVOUR.sub("", _ARCHITECTURE.sub("", release))
    parts = re.findall(r"\d+|[a-zA-Z]+", bare)
    return tuple((1, int(part), "") if part.isdigit() else (0, 0, part) for part in parts)


def newest_kernel(facts: Mapping[str, Any]) -> str:
    """Return the newest release that is installed or runs; the running one where nothing newer is there."""
    running = str(facts["kernel"])
    newest = running
    for row in facts.get("kernels") or ():
        if kernel_order(row["release"]) > kernel_order(newest):
            newest = row["release"]
    return newest


def kernel_findings(facts: Mapping[str, Any]) -> list[str]:
    """Return what a driver that is built now would meet: a kernel that moved, headers that are missing.

    Args:
        facts: ``kernel`` (running release), ``headers`` (whether its build directory exists) and ``kernels`` (rows of
            ``release`` and ``headers`` of the installed ones).
    """
    running, newest = str(facts["kernel"]), newest_kernel(facts)
    findings = []
    if newest != running:
        findings.append(f"kernel {running} runs, {newest} is installed and would be booted next")
    rows = {row["release"]: bool(row["headers"]) for row in facts.get("kernels") or ()}
    rows[running] = bool(facts["headers"])
    for release in dict.fromkeys((running, newest)):
        if not rows.get(release):
            findings.append(
                f"kernel {release} has no headers here (/lib/modules/{release}/build): no module can be built for it"
            )
    return findings


def kernel_moved(facts: Mapping[str, Any]) -> str | None:
    """Return why a driver that is built now would be missing after the next boot, ``None`` if it would be there."""
    running, newest = str(facts["kernel"]), newest_kernel(facts)
    rows = {row["release"]: bool(row["headers"]) for row in facts.get("kernels") or ()}
    if newest == running or rows.get(newest):
        return None
    return (
        f"kernel {running} runs, {newest} is installed, would be booted next, and has no headers here: the driver "
        f"would be missing after the next boot. Reboot into {newest} first (node_base_reboot_ok) and install its "
        "headers, or remove it"
    )


def check_kernel_arguments(arguments: Sequence[str]) -> list[str]:
    """Return the arguments if each is one word of the kernel line and no key comes twice.

    Raises:
        ProvisionError: naming the argument; quotes and spaces would end in another argument than was meant.
    """
    for argument in arguments:
        if not _ARGUMENT.match(str(argument)):
            raise ProvisionError(
                f"node_base_kernel_arguments: {argument!r} is not one word of a kernel line, such as iommu=pt"
            )
    keys = [str(argument).partition("=")[0] for argument in arguments]
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        raise ProvisionError(
            f"node_base_kernel_arguments names {', '.join(twice)} more than once; the kernel would take one of them"
        )
    return [str(argument) for argument in arguments]


def missing_arguments(current: Sequence[str], wanted: Sequence[str]) -> list[str]:
    """Return the wanted arguments that are not in force on a kernel line, where the last value of a key counts."""
    last = {argument.partition("=")[0]: argument for argument in current}
    return [argument for argument in wanted if last.get(argument.partition("=")[0]) != argument]


def kernel_line_report(
    missing: Sequence[str], current: Sequence[str], *, consent: bool, multi_tenant: bool, virtual: bool
) -> dict[str, str]:
    """Return what is done about missing arguments: ``action`` (none, report, skip or set) and a sentence.

    A virtual machine's IOMMU is its hypervisor's; a host shared by tenants keeps the isolation that it has.
    """
    if not missing:
        return {"action": "none", "message": "the kernel line has all arguments"}
    words = " ".join(missing)
    others = [a for a in current if a.partition("=")[0] in {m.partition("=")[0] for m in missing}]
    now = f" (now {' '.join(others)})" if others else ""
    if virtual:
        return {"action": "skip", "message": f"{words} is left to the hypervisor of this virtual machine"}
    if multi_tenant:
        return {
            "action": "report",
            "message": f"the kernel line lacks {words}{now}; WARNING: tenants share this host, so it stays as it is: "
            "with a pass-through IOMMU, devices of the host reach all of its memory",
        }
    if not consent:
        return {
            "action": "report",
            "message": f"the kernel line lacks {words}{now}: with a translating IOMMU, GPUDirect RDMA is slow or "
            "fails; set node_base_iommu_ok to let the role write it, unless tenants share the host",
        }
    return {"action": "set", "message": f"the kernel line gets {words}{now}"}


def initramfs_stale(listing: str, configuration: str) -> bool:
    """Return whether an initial RAM disk (its list of files) was made before the blacklist file, so loads nouveau."""
    names = {line.split()[-1].lstrip("./") for line in listing.splitlines() if line.strip()}
    return configuration.lstrip("/") not in names


def sysctl_lines(values: Mapping[str, object]) -> list[str]:
    """Return the sorted lines of a sysctl file.

    Raises:
        ProvisionError: for a key that is none, or a value with a line break.
    """
    lines = []
    for key, value in sorted((str(key), value) for key, value in values.items()):
        text = str(int(value)) if isinstance(value, bool) else str(value)
        if not _SYSCTL.match(key) or "\n" in text or not text.strip():
            raise ProvisionError(f"node_base_sysctl: {key} = {text!r} is no kernel parameter with a value")
        lines.append(f"{key} = {' '.join(text.split())}")
    return lines


def sysctl_differences(values: Mapping[str, object], text: str) -> list[str]:
    """Return the keys whose value in force (output of ``sysctl KEY…``) is another; keys the kernel lacks are not."""
    current = {}
    for line in text.splitlines():
        key, sign, value = line.partition("=")
        if sign:
            current[key.strip()] = " ".join(value.split())
    wanted = dict(line.split(" = ", 1) for line in sysctl_lines(values))
    return [key for key, value in wanted.items() if key in current and current[key] != value]


def size_bytes(text: str, variable: str) -> int:
    """Return the bytes of a size such as ``64G``; the kernel's percent form is refused: it cannot be compared."""
    match = _SIZE.match(text) if isinstance(text, str) else None
    if match is None:
        raise ProvisionError(f"{variable}={text!r} is not a size such as 64G (K, M, G or T)")
    return int(match["number"]) * _UNITS[match["unit"]]


def base_reboot_reasons(
    facts: Mapping[str, Any], *, arguments: Sequence[str], arguments_set: bool, nouveau_blocked: bool
) -> list[str]:
    """Return what a reboot is due for before anything is built on this kernel.

    Args:
        facts: of the node, after all changes.
        arguments: wanted on the kernel line.
        arguments_set: whether the boot loader has them now, so that a reboot brings them.
        nouveau_blocked: whether nouveau is kept from loading at the next boot.
    """
    reasons = []
    newest = newest_kernel(facts)
    if newest != facts["kernel"]:
        reasons.append(f"kernel {facts['kernel']} runs, {newest} is installed")
    missing = missing_arguments(facts["kernel_arguments"], arguments)
    if arguments_set and missing:
        reasons.append(f"the kernel line gets {' '.join(missing)} at the next boot only")
    if nouveau_blocked and "nouveau" in facts["modules"]:
        reasons.append("nouveau is loaded and can only be kept out at boot")
    return reasons


def arguments_absent(text: str, wanted: Sequence[str]) -> list[str]:
    """Return the wanted arguments that no boot entry has; the text is grub.cfg or what grubby prints."""
    words = set(re.findall(r"[^\s\"']+", text))
    return [argument for argument in wanted if argument not in words]
