"""A whole micro-batch, forward and backward, as one CUDA graph: one launch instead of a thousand.

Only for programs that allocate the same each time, call no collective and draw no random number.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

WARMUP_CALLS = 3
"""Calls before the capture: compilation, cuBLAS workspaces and autotuning must not be captured."""


class GraphedMicroBatch:
    """Replays `run(tokens, labels) -> loss` on static buffers.

    The caller must clear the gradients that warm-up and capture leave behind.
    """

    def __init__(self, run: Callable[[Tensor, Tensor], Tensor], tokens: Tensor, labels: Tensor) -> None:
        self._tokens, self._labels = tokens.clone(), labels.clone()
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARMUP_CALLS):
                run(self._tokens, self._labels)
        torch.cuda.current_stream().wait_stream(side)
        # Compilation leaves reference cycles that hold activations; uncollected they would double the peak.
        gc.collect()
        torch.cuda.empty_cache()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._loss = run(self._tokens, self._labels)
        # What warm-up needed outside of the graph's pool is needed no more.
        torch.cuda.empty_cache()

    def __call__(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """Return the loss tensor of the graph; the next call overwrites it."""
        self._tokens.copy_(tokens, non_blocking=True)
        self._labels.copy_(labels, non_blocking=True)
        self._graph.replay()
        return self._loss
