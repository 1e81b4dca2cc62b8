"""Global names of parameters, and which part of the global tensor a rank holds.

The same table drives seeded initialisation, checkpoints and imports, so a layout is described in one place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..config import ModelConfig
from .stage import Stage

_LAYER = re.compile(r"^decoder\.layers\.(\d+)\.")
_SPLIT_ROWS = tuple(
    f"{linear}.{kind}" for linear in ("linear_qkv", "linear_fc1") for kind in ("weight", "bias", "lora_b")
)
_SPLIT_ROWS_OUTSIDE = ("word_embeddings.weight", "output_layer.weight")
_SPLIT_COLUMNS = tuple(f"{linear}.{kind}" for linear in ("linear_proj", "linear_fc2") for kind in ("weight", "lora_a"))


@dataclass(frozen=True)
class Piece:
    """A block of rows of a local tensor: local rows [local_start, ...) are global rows [global_start, ...)."""

    local_start: int
    global_start: int
    rows: int


@dataclass(frozen=True)
class ParameterInfo:
    """Where a local parameter lies in the whole model.

    Attributes:
        name: global name, equal in every layout.
        global_shape: shape of the whole tensor.
        pieces: blocks of rows (dim 0) that this rank holds; one for most, two for a gated fc1.
        column_start: first global column of a tensor split on dim 1, else 0.
        split_dim: dim that is split over the tensor group, or None for a replicated tensor.
        parameter: the local tensor.
    """

    name: str
    global_shape: tuple[int, ...]
    pieces: tuple[Piece, ...]
    column_start: int
    split_dim: int | None
    parameter: nn.Parameter

    def take(self, whole: Tensor) -> Tensor:
        """Return the part of a whole tensor that this rank holds."""
        rows = torch.cat([whole[piece.global_start : piece.global_start + piece.rows] for piece in self.pieces])
        if self.split_dim != 1:
            return rows
        return rows[:, self.column_start : self.column_start + self.parameter_shape[1]].contiguous()

    @property
    def parameter_shape(self) -> tuple[int, ...]:
        """Shape of the local tensor, also where ZeRO-3 has taken the tensor's content away."""
        shape = getattr(self.parameter, "ds_shape", self.parameter.shape)
        return tuple(shape)


def stage_parameters(
    stages: Sequence[Stage], model: ModelConfig, tp_rank: int, tp_size: int
) -> Iterator[ParameterInfo]:
    """Yield every parameter of this rank's chunks; call it before an engine changes the parameters' shapes."""
    for stage in stages:
        for local_name, parameter in stage.named_parameters():
            name = global_name(local_name, stage.span.first_layer)
            yield describe(name, parameter, model, tp_rank, tp_size)


def global_name(local_name: str, first_layer: int) -> str:
    """Return the name that a parameter has in the whole model."""
    match = _LAYER.match(local_name)
    if match is None:
        return local_name
    return f"decoder.layers.{int(match.group(1)) + first_layer}.{local_name[match.end() :]}"


def describe(name: str, parameter: nn.Parameter, model: ModelConfig, tp_rank: int, tp_size: int) -> ParameterInfo:
    """Return where a local parameter of this tensor rank lies in the whole model."""
    shape = list(parameter.shape)
    if name.endswith(_SPLIT_COLUMNS):
        column_start = shape[1] * tp_rank
        shape[1] *= tp_size
        return ParameterInfo(name, tuple(shape), (Piece(0, 0, shape[0]),), column_start, 1, parameter)
    if not name.endswith(_SPLIT_ROWS + _SPLIT_ROWS_OUTSIDE):
        return ParameterInfo(name, tuple(shape), (Piece(0, 0, shape[0]),), 0, None, parameter)
    local_rows = shape[0]
    shape[0] *= tp_size
    pieces: tuple[Piece, ...]
    if model.activation == "swiglu" and "linear_fc1" in name:
        half = local_rows // 2
        # Gate and up-projection are two whole matrices; a rank holds its slice of each, one after the other.
        pieces = (Piece(0, half * tp_rank, half), Piece(half, half * tp_size + half * tp_rank, half))
    else:
        pieces = (Piece(0, local_rows * tp_rank, local_rows),)
    return ParameterInfo(name, tuple(shape), pieces, 0, 0, parameter)
