"""Samples by global index: sample g is the same tokens in every layout and after every resume.

Order depends on the seed, the corpora and g only - not on the number of steps, ranks or attempts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..config import CorpusConfig, SizesConfig
from ..errors import StopError
from .indexed import IndexedCorpus

GOLDEN_RATIO = 0.6180339887498949
BLOCK = 65536


class ShuffledCorpus:
    """Cuts a corpus into sequences; each epoch has its own order of documents and of sequences."""

    def __init__(self, corpus: IndexedCorpus, sequence_length: int, seed: int) -> None:
        self._corpus, self._length, self._seed = corpus, sequence_length, seed
        self._lengths = corpus.document_lengths
        tokens = int(self._lengths.sum())
        self.samples_per_epoch = (tokens - 1) // sequence_length
        if self.samples_per_epoch < 1:
            raise StopError(
                f"{corpus.prefix} has {tokens} tokens in {len(self._lengths)} documents, too few for one sequence of "
                f"sequence_length={sequence_length} and its label"
            )
        self._epoch = -1
        self._prepare(0)

    def sample(self, index: int) -> npt.NDArray[np.int64]:
        """Return sequence_length + 1 tokens; `index` counts from zero over all epochs."""
        epoch, position = divmod(index, self.samples_per_epoch)
        self._prepare(epoch)
        start = int(self._order[position]) * self._length
        return self._tokens(start, start + self._length + 1)

    def _prepare(self, epoch: int) -> None:
        if epoch == self._epoch:
            return
        generator = np.random.Generator(np.random.PCG64([self._seed, epoch]))
        self._documents = generator.permutation(len(self._lengths))
        self._starts = np.concatenate(([0], np.cumsum(self._lengths[self._documents])))
        self._order = generator.permutation(self.samples_per_epoch)
        self._epoch = epoch

    def _tokens(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        parts, place = [], int(np.searchsorted(self._starts, start, side="right")) - 1
        while start < stop:
            end = min(stop, int(self._starts[place + 1]))
            offset = int(self._starts[place])
            parts.append(self._corpus.read(int(self._documents[place]), start - offset, end - offset))
            start, place = end, place + 1
        return np.concatenate(parts).astype(np.int64)


class Blend:
    """Draws from several corpora in proportion to weights, evenly at every scale.

    Sample g comes from the corpus whose share of [0, 1) holds the fractional part of g * golden ratio (a Kronecker
    sequence), so the choice needs no state; only the position inside a corpus is counted, block by block.
    """

    def __init__(self, corpora: Sequence[ShuffledCorpus], weights: Sequence[float]) -> None:
        self._corpora = corpora
        self._edges = np.cumsum(np.asarray(weights, dtype=np.float64) / sum(weights))[:-1]
        self._counts = [np.zeros(len(corpora), dtype=np.int64)]

    def sample(self, index: int) -> npt.NDArray[np.int64]:
        """Return the tokens of global sample `index`."""
        if len(self._corpora) == 1:
            return self._corpora[0].sample(index)
        block, offset = divmod(index, BLOCK)
        while len(self._counts) <= block:
            self._counts.append(self._counts[-1] + self._count(len(self._counts) - 1, BLOCK))
        which = int(self._choices(np.asarray([index]))[0])
        before = self._counts[block] + self._count(block, offset)
        return self._corpora[which].sample(int(before[which]))

    def _choices(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return np.searchsorted(self._edges, (indices * GOLDEN_RATIO) % 1.0, side="right")

    def _count(self, block: int, length: int) -> npt.NDArray[np.int64]:
        choices = self._choices(np.arange(block * BLOCK, block * BLOCK + length))
        return np.bincount(choices, minlength=len(self._corpora))


@dataclass(frozen=True)
class Batch:
    """One micro-batch: tokens and labels, (micro_batch_size, sequence_length), int64."""

    tokens: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]


class Sampler:
    """Gives a data-parallel rank its micro-batches of a step."""

    def __init__(self, blend: Blend, sizes: SizesConfig, dp_rank: int, vocab_size: int, offset: int = 0) -> None:
        """`offset` is the global index of the first sample of step 0; not 0 after a change of the batch size."""
        self._blend, self._sizes, self._dp_rank, self._vocab_size = blend, sizes, dp_rank, vocab_size
        self.offset = offset

    def micro_batch(self, step: int, index: int) -> Batch:
        """Return micro-batch `index` of optimizer step `step` (both from zero).

        Raises:
            StopError: if a token lies outside the model's vocabulary.
        """
        sizes = self._sizes
        row = index * sizes.data_parallel_size + self._dp_rank
        first = self.offset + step * sizes.global_batch_size + row * sizes.micro_batch_size
        rows = np.stack([self._blend.sample(first + offset) for offset in range(sizes.micro_batch_size)])
        lowest, highest = int(rows.min()), int(rows.max())
        if lowest < 0 or highest >= self._vocab_size:
            raise StopError(
                f"sample {first} holds the token {lowest if lowest < 0 else highest}, the model has "
                f"vocab_size={self._vocab_size}: the corpus was made with another tokenizer"
            )
        return Batch(rows[:, :-1], rows[:, 1:])


def open_blend(corpora: Sequence[CorpusConfig], sequence_length: int, seed: int) -> Blend:
    """Open corpora for sampling.

    Raises:
        StopError: if a file is missing, corrupt or too small for one sequence.
    """
    opened = [
        ShuffledCorpus(IndexedCorpus(corpus.prefix), sequence_length, seed + number)
        for number, corpus in enumerate(corpora)
    ]
    return Blend(opened, [corpus.weight for corpus in corpora])
