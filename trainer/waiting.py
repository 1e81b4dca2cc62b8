"""How much of a step is a rank's own work, and how much it waits for others: the slow rank is the one that never waits.

On CPU a collective blocks in `Work.wait`, whoever calls it (our code, Megatron, DeepSpeed), so that is where the
waiting is counted. On CUDA the same call only queues work, the host's clock says nothing, and nothing is reported.
"""

from __future__ import annotations

import functools
import time
from typing import Any

import torch
import torch.distributed as dist


class OwnTime:
    """Seconds between two laps that this rank did not spend waiting; None where that cannot be told."""

    def __init__(self, device: torch.device) -> None:
        """Begin the first lap; on CPU, waiting is counted from now on for the whole process."""
        self._counts = device.type == "cpu" and _count_waiting()
        self.restart()

    def restart(self) -> None:
        """Begin a lap anew: what was done since the last one (a save, an evaluation) is no part of a step."""
        self._began, self._waited = time.perf_counter(), _WAITED[0]

    def lap(self) -> float | None:
        """Return the own seconds since the last lap."""
        if not self._counts:
            return None
        own = time.perf_counter() - self._began - (_WAITED[0] - self._waited)
        return max(own, 0.0)


# Seconds that the training thread has spent in Work.wait; one process trains in one thread.
_WAITED = [0.0]


def _count_waiting() -> bool:
    """Let `Work.wait` add up its time; True if it does. Calling this again changes nothing."""
    kind: Any = dist.Work
    original = kind.wait
    if getattr(original, "counts_waiting", False):
        return True

    @functools.wraps(original)
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return original(self, *args, **kwargs)
        finally:
            _WAITED[0] += time.perf_counter() - began

    wait.__dict__["counts_waiting"] = True
    try:
        kind.wait = wait
    except (AttributeError, TypeError):  # a build of torch that seals its types
        return False
    return True
