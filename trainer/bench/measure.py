"""Step times by device events, and memory peaks."""

from __future__ import annotations

import statistics
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Callable

import torch
from torch import Tensor

GIB = 1024**3


@dataclass(frozen=True)
class Measurement:
    """What a run of a program showed. Memory is None where there is no GPU; `losses` holds every step, warm-up too."""

    step_times_s: tuple[float, ...]
    losses: tuple[float, ...]
    max_allocated_gib: float | None
    max_reserved_gib: float | None
    device_used_gib: float | None
    """Whole device at the end, CUDA context included: what nvidia-smi shows."""

    @property
    def step_time_s(self) -> float:
        """Median over the timed steps."""
        return statistics.median(self.step_times_s)


def measure(
    step: Callable[[int], Tensor],
    warmup: int,
    timed: int,
    device: torch.device,
    alone: AbstractContextManager[object] | None = None,
) -> Measurement:
    """Call `step(index)` warmup + timed times; it returns the loss as a device tensor that nothing waits for.

    Args:
        step: trains one step.
        warmup: steps before the clock starts; the first of them compiles.
        timed: steps that are timed.
        device: where the step runs.
        alone: entered for all steps but the first, e.g. a lock that other processes on the device take too.
    """
    losses = [step(0).detach().clone()]
    with alone or nullcontext():
        losses += [step(index).detach().clone() for index in range(1, warmup)]
        if device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        clock = EventClock() if device.type == "cuda" else HostClock()
        clock.mark()
        for index in range(warmup, warmup + timed):
            losses.append(step(index).detach().clone())
            clock.mark()
        times = clock.intervals_s()
    return Measurement(times, tuple(float(loss) for loss in losses), *_memory(device))


def _memory(device: torch.device) -> tuple[float | None, float | None, float | None]:
    if device.type != "cuda":
        return None, None, None
    free, total = torch.cuda.mem_get_info()
    return torch.cuda.max_memory_allocated() / GIB, torch.cuda.max_memory_reserved() / GIB, (total - free) / GIB


class EventClock:
    """Marks on the device's own time line; nothing waits until the intervals are asked for."""

    def __init__(self) -> None:
        self._events: list[torch.cuda.Event] = []

    def mark(self) -> None:
        """Note the present."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        self._events.append(event)

    def intervals_s(self) -> tuple[float, ...]:
        """Return the seconds between marks."""
        torch.cuda.synchronize()
        return tuple(first.elapsed_time(second) / 1e3 for first, second in zip(self._events, self._events[1:]))


class HostClock:
    """The same where work is done when a call returns."""

    def __init__(self) -> None:
        self._times: list[float] = []

    def mark(self) -> None:
        """Note the present."""
        self._times.append(time.perf_counter())

    def intervals_s(self) -> tuple[float, ...]:
        """Return the seconds between marks."""
        return tuple(second - first for first, second in zip(self._times, self._times[1:]))
