"""Synthetic tokens that a model can learn from, equal for every program that is compared."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .case import BenchCase

# Every second token follows from the one before; the factor is odd and the offset is not 0, so most tokens move.
_FACTOR, _OFFSET = 31, 7


@dataclass(frozen=True)
class SyntheticTokens:
    """Log-uniform (Zipf-like) tokens in pairs: the first is drawn, the second is a function of the first.

    The loss falls fast at first (frequencies), then toward half the entropy (pairs): a wrong gradient shows.
    """

    vocab_size: int
    sequence_length: int
    seed: int = 1234

    def batch(self, first_sample: int, samples: int) -> tuple[Tensor, Tensor]:
        """Return tokens and labels, each (samples, sequence_length), of the samples from `first_sample` on."""
        rows = torch.stack([self._row(first_sample + index) for index in range(samples)])
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

    def _row(self, sample: int) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + sample)
        pairs = self.sequence_length // 2 + 1
        uniform = torch.rand(pairs, generator=generator, dtype=torch.float64)
        drawn = (self.vocab_size**uniform).long() - 1
        following = (drawn * _FACTOR + _OFFSET) % self.vocab_size
        return torch.stack((drawn, following), dim=1).flatten()[: self.sequence_length + 1]


@dataclass(frozen=True)
class Batches:
    """Micro-batches of one data-parallel rank, on its device."""

    source: SyntheticTokens
    case: BenchCase
    dp_rank: int
    device: torch.device

    def micro_batch(self, step: int, index: int) -> tuple[Tensor, Tensor]:
        """Return tokens and labels; ranks are dealt the samples of a step micro-batch by micro-batch."""
        per_round = self.case.micro_batch_size * self.case.data_parallel_size
        first = step * self.case.global_batch_size + index * per_round + self.dp_rank * self.case.micro_batch_size
        tokens, labels = self.source.batch(first, self.case.micro_batch_size)
        if self.device.type == "cuda":
            return (
                tokens.pin_memory().to(self.device, non_blocking=True),
                labels.pin_memory().to(self.device, non_blocking=True),
            )
        return tokens, labels
