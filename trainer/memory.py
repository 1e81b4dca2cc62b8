"""How much memory a rank may take, takes now, and took before its model: of its GPU, or of the host on CPU."""

from __future__ import annotations

import re
import resource
from pathlib import Path

import torch

from .errors import StopError

GIB = 2**30
_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_REQUESTED = re.compile(r"[Tt]ried to allocate ([\d.]+) (bytes|KiB|MiB|GiB)")


class MemoryMeter:
    """Measures this process; `limit_gib` caps it.

    On a GPU bytes are those of torch's allocator, and the limit is what the allocator can still get beside other
    processes. On CPU they are writable private memory (VmData), which is also what the cap counts (RLIMIT_DATA).
    """

    def __init__(self, device: str, limit_gib: float | None) -> None:
        self._index = int(device.partition(":")[2] or 0) if device.startswith("cuda") else None
        self._limit_gib = limit_gib
        self._own: int | None = None

    @property
    def cuda(self) -> bool:
        """Whether the GPU's memory is meant."""
        return self._index is not None

    def apply_limit(self) -> None:
        """Let allocations fail beyond the cap.

        Raises:
            StopError: if this process holds more than the cap before anything is built.
        """
        if self._limit_gib is None:
            return
        limit = int(self._limit_gib * GIB)
        if self._index is not None:
            total = torch.cuda.get_device_properties(self._index).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total), self._index)
            return
        if limit <= self.held_bytes():
            raise StopError(
                f"train.json: memory_limit_gib={self._limit_gib:g} is less than the {self.held_bytes() / GIB:.2f} GiB "
                "that the program itself takes"
            )
        resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.getrlimit(resource.RLIMIT_DATA)[1]))

    def mark_own(self) -> None:
        """Note what the program takes without model and states."""
        self._own = self.held_bytes()

    def own_bytes(self) -> int:
        """Return what the program takes without model and states; on a GPU the allocator counts nothing else."""
        if self.cuda:
            return 0
        return self.held_bytes() if self._own is None else self._own

    def held_bytes(self) -> int:
        """Return what is held now: live tensors on a GPU, writable private memory on CPU."""
        if self._index is not None:
            return int(torch.cuda.memory_allocated(self._index))
        return _status_bytes("VmData")

    def reserved_bytes(self) -> int | None:
        """Return what the GPU's caching allocator holds; None on CPU."""
        return None if self._index is None else int(torch.cuda.memory_reserved(self._index))

    def limit_bytes(self) -> int:
        """Return the most that this process can hold, whatever limits it."""
        if self._index is not None:
            free, total = torch.cuda.mem_get_info(self._index)
            within = free + int(torch.cuda.memory_reserved(self._index))
            cap = total if self._limit_gib is None else int(self._limit_gib * GIB)
            return min(within, cap)
        held = self.held_bytes()
        limits = [held + _available_bytes()]
        data, space = resource.getrlimit(resource.RLIMIT_DATA)[0], resource.getrlimit(resource.RLIMIT_AS)[0]
        if data != resource.RLIM_INFINITY:
            limits.append(data)
        if space != resource.RLIM_INFINITY:
            limits.append(held + max(0, space - _status_bytes("VmSize")))
        return min(limits)


def requested_bytes(error: BaseException) -> int:
    """Return the size of the allocation that failed, as torch's message says it; 0 if it says none."""
    found = _REQUESTED.search(str(error))
    return int(float(found[1]) * _UNITS[found[2]]) if found else 0


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    return _status_bytes("VmRSS")


def _status_bytes(name: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0


def _available_bytes() -> int:
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0
