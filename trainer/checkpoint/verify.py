"""Is a published checkpoint whole? And are two of them equal?"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from ..errors import StopError
from .directory import MANIFESTS, SEAL_FILE, STATE_FILE, Published, parse_small_json, read_small_json
from .rectangles import Rectangle, RectangleLoadPlanner, Shards
from .storage import RestrictedReader, facts_of, failure_of, hash_file, require_complete, write_durably

SEAL_SCHEMA = "rackweave.seal/1"
METADATA = ".metadata"


def manifests(path: Path, ranks: int | None = None) -> list[dict[str, Any]]:
    """Return the manifests of a checkpoint, one per rank that wrote it.

    Raises:
        StopError: if one is missing or damaged.
    """
    first = read_small_json(path / MANIFESTS / "0.json")
    expected = ranks if ranks is not None else first.get("world_size")
    if not isinstance(expected, int) or expected < 1:
        raise StopError(f"{path} has a manifest without world_size")
    return [first, *(read_small_json(path / MANIFESTS / f"{rank}.json") for rank in range(1, expected))]


@dataclass(frozen=True)
class Share:
    """Part `index` of `count` equal parts of the work of reading a checkpoint."""

    index: int = 0
    count: int = 1

    def of(self, files: Mapping[str, Mapping[str, Any]]) -> list[str]:
        """Return the names in this part: dealt out by size, so that parts take about equally long."""
        by_size = sorted(files, key=lambda name: (-int(files[name].get("bytes", 0)), name))
        return by_size[self.index :: self.count]


def check_sizes(path: Path, ranks: int) -> None:
    """Raise StopError unless all manifests are there, and all files that they name, with their sizes."""
    for manifest in manifests(path, ranks):
        for name, facts in files_of(manifest, path).items():
            _check_file(path / name, facts, hashes=False)


def check_own(path: Path, rank: int) -> None:
    """Raise StopError unless the files of one writer hold the bytes that its manifest says."""
    for name, facts in files_of(read_small_json(path / MANIFESTS / f"{rank}.json"), path).items():
        _check_file(path / name, facts, hashes=True)


def files_of(manifest: Mapping[str, Any], path: Path) -> dict[str, dict[str, Any]]:
    """Return what a manifest says of each file; StopError if that is damaged."""
    files = manifest.get("files")
    if not isinstance(files, dict) or not all(isinstance(facts, dict) for facts in files.values()):
        raise StopError(f"{path} has a damaged manifest: its files are {files!r:.80}")
    return files


def seal(path: Path) -> None:
    """Write down size and hash of `.metadata` and of every manifest: nothing else vouches for them."""
    names = [METADATA, *(f"{MANIFESTS}/{found.name}" for found in sorted((path / MANIFESTS).glob("*.json")))]
    content = {"schema": SEAL_SCHEMA, "files": {name: hash_file(path / name) for name in names}}
    write_durably(path / SEAL_FILE, json.dumps(content) + "\n")


@dataclass(frozen=True)
class Outline:
    """What one reader finds out about a published checkpoint for all others.

    Attributes:
        metadata: content of `.metadata`, as its seal says.
        state: content of `state.json`.
        manifests: size and hash of each writer's manifest; None where the checkpoint has no seal, as those of an
            earlier version of this program.
    """

    checkpoint: Published
    metadata: bytes
    state: Mapping[str, Any]
    manifests: tuple[Any, ...]


def read_outline(checkpoint: Published) -> Outline:
    """Read what does not grow with the number of writers, but for `.metadata` and the seal.

    Raises:
        StopError: naming what is missing, damaged, or not to be unpickled.
    """
    path = checkpoint.path
    if not (path / METADATA).is_file():
        raise StopError(f"{path} has no {METADATA}: its coordinator did not finish")
    content = (path / METADATA).read_bytes()
    sealed = _read_seal(path)
    if sealed is None:
        count = read_small_json(path / MANIFESTS / "0.json").get("world_size")
        if not isinstance(count, int) or count < 1:
            raise StopError(f"{path} has a manifest without world_size")
        sealed_manifests: tuple[Any, ...] = (None,) * count
    else:
        _check_content(path / METADATA, content, sealed[METADATA])
        sealed_manifests = tuple(sealed[f"{MANIFESTS}/{rank}.json"] for rank in range(len(sealed) - 1))
    state = read_small_json(path / STATE_FILE)
    require_complete(path, RestrictedReader(path, content).read_metadata())
    return Outline(checkpoint, content, state, sealed_manifests)


def _read_seal(path: Path) -> dict[str, Any] | None:
    if not (path / SEAL_FILE).exists():
        return None
    files = read_small_json(path / SEAL_FILE).get("files")
    if not isinstance(files, dict):
        files = {}
    count = len(files) - 1
    if count < 1 or set(files) != {METADATA, *(f"{MANIFESTS}/{rank}.json" for rank in range(count))}:
        raise StopError(f"{path / SEAL_FILE} is damaged: it does not name {METADATA} and the manifests")
    return files


def read_manifests(outline: Outline, share: Share) -> dict[str, dict[str, Any]]:
    """Return name, size and hash of the files that a share of the manifests name; StopError if one is damaged."""
    count = len(outline.manifests)
    files: dict[str, dict[str, Any]] = {}
    for rank in range(share.index, count, share.count):
        path = outline.checkpoint.path / MANIFESTS / f"{rank}.json"
        if not path.is_file():
            raise StopError(f"{path} is missing")
        content = path.read_bytes()
        if outline.manifests[rank] is not None:
            _check_content(path, content, outline.manifests[rank])
        manifest = parse_small_json(path, content)
        if (manifest.get("rank"), manifest.get("world_size")) != (rank, count):
            raise StopError(
                f"{path} is the manifest of rank {manifest.get('rank')} of {manifest.get('world_size')}, "
                f"but the checkpoint has {count} of them"
            )
        files.update(files_of(manifest, outline.checkpoint.path))
    return files


def check_share(outline: Outline, files: Mapping[str, Mapping[str, Any]], share: Share) -> None:
    """Read a share of all files; StopError names the first that is missing, or has another size or other bytes."""
    for name in share.of(files):
        _check_file(outline.checkpoint.path / name, files[name], hashes=True)


def check_published(path: Path) -> None:
    """Raise StopError unless a published checkpoint is whole: every byte of it is read."""
    outline, whole = read_outline(Published(0, path)), Share()
    check_share(outline, read_manifests(outline, whole), whole)


def load_sample(path: Path) -> None:
    """Load the smallest tensor of a checkpoint on the CPU: proof that its metadata and files fit together."""
    metadata = RestrictedReader(path).read_metadata()
    tensors = {
        name: stored
        for name, stored in metadata.state_dict_metadata.items()
        if isinstance(stored, TensorStorageMetadata)
    }
    if not tensors:
        raise StopError(f"{path} holds no tensors")
    name = min(tensors, key=lambda candidate: tensors[candidate].size.numel())
    read_tensor(path, name, tensors[name])


def read_tensor(path: Path, name: str, stored: TensorStorageMetadata) -> torch.Tensor:
    """Return one whole tensor of a checkpoint, on the CPU."""
    whole = torch.empty(stored.size, dtype=stored.properties.dtype)
    shards = Shards(stored.size)
    shards.rectangles.append(Rectangle((0,) * len(stored.size), whole))
    try:
        load({name: shards}, storage_reader=RestrictedReader(path), planner=_PartialPlanner(), no_dist=True)
    except CheckpointException as error:
        raise StopError(f"{name} of {path} cannot be loaded: {failure_of(error)}") from error
    return whole


def differences(first: Path, second: Path) -> Iterator[str]:
    """Yield one sentence for each way in which two checkpoints differ; bitwise, one tensor in memory at a time."""
    left, right = (RestrictedReader(path).read_metadata().state_dict_metadata for path in (first, second))
    for name in sorted(set(left) ^ set(right)):
        yield f"{name} is only in {first if name in left else second}"
    for name in sorted(set(left) & set(right)):
        one, other = left[name], right[name]
        if not isinstance(one, TensorStorageMetadata) or not isinstance(other, TensorStorageMetadata):
            yield f"{name} is no tensor"
        elif one.size != other.size:
            yield f"{name} has shape {tuple(one.size)} and {tuple(other.size)}"
        else:
            a, b = read_tensor(first, name, one), read_tensor(second, name, other)
            if a.dtype != b.dtype:
                yield f"{name} is {a.dtype} and {b.dtype}"
            elif not torch.equal(_bits(a), _bits(b)):
                yield f"{name} differs, at most by {(a.double() - b.double()).abs().max().item():.3e}"


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor: numbers would call what is no number different from itself, and -0 equal to 0."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)


class _PartialPlanner(RectangleLoadPlanner):
    """Loads some of the tensors of a checkpoint."""


def _check_file(path: Path, facts: Any, hashes: bool) -> None:
    if not path.is_file():
        raise StopError(f"{path} is missing")
    _check_size(path, path.stat().st_size, facts)
    if hashes:
        _check_hash(path, hash_file(path), facts)


def _check_content(path: Path, content: bytes, facts: Any) -> None:
    _check_size(path, len(content), facts)
    _check_hash(path, facts_of(content), facts)


def _check_size(path: Path, size: int, facts: Any) -> None:
    due = facts.get("bytes") if isinstance(facts, dict) else facts
    if size != due:
        raise StopError(f"{path} has {size} bytes, its manifest says {due}")


def _check_hash(path: Path, found: Mapping[str, Any], facts: Any) -> None:
    if found != facts:
        raise StopError(f"{path} has other bytes than were written (sha256 differs)")
