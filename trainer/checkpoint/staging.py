"""A second copy of the state, so that training goes on while a checkpoint is written from it."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import StopError

SHARED_MEMORY = "/dev/shm"


@dataclass(frozen=True)
class _Copied:
    live: Tensor
    staged: Tensor


class StagingArea:
    """Copies whole storages, however many views of them there are, into memory that is kept for the next save.

    On a GPU the copies run on a stream of their own into pinned memory: `copy` only queues them, `fence` keeps the
    optimizer from writing before they are done, and `wait` blocks the writer thread until they are.
    """

    def __init__(self, shared: bool = False) -> None:
        """With `shared`, another process can read the staged copy.

        Raises (when the buffers are made):
            StopError: if the file system of shared memory has no room for them.
        """
        self._shared = shared
        self._buffers: list[Tensor] = []
        self._copies: dict[int, _Copied] = {}
        self._stream: torch.cuda.Stream | None = None
        self._done: torch.cuda.Event | None = None

    @property
    def bytes(self) -> int:
        """Size of the staged copy."""
        return sum(buffer.numel() * buffer.element_size() for buffer in self._buffers)

    def begin(self) -> None:
        """Forget the live tensors of the last save; an engine may show others, in the same order and sizes."""
        self._copies = {}

    def view(self, live: Tensor) -> Tensor:
        """Return the staged counterpart of a contiguous live view."""
        storage = live.untyped_storage()
        key = storage.data_ptr()
        if key not in self._copies:
            whole = live.new_empty(0).set_(storage, 0, (storage.nbytes() // live.element_size(),))  # type: ignore[call-overload]
            self._copies[key] = _Copied(whole, self._buffer(len(self._copies), whole))
        return self._copies[key].staged.narrow(0, live.storage_offset(), live.numel())

    def _buffer(self, index: int, whole: Tensor) -> Tensor:
        if index == len(self._buffers):
            make = _shared_buffer if self._shared else _own_buffer
            self._buffers.append(make(whole))
        return self._buffers[index]

    def copy(self) -> None:
        """Copy the live state, or queue the copy."""
        on_gpu = [copy for copy in self._copies.values() if copy.live.is_cuda]
        _copy_all(copy for copy in self._copies.values() if not copy.live.is_cuda)
        if not on_gpu:
            return
        if self._stream is None:
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            _copy_all(on_gpu)
            self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._done.record(self._stream)

    def fence(self) -> None:
        """Keep later work of the current stream behind the copies."""
        if self._done is not None:
            torch.cuda.current_stream().wait_event(self._done)

    def wait(self) -> None:
        """Block until the copies are done."""
        if self._done is not None:
            self._done.synchronize()
            self._done = None
        self._copies = {}


def _own_buffer(whole: Tensor) -> Tensor:
    return torch.empty(whole.shape, dtype=whole.dtype, pin_memory=whole.is_cuda)


def _shared_buffer(whole: Tensor) -> Tensor:
    # Writing beyond the room of this file system would kill the process, so it is asked before.
    room, needed = shutil.disk_usage(SHARED_MEMORY).free, whole.numel() * whole.element_size()
    if needed > room:
        raise StopError(
            f"checkpoint.mode=async_process needs {needed / 2**30:.2f} GiB more in {SHARED_MEMORY}, which has "
            f"{room / 2**30:.2f} GiB free: enlarge it (--shm-size, or a remount), or take async_thread"
        )
    buffer: Tensor = torch.empty(whole.shape, dtype=whole.dtype).share_memory_()  # type: ignore[no-untyped-call]
    if whole.is_cuda:
        cudart: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        cudart.cudaHostRegister(buffer.data_ptr(), needed, 0)
    return buffer


def _copy_all(copies: Iterable[_Copied]) -> None:
    for copy in copies:
        copy.staged.copy_(copy.live, non_blocking=True)
