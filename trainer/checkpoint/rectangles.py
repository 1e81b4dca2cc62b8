"""Parts of global tensors as rectangles, in the form that PyTorch DCP plans with.

A rank owns a flat run of a parameter's local tensor. In row-major order that run is at most three rectangles (the rest
of a row, whole rows, the start of a row), each a view without a copy. DCP cuts and joins rectangles on load, so any
layout can read what any other wrote. Private protocol of DCP (checked with torch 2.13): `__create_write_items__`,
`__create_chunk_list__`, `__get_tensor_shard__`. Numeric test: tests/unit/trainer/test_checkpoint_layouts.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import ReadItem, TensorWriteData, WriteItem, WriteItemType

from ..errors import StopError


@dataclass(frozen=True)
class RowBlock:
    """Local rows [local_start, local_start + rows) are global rows [global_start, ...)."""

    local_start: int
    global_start: int
    rows: int


@dataclass(frozen=True)
class Rectangle:
    """A view whose shape is the rectangle's, and its place in the global tensor."""

    offsets: tuple[int, ...]
    tensor: Tensor


class Shards:
    """All rectangles of one global tensor that this rank holds."""

    def __init__(self, global_shape: Sequence[int]) -> None:
        self._shape = torch.Size(global_shape)
        self.rectangles: list[Rectangle] = []

    def size(self) -> torch.Size:
        """Shape of the global tensor; DCP compares it with the stored one."""
        return self._shape

    def __create_write_items__(self, name: str, _: object) -> list[WriteItem]:
        return [
            WriteItem(
                index=MetadataIndex(name, torch.Size(rectangle.offsets)),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    chunk=chunk, properties=TensorProperties.create_from_tensor(rectangle.tensor), size=self._shape
                ),
            )
            for rectangle, chunk in zip(self.rectangles, self.__create_chunk_list__())
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [
            ChunkStorageMetadata(offsets=torch.Size(rectangle.offsets), sizes=rectangle.tensor.size())
            for rectangle in self.rectangles
        ]

    def __get_tensor_shard__(self, index: MetadataIndex) -> Tensor:
        for rectangle in self.rectangles:
            if torch.Size(rectangle.offsets) == index.offset:
                return rectangle.tensor
        raise KeyError(f"{index.fqn} has no rectangle at {index.offset}")


def cut(
    flat: Tensor, start: int, local_shape: Sequence[int], blocks: Sequence[RowBlock], column_start: int
) -> Iterator[Rectangle]:
    """Yield the rectangles of a flat run.

    Args:
        flat: the run's elements, contiguous.
        start: position of its first element in the flattened local tensor.
        local_shape: shape of the local tensor, one or two dims.
        blocks: where the local rows lie in the global tensor.
        column_start: global column of local column 0.
    """
    width = local_shape[1] if len(local_shape) == 2 else 1
    for low, high, first_column, columns in _runs(start, flat.numel(), width):
        for block in blocks:
            top, bottom = max(low, block.local_start), min(high, block.local_start + block.rows)
            if top >= bottom:
                continue
            begin = top * width + first_column - start
            piece = flat.narrow(0, begin, (bottom - top) * columns)
            row = block.global_start + top - block.local_start
            if len(local_shape) == 1:
                yield Rectangle((row,), piece)
            else:
                yield Rectangle((row, column_start + first_column), piece.view(bottom - top, columns))


def _runs(start: int, length: int, width: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield (first row, last row + 1, first column, columns) of the parts of a flat run."""
    stop = start + length
    while start < stop:
        row, column = divmod(start, width)
        if column or stop - start < width:
            columns = min(width - column, stop - start)
            yield row, row + 1, column, columns
            start += columns
        else:
            rows = (stop - start) // width
            yield row, row + rows, 0, width
            start += rows * width


class RectangleSavePlanner(DefaultSavePlanner):
    """Plans a dictionary of Shards."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False, dedup_save_to_lowest_rank=True)

    def lookup_object(self, index: MetadataIndex) -> Any:
        return self.state_dict[index.fqn].__get_tensor_shard__(index)


class RectangleLoadPlanner(DefaultLoadPlanner):
    """Plans the load of a dictionary of Shards, into the views themselves."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def set_up_planner(
        self, state_dict: dict[str, Any], metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        # The inherited method replaces every object that is no tensor by None.
        self.original_state_dict = self.state_dict = state_dict
        self.metadata, self.is_coordinator = metadata, is_coordinator

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        tensor: Tensor = self.state_dict[index.fqn].__get_tensor_shard__(index)
        return tensor

    def load_bytes(self, read_item: ReadItem, value: object) -> None:
        raise StopError(f"the checkpoint holds a pickled object under {read_item.dest_index.fqn}; it is not read")
