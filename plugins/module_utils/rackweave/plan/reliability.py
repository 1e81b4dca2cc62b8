"""Expected failures, checkpoint cost and interval, and the share of time that trains (ETTR)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from .architecture import Architecture
from .machine import Machine

DAY_S = 86400.0
FAILURES_PER_NODE_DAY = 6.5e-3  # Meta RSC-1, arXiv:2410.21680
RESTART_S = 600.0  # detection, requeue and load; assumed
STORAGE_BYTES_PER_SECOND_PER_NODE = 2e9  # of a shared file system; assumed
_CHECKPOINT_BYTES = 14  # a parameter: 16-bit weights, fp32 master and two moments
_HOST_LINK_SHARE = 0.75


@dataclass(frozen=True)
class Reliability:
    """What failures cost a job; times in seconds."""

    failures_per_day: float
    checkpoint_bytes: float
    blocking_s: float
    background_s: float
    interval_s: float
    effective_ratio: float

    def as_dict(self) -> dict[str, Any]:
        """Return the `reliability` object of plan.json."""
        return {
            "origin": "predicted",
            "failures_per_day": round(self.failures_per_day, 4),
            "mean_time_between_failures_h": round(24 / self.failures_per_day, 1),
            "checkpoint_gb": round(self.checkpoint_bytes / 1e9, 1),
            "checkpoint_blocking_s": round(self.blocking_s, 2),
            "checkpoint_background_s": round(self.background_s, 1),
            "checkpoint_interval_s": round(self.interval_s, 1),
            "effective_training_time_ratio": round(self.effective_ratio, 4),
            "assumptions": [
                f"{FAILURES_PER_NODE_DAY} failures per node and day (Meta RSC-1, arXiv:2410.21680)",
                f"{RESTART_S:.0f} s to detect, requeue and load again (assumed)",
                f"{STORAGE_BYTES_PER_SECOND_PER_NODE / 1e9:g} GB/s of storage per node (assumed)",
                "interval sqrt(2 w / (N r)) (Young 1974); ETTR (1 - N r (u + t/2)) / (1 + w/t) (arXiv:2410.21680)",
            ],
        }


def reliability(model: Architecture, machine: Machine, gpus: int) -> Reliability:
    """Return what failures and checkpoints cost a job on so many GPUs.

    The blocking part of an asynchronous save is the copy to host memory; the next save cannot begin before the last
    one is written, so the interval is at least the background time.
    """
    nodes = -(-gpus // machine.gpus_per_host)
    size = float(_CHECKPOINT_BYTES * model.parameters)
    blocking = size / gpus / (_HOST_LINK_SHARE * machine.gpu.host_link_bytes_per_second)
    background = size / (nodes * STORAGE_BYTES_PER_SECOND_PER_NODE)
    rate = nodes * FAILURES_PER_NODE_DAY / DAY_S
    interval = max(best_interval(blocking, rate), background)
    return Reliability(
        failures_per_day=nodes * FAILURES_PER_NODE_DAY,
        checkpoint_bytes=size,
        blocking_s=blocking,
        background_s=background,
        interval_s=interval,
        effective_ratio=effective_ratio(rate, RESTART_S, interval, blocking),
    )


def best_interval(write_s: float, failures_per_second: float) -> float:
    """Return the checkpoint interval of least loss, in seconds (Young 1974)."""
    return math.sqrt(2 * write_s / failures_per_second)


def effective_ratio(failures_per_second: float, restart_s: float, interval_s: float, write_s: float) -> float:
    """Return the share of time that trains (arXiv:2410.21680), at least 0."""
    lost = failures_per_second * (restart_s + interval_s / 2)
    return max(0.0, (1 - lost) / (1 + write_s / interval_s))
