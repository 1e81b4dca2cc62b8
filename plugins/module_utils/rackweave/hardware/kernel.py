"""Values as the kernel writes them below /sys and /proc."""

from __future__ import annotations

import re

from ..errors import ParseError

_RATE = re.compile(r"(\d+(?:\.\d+)?) Gb/sec \((\d+)X (?:([A-Z0-9]+))?\s*\)")
_STATE = re.compile(r"(\d+): ([A-Za-z_ ]+)")
_LIMIT = re.compile(r"^Max locked memory\s+(\S+)\s+(\S+)\s+bytes", re.MULTILINE)
UNLIMITED = -1


def cpu_list(text: str) -> tuple[int, ...]:
    """Return the CPUs of a kernel list (``0-3,8``), in the order written.

    Raises:
        ParseError: for anything but numbers and rising ranges.
    """
    cpus: list[int] = []
    for piece in text.strip().split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", piece)
        if not match or int(match[2] or match[1]) < int(match[1]):
            raise ParseError(f"CPU list {text!r}: {piece!r} is neither a number nor a range")
        cpus.extend(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(cpus)


def cpu_list_text(cpus: tuple[int, ...]) -> str:
    """Return CPUs as the shortest kernel list."""
    pieces: list[str] = []
    ordered = sorted(set(cpus))
    start = 0
    for position, cpu in enumerate(ordered):
        if position + 1 == len(ordered) or ordered[position + 1] != cpu + 1:
            first = ordered[start]
            pieces.append(str(first) if first == cpu else f"{first}-{cpu}")
            start = position + 1
    return ",".join(pieces)


def link_rate_gbps(text: str) -> float:
    """Return the rate in Gb/s of a port's ``rate`` file (``400 Gb/sec (4X NDR)``)."""
    match = _RATE.fullmatch(text.strip())
    if not match:
        raise ParseError(f"link rate {text!r} is not like '400 Gb/sec (4X NDR)'")
    return float(match[1])


def port_state(text: str) -> str:
    """Return the word of a port's ``state`` or ``phys_state`` file (``4: ACTIVE``)."""
    match = _STATE.fullmatch(text.strip())
    if not match:
        raise ParseError(f"port state {text!r} is not like '4: ACTIVE'")
    return match[2]


def memlock_bytes(limits: str) -> int:
    """Return the soft locked-memory limit of ``/proc/PID/limits`` in bytes, -1 for unlimited."""
    match = _LIMIT.search(limits)
    if not match or not (match[1] == "unlimited" or match[1].isdigit()):
        raise ParseError("/proc/self/limits: no line 'Max locked memory'")
    return UNLIMITED if match[1] == "unlimited" else int(match[1])


def memory_total_bytes(meminfo: str) -> int:
    """Return MemTotal of ``/proc/meminfo`` in bytes."""
    match = re.search(r"^MemTotal:\s+(\d+) kB$", meminfo, re.MULTILINE)
    if not match:
        raise ParseError("/proc/meminfo: no line 'MemTotal: N kB'")
    return int(match[1]) * 1024


def driver_version(text: str) -> tuple[str, str]:
    """Return version and kind (``open``, ``proprietary``) of ``/proc/driver/nvidia/version``."""
    match = re.search(r"^NVRM version:.*?Kernel Module.*?\s(\d{3,4}\.\d+(?:\.\d+)?)\s", text + "\n", re.MULTILINE)
    if not match:
        raise ParseError(f"/proc/driver/nvidia/version: no version in {text[:120]!r}")
    return match[1], "open" if "Open Kernel Module" in match[0] else "proprietary"


def gpu_information(text: str) -> dict[str, str]:
    """Return the keys and values of ``/proc/driver/nvidia/gpus/BDF/information``."""
    rows = (line.partition(":") for line in text.splitlines())
    return {key.strip(): value.strip() for key, colon, value in rows if colon}
