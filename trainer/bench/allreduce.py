"""All-reduce by message size: bus bandwidth, spread of single calls, and CPU time that a hypervisor took away.

Run under torchrun. Single calls are timed, since a mean hides the slow ones that hold up a whole job.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from .measure import EventClock, HostClock

SIZES_BYTES = tuple(2**power for power in range(10, 31, 2))
"""1 KiB to 1 GiB."""
WARMUP_CALLS = 5
BUDGET_BYTES = 16 * 2**30
"""Traffic per size, so that large messages do not take minutes."""


@dataclass(frozen=True)
class SizeResult:
    """One message size on one rank. Bandwidths in bytes per second; times in seconds."""

    message_bytes: int
    calls: int
    p50_s: float
    p99_s: float
    max_s: float
    bus_bytes_per_second: float

    @property
    def jitter(self) -> float:
        """How much longer the 99th percentile took than the median, as a fraction."""
        return self.p99_s / self.p50_s - 1.0


@dataclass(frozen=True)
class SweepResult:
    """A sweep; `steal` is the share of CPU time during it that the hypervisor gave to others (None: unknown)."""

    world_size: int
    backend: str
    sizes: tuple[SizeResult, ...]
    steal: float | None


def bus_bandwidth(message_bytes: int, seconds: float, world_size: int) -> float:
    """Return bytes per second through each rank's link, comparable over world sizes.

    Source: NVIDIA nccl-tests, doc/PERFORMANCE.md: a ring sends 2 (n - 1) / n of the message over every link.
    """
    return 2 * (world_size - 1) / world_size * message_bytes / seconds


def sweep(
    device: torch.device, calls: int, sizes: Sequence[int] = SIZES_BYTES, dtype: torch.dtype = torch.float32
) -> SweepResult:
    """Measure every size; every rank of the world must call this."""
    before = _cpu_times()
    results = tuple(_one_size(size, calls, device, dtype) for size in sizes)
    return SweepResult(dist.get_world_size(), str(dist.get_backend()), results, _steal(before, _cpu_times()))


def _one_size(message_bytes: int, calls: int, device: torch.device, dtype: torch.dtype) -> SizeResult:
    message = torch.ones(max(1, message_bytes // dtype.itemsize), dtype=dtype, device=device)
    calls = max(10, min(calls, BUDGET_BYTES // message_bytes))
    for _ in range(WARMUP_CALLS):
        dist.all_reduce(message)
    dist.barrier()
    clock = EventClock() if device.type == "cuda" else HostClock()
    clock.mark()
    for _ in range(calls):
        dist.all_reduce(message)
        clock.mark()
    times = sorted(clock.intervals_s())
    median = statistics.median(times)
    p99 = times[min(len(times) - 1, int(0.99 * len(times)))]
    bandwidth = bus_bandwidth(message_bytes, median, dist.get_world_size())
    return SizeResult(message_bytes, calls, median, p99, times[-1], bandwidth)


def table(result: SweepResult) -> str:
    """Return the sweep as text."""
    steal = "unknown" if result.steal is None else f"{result.steal:.2%}"
    lines = [
        f"all-reduce over {result.world_size} ranks, {result.backend}; CPU steal {steal}",
        f"{'bytes':>12} {'calls':>6} {'p50 us':>11} {'p99 us':>11} {'max us':>11} {'jitter':>8} {'bus GB/s':>9}",
    ]
    for size in result.sizes:
        lines.append(
            f"{size.message_bytes:12d} {size.calls:6d} {size.p50_s * 1e6:11.1f} {size.p99_s * 1e6:11.1f} "
            f"{size.max_s * 1e6:11.1f} {size.jitter:8.1%} {size.bus_bytes_per_second / 1e9:9.2f}"
        )
    return "\n".join(lines)


def _cpu_times(path: Path = Path("/proc/stat")) -> tuple[int, int] | None:
    """Return (all, stolen) jiffies since boot, or None where the kernel does not tell."""
    if not path.exists():
        return None
    fields = [int(text) for text in path.read_text(encoding="ascii").splitlines()[0].split()[1:9]]
    return sum(fields), fields[7]


def _steal(before: tuple[int, int] | None, after: tuple[int, int] | None) -> float | None:
    if before is None or after is None or after[0] == before[0]:
        return None
    return (after[1] - before[1]) / (after[0] - before[0])


def now() -> str:
    """Return the time in ISO 8601, UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
