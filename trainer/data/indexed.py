"""Megatron core's indexed corpus format (.bin with tokens, .idx with document lengths), written and read by memory map.

Format: megatron/core/datasets/indexed_dataset.py of megatron-core 0.16; a contract test reads our files with it. The
reader here needs no torch and checks every size before it trusts a file.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..errors import StopError

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
HEADER = struct.Struct("<QBQQ")
DTYPES: dict[int, type[np.generic]] = {
    1: np.uint8,
    2: np.int8,
    3: np.int16,
    4: np.int32,
    5: np.int64,
    8: np.uint16,
}
Tokens = npt.NDArray[np.generic]
LOOKED_AT, PIECES = 1 << 22, 64
"""Tokens of a corpus that are looked at before a job starts, in how many pieces; all of a smaller one."""


def token_dtype(vocab_size: int) -> type[np.generic]:
    """Return the type that Megatron uses for a vocabulary: 16 bits where they suffice."""
    return np.uint16 if vocab_size < 65500 else np.int32


class IndexedWriter:
    """Writes one corpus, document by document; `finish` makes it complete."""

    def __init__(self, prefix: Path, dtype: type[np.generic]) -> None:
        prefix.parent.mkdir(parents=True, exist_ok=True)
        self._prefix, self._dtype = prefix, dtype
        self._bin = _path(prefix, ".bin.tmp").open("wb")
        self._lengths: list[int] = []

    def add(self, tokens: Iterable[int] | Tokens) -> None:
        """Append one document."""
        array = np.asarray(tokens, dtype=self._dtype)
        self._bin.write(array.tobytes())
        self._lengths.append(len(array))

    @property
    def tokens(self) -> int:
        """Tokens written so far."""
        return sum(self._lengths)

    @property
    def documents(self) -> int:
        """Documents written so far."""
        return len(self._lengths)

    def discard(self) -> None:
        """Give up: remove what was written."""
        with contextlib.suppress(OSError):  # of a full disk: what is still to be written has no room
            self._bin.close()
        _path(self._prefix, ".bin.tmp").unlink()

    def finish(self) -> None:
        """Write the index and rename both files into place, the index last."""
        self._bin.close()
        lengths = np.asarray(self._lengths, dtype=np.int32)
        sizes = lengths.astype(np.int64) * np.dtype(self._dtype).itemsize
        pointers = np.concatenate(([0], np.cumsum(sizes)[:-1])).astype(np.int64)
        code = next(code for code, dtype in DTYPES.items() if dtype is self._dtype)
        index = _path(self._prefix, ".idx.tmp")
        with index.open("wb") as file:
            file.write(MAGIC)
            file.write(HEADER.pack(VERSION, code, len(lengths), len(lengths) + 1))
            file.write(lengths.tobytes())
            file.write(pointers.tobytes())
            file.write(np.arange(len(lengths) + 1, dtype=np.int64).tobytes())
        _path(self._prefix, ".bin.tmp").replace(_path(self._prefix, ".bin"))
        index.replace(_path(self._prefix, ".idx"))


class IndexedCorpus:
    """A corpus opened for reading; documents are contiguous runs of one long token array."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self._dtype, lengths, documents = _read_index(_path(Path(prefix), ".idx"))
        boundaries = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
        self._boundaries = boundaries[documents]
        self._tokens = self._map_tokens(int(boundaries[-1]))

    def _map_tokens(self, expected: int) -> Tokens:
        path = _path(Path(self.prefix), ".bin")
        if not path.exists():
            raise StopError(f"{path} does not exist, though its index does")
        found = path.stat().st_size // np.dtype(self._dtype).itemsize
        if found != expected:
            raise StopError(f"{path} holds {found} tokens, its index promises {expected}: prepare the corpus again")
        return np.memmap(path, dtype=self._dtype, mode="r") if expected else np.empty(0, dtype=self._dtype)

    @property
    def document_lengths(self) -> npt.NDArray[np.int64]:
        """Tokens of each document."""
        return np.diff(self._boundaries)

    def token_range(self, most: int = LOOKED_AT) -> tuple[int, int]:
        """Return the lowest and highest token, of a corpus larger than `most` in pieces spread evenly over it."""
        total = len(self._tokens)
        piece = total if total <= most else most // PIECES
        starts = np.linspace(0, total - piece, 1 if total <= most else PIECES, dtype=np.int64)
        parts = [self._tokens[start : start + piece] for start in starts if piece]
        return min((int(part.min()) for part in parts), default=0), max((int(part.max()) for part in parts), default=0)

    def read(self, document: int, start: int, stop: int) -> Tokens:
        """Return tokens [start, stop) of a document."""
        base = int(self._boundaries[document])
        return self._tokens[base + start : base + stop]


def _read_index(path: Path) -> tuple[type[np.generic], npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise StopError(f"{path} does not exist: prepare the corpus with `python -m trainer.data`") from None
    except OSError as error:
        raise StopError(f"{path} cannot be read: {error}") from error
    start = len(MAGIC) + HEADER.size
    if len(content) < start or content[: len(MAGIC)] != MAGIC:
        raise StopError(f"{path} is no Megatron index file: prepare the corpus again")
    version, code, sequences, documents = HEADER.unpack_from(content, len(MAGIC))
    expected = start + sequences * (4 + 8) + documents * 8
    if version != VERSION or code not in DTYPES or documents < 1 or len(content) != expected:
        raise StopError(
            f"{path} is corrupt (version {version}, type {code}, {sequences} sequences, {len(content)} bytes where "
            f"{expected} are due): prepare the corpus again"
        )
    lengths = np.frombuffer(content, dtype=np.int32, count=sequences, offset=start)
    index = np.frombuffer(content, dtype=np.int64, count=documents, offset=start + sequences * 12)
    sizes = lengths.astype(np.int64) * np.dtype(DTYPES[code]).itemsize
    pointers = np.frombuffer(content, dtype=np.int64, count=sequences, offset=start + sequences * 4)
    if not np.array_equal(pointers, np.cumsum(sizes) - sizes):
        raise StopError(f"{path} is corrupt (sequences do not follow one another): prepare the corpus again")
    if (lengths < 0).any() or index[0] != 0 or index[-1] != sequences or (np.diff(index) < 0).any():
        raise StopError(f"{path} is corrupt (document boundaries out of order): prepare the corpus again")
    return DTYPES[code], lengths, index


def _path(prefix: Path, suffix: str) -> Path:
    return prefix.with_name(prefix.name + suffix)
