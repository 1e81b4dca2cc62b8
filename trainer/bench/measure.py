"""Step times by device events, memory peaks, and model FLOPs as Megatron counts them."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Callable

import torch
from torch import Tensor

from ..config import ModelConfig

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


def measure(step: Callable[[int], Tensor], warmup: int, timed: int, device: torch.device) -> Measurement:
    """Call `step(index)` warmup + timed times; it returns the loss as a device tensor that nothing waits for."""
    losses = [step(index).detach().clone() for index in range(warmup)]
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    clock = _EventClock() if device.type == "cuda" else _HostClock()
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


class _EventClock:
    def __init__(self) -> None:
        self._events: list[torch.cuda.Event] = []

    def mark(self) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._events.append(event)

    def intervals_s(self) -> tuple[float, ...]:
        torch.cuda.synchronize()
        return tuple(first.elapsed_time(second) / 1e3 for first, second in zip(self._events, self._events[1:]))


class _HostClock:
    def __init__(self) -> None:
        self._times: list[float] = []

    def mark(self) -> None:
        self._times.append(time.perf_counter())

    def intervals_s(self) -> tuple[float, ...]:
        return tuple(second - first for first, second in zip(self._times, self._times[1:]))


def flops_per_token(model: ModelConfig) -> float:
    """Return model FLOPs per token, forward and backward (3 x forward), full attention, nothing recomputed.

    Source: Narayanan et al. 2021, section 5.1, without its factor for recomputation; a gated feed-forward has three
    matrices, grouped queries have smaller key and value projections.
    """
    heads_width = model.head_dim * model.num_attention_heads
    keys_width = model.head_dim * model.num_query_groups
    projections = 2 * model.hidden_size * (2 * heads_width + 2 * keys_width)
    attention = 4 * model.sequence_length * heads_width
    matrices = 3 if model.activation == "swiglu" else 2
    feed_forward = 2 * matrices * model.hidden_size * model.ffn_hidden_size
    logits = 2 * model.hidden_size * model.vocab_size
    return 3.0 * (model.num_layers * (projections + attention + feed_forward) + logits)
