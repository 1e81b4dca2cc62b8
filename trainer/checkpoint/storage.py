"""File input and output of DCP, with hashes of what was written and no free unpickling of what is read."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import pickle
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from enum import Enum, EnumMeta
from pathlib import Path
from typing import Any, Callable

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from ..errors import StopError

PARALLEL_FROM_BYTES = 1 << 20
READ_BLOCK_BYTES = 1 << 24
THREADS_FROM_BYTES = 1 << 28
WRITER_THREADS = 4

_SAFE_MODULES = ("torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem")
_SAFE_NAMES = {
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("torch", "device"),
    ("builtins", "set"),
    ("collections", "OrderedDict"),
    ("pathlib", "PosixPath"),
    ("pathlib", "Path"),
}


class HashingStream(io.RawIOBase):
    """A file for writing that hashes what passes; large blocks are hashed while they are written."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = path.open("wb")
        self._digest = hashlib.sha256()
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="hash")
        self._length = 0
        self.failure: OSError | None = None

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        try:
            return self._write(memoryview(data).cast("B"))
        except OSError as error:
            # torch.save reports a failed write in words of its own, so the reason is kept.
            self.failure = self.failure or error
            raise

    def _write(self, view: memoryview) -> int:
        if view.nbytes >= PARALLEL_FROM_BYTES:
            hashed = self._pool.submit(self._digest.update, view)
            self._write_whole(view)
            hashed.result()
        else:
            self._digest.update(view)
            self._write_whole(view)
        self._length += view.nbytes
        return view.nbytes

    def _write_whole(self, view: memoryview) -> None:
        self._file.write(view)

    def tell(self) -> int:
        return self._length

    def flush(self) -> None:
        if not self._file.closed:
            self._file.flush()

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        self._pool.shutdown()
        self._file.close()
        super().close()

    def facts(self) -> dict[str, Any]:
        """Return size and hash of all that was written."""
        return {"bytes": self._length, "sha256": self._digest.hexdigest()}


class HashingFileSystem(FileSystem):
    """DCP's file system; remembers size and hash of every file that it wrote, and the first failure."""

    def __init__(self) -> None:
        super().__init__()
        self.written: dict[str, dict[str, Any]] = {}
        self.failure: Exception | None = None

    @contextlib.contextmanager
    def create_stream(self, path: Any, mode: str) -> Iterator[Any]:
        if "w" not in mode or Path(path).name.startswith(".metadata"):
            with super().create_stream(path, mode) as plain:
                yield plain
            return
        try:
            facts = yield from self._write(Path(path))
        except Exception as error:
            self.failure = self.failure or error
            raise
        self.written[Path(path).name] = facts

    def _write(self, path: Path) -> Generator[HashingStream, None, dict[str, Any]]:
        stream = HashingStream(path)
        try:
            yield stream
            stream.flush()
        except RuntimeError as error:
            if stream.failure is None:
                raise
            raise stream.failure from error
        finally:
            stream.close()
        return stream.facts()


class HashingWriter(FileSystemWriter):
    """DCP's writer, which tells the publisher when its own files are written, and before and after `.metadata` is."""

    def __init__(
        self,
        path: Path,
        staged_bytes: int,
        written: Callable[[dict[str, dict[str, Any]]], None],
        all_written: Callable[[], None],
        finished: Callable[[], None],
    ) -> None:
        threads = WRITER_THREADS if staged_bytes >= THREADS_FROM_BYTES else 1
        super().__init__(path, thread_count=threads, sync_files=True, overwrite=False)
        self.fs = self._hashing = HashingFileSystem()
        self._on_written, self._on_all_written, self._on_finished = written, all_written, finished

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        result: Future[list[WriteResult]] = super().write_data(plan, planner)
        written = result.wait()
        # DCP's writing threads end quietly with what they could not write.
        if self._hashing.failure is not None:
            raise self._hashing.failure
        if len(written) != len(plan.items):
            raise StopError(f"only {len(written)} of {len(plan.items)} pieces of tensors were written")
        self._on_written(self._hashing.written)
        return result

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        self._on_all_written()
        super().finish(metadata, results)
        self._on_finished()


class RestrictedReader(FileSystemReader):
    """DCP's reader; `.metadata` is a pickle, so only DCP's own classes are built from it.

    With `metadata`, the content of that file as another rank read it, the file itself is not opened.
    """

    def __init__(self, path: Path, metadata: bytes | None = None) -> None:
        super().__init__(path)
        self._metadata = metadata

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        path = Path(self.path) / ".metadata"
        try:
            content = path.read_bytes() if self._metadata is None else self._metadata
            metadata = _MetadataUnpickler(io.BytesIO(content)).load()
        except StopError:
            raise
        except Exception as error:
            raise StopError(f"{path} cannot be read: {type(error).__name__}: {error}") from error
        if not isinstance(metadata, Metadata):
            raise StopError(f"{path} holds a {type(metadata).__name__}, not a checkpoint's metadata")
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


def failure_of(error: BaseException) -> str:
    """Return the first failure in a sentence; DCP wraps one per rank into a multi-line text."""
    if isinstance(error, CheckpointException) and error.failures:
        rank, (failure, _) = next(iter(error.failures.items()))
        return f"rank {rank}: {str(failure) or type(failure).__name__}"
    return str(error)


def require_complete(path: Path, metadata: Metadata) -> None:
    """Raise StopError unless the metadata says of every piece of every tensor where it lies."""
    for name, stored in metadata.state_dict_metadata.items():
        for chunk in getattr(stored, "chunks", ()):
            if MetadataIndex(name, chunk.offsets) not in (metadata.storage_data or {}):
                raise StopError(f"{path} is incomplete: it lacks the part of {name} at {tuple(chunk.offsets)}")


def _enum_member(owner: object, name: str) -> Enum:
    """What `getattr` may do in a checkpoint: Python 3.11.0 to 3.11.3 pickle the member of an enumeration that way."""
    if isinstance(owner, EnumMeta) and name in owner.__members__:
        member: Enum = owner.__members__[name]
        return member
    raise StopError(f"a checkpoint's metadata wants the attribute {name!r} of {owner!r}; it is not read")


class _MetadataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):
            return _enum_member
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if module in _SAFE_MODULES or (module, name) in _SAFE_NAMES or is_dtype:
            return super().find_class(module, name)
        raise StopError(f"a checkpoint's metadata wants {module}.{name}, which no checkpoint needs; it is not read")


def hash_file(path: Path) -> dict[str, Any]:
    """Return size and sha256 of a file, read without keeping it in the page cache of a busy node."""
    digest, length = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(READ_BLOCK_BYTES):
            digest.update(block)
            length += len(block)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return {"bytes": length, "sha256": digest.hexdigest()}


def facts_of(content: bytes) -> dict[str, Any]:
    """Return size and sha256 of what was read from a small file."""
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def sync_directory(path: Path) -> None:
    """Make renames and new names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_durably(path: Path, content: str) -> dict[str, Any]:
    """Write a small file, whole or not at all, and durable; return its size and hash."""
    temporary = path.with_name(f".{path.name}.tmp")
    data = content.encode("utf-8")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_directory(path.parent)
    return facts_of(data)
