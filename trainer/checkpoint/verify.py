"""Is a published checkpoint whole? And are two of them equal?"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from ..errors import StopError
from .directory import MANIFESTS, SEAL_FILE, STATE_FILE, read_small_json
from .rectangles import Rectangle, RectangleLoadPlanner, Shards
from .storage import RestrictedReader, hash_file, write_durably

SEAL_SCHEMA = "rackweave.seal/1"


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


def check_files(path: Path, ranks: int | None, hashes: bool, only_rank: int | None = None) -> None:
    """Compare files with their manifests.

    Args:
        ranks: number of writers, or None to take it from the first manifest.
        hashes: read every byte and compare hashes, not sizes alone.
        only_rank: look at this writer's files only.

    Raises:
        StopError: naming the first file that is missing, has another size or another hash.
    """
    for manifest in manifests(path, ranks):
        if only_rank is not None and manifest.get("rank") != only_rank:
            continue
        for name, facts in _files(manifest, path).items():
            _check_file(path / name, facts, hashes)


def _files(manifest: Mapping[str, Any], path: Path) -> dict[str, Any]:
    files = manifest.get("files")
    if not isinstance(files, dict) or not all(isinstance(facts, dict) for facts in files.values()):
        raise StopError(f"{path} has a damaged manifest: its files are {files!r:.80}")
    return files


def seal(path: Path) -> None:
    """Write down size and hash of `.metadata` and of every manifest: nothing else vouches for them."""
    names = [".metadata", *(f"{MANIFESTS}/{found.name}" for found in sorted((path / MANIFESTS).glob("*.json")))]
    content = {"schema": SEAL_SCHEMA, "files": {name: hash_file(path / name) for name in names}}
    write_durably(path / SEAL_FILE, json.dumps(content) + "\n")


def _check_seal(path: Path, share: Share) -> None:
    """Compare with the seal; a checkpoint of an earlier version of this program has none."""
    if not (path / SEAL_FILE).exists():
        return
    files = read_small_json(path / SEAL_FILE).get("files")
    if not isinstance(files, dict) or not {".metadata", f"{MANIFESTS}/0.json"} <= set(files):
        raise StopError(f"{path / SEAL_FILE} is damaged: it does not name .metadata and the manifests")
    own = {".metadata", *sorted(files)[share.index :: share.count]}
    for name, facts in files.items():
        _check_file(path / name, facts, name in own)


def check_published(path: Path, share: Share = Share()) -> None:
    """Raise StopError unless a published checkpoint is whole, as far as a share of its bytes tells.

    Small files are read by everyone; sizes are compared for all files, hashes for those of the share.
    """
    if not (path / ".metadata").is_file():
        raise StopError(f"{path} has no .metadata: its coordinator did not finish")
    _check_seal(path, share)
    read_small_json(path / STATE_FILE)
    files = {name: facts for manifest in manifests(path) for name, facts in _files(manifest, path).items()}
    own = set(share.of(files))
    for name, facts in files.items():
        _check_file(path / name, facts, name in own)
    RestrictedReader(path).read_metadata()


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
    load({name: shards}, storage_reader=RestrictedReader(path), planner=_PartialPlanner(), no_dist=True)
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
            if not torch.equal(a, b):
                yield f"{name} differs, at most by {(a.double() - b.double()).abs().max().item():.3e}"


class _PartialPlanner(RectangleLoadPlanner):
    """Loads some of the tensors of a checkpoint."""


def _check_file(path: Path, facts: Any, hashes: bool) -> None:
    if not path.is_file():
        raise StopError(f"{path} is missing")
    size = path.stat().st_size
    if not isinstance(facts, dict) or size != facts.get("bytes"):
        due = facts.get("bytes") if isinstance(facts, dict) else facts
        raise StopError(f"{path} has {size} bytes, its manifest says {due}")
    if hashes and hash_file(path) != facts:
        raise StopError(f"{path} has other bytes than were written (sha256 differs)")
