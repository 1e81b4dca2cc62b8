"""Weights that depend on the seed and the global name only: every layout starts from the same model.

A matrix is drawn in blocks of lines along the dim that tensor parallelism splits. Each block has a generator of its
own, so a rank draws what it holds and no more, on as many threads as it may use.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..config import ModelConfig
from ..mesh import Mesh
from .partition import ParameterInfo, stage_parameters
from .stage import Stage

STANDARD_DEVIATION = 0.02
BLOCK_ELEMENTS = 1 << 20
"""Elements of a block: enough to keep a thread busy for ten milliseconds, few enough to waste little at the edges."""

LocalTensor = Callable[[ParameterInfo], Tensor]
"""Gives the part of a parameter that this rank holds, float32 on the CPU."""


@dataclass(frozen=True)
class _Block:
    """Lines [start, stop) of a block, counted in the block, that go to lines [target, ...) of the local tensor."""

    number: int
    start: int
    stop: int
    target: int


class SeededWeights:
    """Draws initial weights.

    Matrices are normal(0, 0.02), those that write to the residual stream divided by sqrt(2 * num_layers) (GPT-2). An
    adapter starts as zero: its A is random, its B is not.
    """

    def __init__(self, model: ModelConfig, seed: int, threads: int) -> None:
        self._model, self._seed, self._threads = model, seed, threads

    def __call__(self, info: ParameterInfo) -> Tensor:
        """Return this rank's part of a parameter."""
        name = "embedding.word_embeddings.weight" if is_tied_copy(info.name, self._model) else info.name
        shape = info.parameter_shape
        if name.endswith((".bias", ".lora_b")):
            return torch.zeros(shape)
        if len(shape) == 1:
            return torch.ones(shape)
        out = torch.empty(shape)
        # Along the split dim, so that a rank draws only its own part of it.
        lines = out.t() if info.split_dim == 1 else out
        per_block = max(1, BLOCK_ELEMENTS // lines.shape[1])
        draw = _Drawing(f"{self._seed}:{name}", self._deviation(name, info), per_block, lines)
        total = info.global_shape[1 if info.split_dim == 1 else 0]
        for _ in self._map(draw, [(block, total) for block in _blocks(info, per_block, lines.shape[0])]):
            pass
        return out

    def _map(self, draw: _Drawing, work: list[tuple[_Block, int]]) -> Iterable[None]:
        if self._threads < 2 or len(work) < 2:
            return map(draw, work)
        # PyTorch lets go of the interpreter while it draws.
        with ThreadPoolExecutor(self._threads) as pool:
            return list(pool.map(draw, work))

    def _deviation(self, name: str, info: ParameterInfo) -> float:
        if name.endswith(".lora_a"):
            return 1.0 / math.sqrt(info.global_shape[1])
        if name.endswith(("linear_proj.weight", "linear_fc2.weight")):
            return STANDARD_DEVIATION / math.sqrt(2 * self._model.num_layers)
        return STANDARD_DEVIATION


@dataclass(frozen=True)
class _Drawing:
    identity: str
    deviation: float
    per_block: int
    lines: Tensor

    @torch.no_grad()
    def __call__(self, work: tuple[_Block, int]) -> None:
        block, total = work
        digest = hashlib.sha256(f"{self.identity}:{block.number}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))
        # What a generator gives depends on how much is asked of it, so a block is always drawn whole.
        count = min(self.per_block, total - block.number * self.per_block)
        drawn = torch.randn(count, self.lines.shape[1], generator=generator)
        target = self.lines[block.target : block.target + block.stop - block.start]
        torch.mul(drawn[block.start : block.stop], self.deviation, out=target)


def _blocks(info: ParameterInfo, per_block: int, held: int) -> Iterator[_Block]:
    """Yield the blocks that a rank needs of a matrix of which it holds `held` lines along the split dim."""
    if info.split_dim == 1:
        spans = [(info.column_start, 0, held)]
    else:
        spans = [(piece.global_start, piece.local_start, piece.rows) for piece in info.pieces]
    for first, local, count in spans:
        position = first
        while position < first + count:
            number, start = divmod(position, per_block)
            stop = min(per_block, start + first + count - position)
            yield _Block(number, start, stop, local + position - first)
            position += stop - start


def no_weights(info: ParameterInfo) -> Tensor:
    """Return zeros: for a model whose every weight comes out of a checkpoint."""
    return torch.zeros(info.parameter_shape)


def hollow(stages: Sequence[Stage], model: ModelConfig, mesh: Mesh) -> None:
    """Give parameters that were built on the meta device their real device, but no memory; mark the split ones.

    A hollow parameter has shape, type and device of the real one and a single element of memory. An engine puts the
    values where it wants them; `fill` gives a parameter memory of its own.
    """
    for module in (module for stage in stages for module in stage.modules()):
        for name, parameter in module.named_parameters(recurse=False):
            made = torch.zeros(1, dtype=parameter.dtype, device=mesh.device).expand(parameter.shape)
            replaced = nn.Parameter(made, requires_grad=parameter.requires_grad)
            # Megatron's marks (allreduce, sequence_parallel, ...) are attributes of the parameter.
            replaced.__dict__.update(parameter.__dict__)
            module.register_parameter(name, replaced)
    for info in stage_parameters(stages, model, mesh.where.tp_rank, mesh.sizes.tensor_parallel_size):
        # DeepSpeed counts a parameter without this mark once per tensor group; Megatron sets it only when it
        # initialises weights itself.
        info.parameter.tensor_model_parallel = info.split_dim is not None  # type: ignore[attr-defined]
        info.parameter.partition_dim = -1 if info.split_dim is None else info.split_dim  # type: ignore[attr-defined]


@torch.no_grad()
def fill(infos: Iterable[ParameterInfo], weights: LocalTensor) -> None:
    """Give hollow parameters memory and values; one local tensor at a time is on the CPU beside them."""
    for info in infos:
        parameter = info.parameter
        parameter.data = torch.empty(parameter.shape, dtype=parameter.dtype, device=parameter.device)
        parameter.copy_(weights(info))


def is_tied_copy(name: str, model: ModelConfig) -> bool:
    """Tell whether a parameter is the last stage's copy of the tied word embeddings."""
    return model.tied_embeddings and name == "output_layer.weight"
