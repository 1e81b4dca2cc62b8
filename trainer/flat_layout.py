"""Where each parameter lies in one flat buffer, and which part of it a data-parallel rank owns.

Parameters of one kind (decayed or not, counted in the gradient norm or not) lie together, so that one kernel steps them
all; buckets are the pieces of that order that are reduced and gathered at a time. No tensors here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby, product
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

# Elements. 128 fp32 elements are 512 bytes: every shard starts where vector loads and NCCL's 16-byte path want it.
ALIGNMENT = 128


@dataclass(frozen=True)
class ParameterSpec:
    """What the layout must know of one parameter."""

    name: str
    shape: tuple[int, ...]
    decayed: bool
    """Weight decay applies."""
    counted: bool
    """Counts in this rank's gradient norm; False on copies that another rank counts (replicated or tied weights)."""
    unit: str = ""
    """The layer of a matrix: one bucket of its own, which may come and go (ZeRO 2 and 3). Empty: always resident."""

    @property
    def numel(self) -> int:
        """Number of elements."""
        return prod(self.shape)


@dataclass(frozen=True)
class Slot:
    """One parameter in the flat buffer, in elements."""

    spec: ParameterSpec
    start: int

    @property
    def end(self) -> int:
        """First element after the parameter."""
        return self.start + self.spec.numel


@dataclass(frozen=True)
class Bucket:
    """A contiguous piece of the flat buffer that is reduced and gathered in one collective."""

    start: int
    numel: int
    slots: tuple[Slot, ...]

    @property
    def unit(self) -> str:
        """The unit of all its parameters, empty for a resident bucket."""
        return self.slots[0].spec.unit


@dataclass(frozen=True)
class Kind:
    """A contiguous piece whose parameters are treated alike; `in_units` tells whether they belong to units."""

    start: int
    numel: int
    decayed: bool
    counted: bool
    in_units: bool


@dataclass(frozen=True)
class Fragment:
    """Elements of one parameter that one rank owns.

    `parameter_start` counts in the flattened local parameter, `shard_start` in the rank's own state tensors.
    """

    name: str
    parameter_start: int
    numel: int
    shard_start: int


@dataclass(frozen=True)
class FlatLayout:
    """The whole order. Every start and length is a multiple of `shards * ALIGNMENT`."""

    shards: int
    buckets: tuple[Bucket, ...]
    kinds: tuple[Kind, ...]

    @property
    def numel(self) -> int:
        """Elements of the full buffer, padding included."""
        return self.buckets[-1].start + self.buckets[-1].numel

    @property
    def shard_numel(self) -> int:
        """Elements that one rank owns."""
        return self.numel // self.shards

    def slots(self) -> Iterator[Slot]:
        """Yield every parameter in flat order."""
        for bucket in self.buckets:
            yield from bucket.slots

    def shard_kinds(self) -> tuple[Kind, ...]:
        """Return the kinds as pieces of a rank's own state tensors."""
        return tuple(
            replace(kind, start=kind.start // self.shards, numel=kind.numel // self.shards) for kind in self.kinds
        )

    def fragments(self, shard: int) -> Iterator[Fragment]:
        """Yield what `shard` owns of each parameter; the fragments of all shards cover each parameter exactly once."""
        for bucket in self.buckets:
            piece = bucket.numel // self.shards
            owned_start = bucket.start + shard * piece
            for slot in bucket.slots:
                start, end = max(slot.start, owned_start), min(slot.end, owned_start + piece)
                if start < end:
                    local = bucket.start // self.shards + start - owned_start
                    yield Fragment(slot.spec.name, start - slot.start, end - start, local)


def plan_flat_layout(specs: Sequence[ParameterSpec], shards: int, bucket_numel: int) -> FlatLayout:
    """Order parameters into kinds and buckets.

    Args:
        specs: the parameters in the order in which the forward pass uses them.
        shards: number of data-parallel ranks that share the state.
        bucket_numel: a bucket is closed once it holds at least this many elements.
    """
    buckets: list[Bucket] = []
    kinds: list[Kind] = []
    position = 0
    for kind in product((True, False), repeat=3):
        members = [spec for spec in specs if (spec.decayed, spec.counted, bool(spec.unit)) == kind]
        if not members:
            continue
        start = position
        for group in _split(members, bucket_numel):
            bucket = _bucket(group, position, shards)
            buckets.append(bucket)
            position += bucket.numel
        kinds.append(Kind(start, position - start, *kind))
    return FlatLayout(shards, tuple(buckets), tuple(kinds))


def _split(specs: Iterable[ParameterSpec], bucket_numel: int) -> Iterator[list[ParameterSpec]]:
    for unit, members in groupby(specs, key=lambda spec: spec.unit):
        group: list[ParameterSpec] = []
        for spec in members:
            group.append(spec)
            if not unit and sum(member.numel for member in group) >= bucket_numel:
                yield group
                group = []
        if group:
            yield group


def _bucket(specs: Iterable[ParameterSpec], start: int, shards: int) -> Bucket:
    slots = []
    position = start
    for spec in specs:
        slots.append(Slot(spec, position))
        # Each parameter starts aligned: a weight that a matrix product reads must not straddle vector loads.
        position += _round_up(spec.numel, ALIGNMENT)
    return Bucket(start, _round_up(position - start, shards * ALIGNMENT), tuple(slots))


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
