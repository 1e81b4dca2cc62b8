"""Dynamic loss scale for float16 training (Micikevicius et al. 2018): halve on overflow, double after a quiet time."""

from __future__ import annotations


class LossScale:
    """The factor that keeps small float16 gradients above zero."""

    def __init__(self, initial: float = 2.0**16, growth_interval: int = 1000) -> None:
        self.value = initial
        self._interval, self._good = growth_interval, 0

    def update(self, finite: bool) -> None:
        """Adapt after a step whose gradients were finite or not."""
        if not finite:
            self.value, self._good = max(1.0, self.value / 2.0), 0
            return
        self._good += 1
        if self._good >= self._interval:
            self.value, self._good = self.value * 2.0, 0
