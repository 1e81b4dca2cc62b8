"""Optimizer states of the flat engine away from the device: in the host's memory, or in a file on a local disk.

A step brings them to the device piece by piece, and takes them back: what the device holds of them is two pieces.
DeepSpeed does the same with an operator that each node compiles; this needs none, and goes with every ZeRO stage.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from .errors import StopError

PIECE_ELEMENTS = 1 << 24
"""Elements of each state that visit the device at a time: 160 MiB for two moments and an int16 rest."""
SLOTS = 2
HOST_PIECE_ELEMENTS = 1 << 20
"""Elements that the host computes with at a time: written out, the update makes seven temporaries of that size."""


@dataclass(frozen=True)
class Home:
    """Where states live. `kind`: none (on the device), cpu, or nvme, which needs a directory and this rank's own name.

    Pieces are `piece_elements` long, so that tests can make them small.
    """

    kind: str = "none"
    directory: Path | None = None
    owner: str = ""
    piece_elements: int = PIECE_ELEMENTS

    @property
    def away(self) -> bool:
        """Whether the states are not on the device."""
        return self.kind != "none"

    def zeros(self, name: str, numel: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return a state tensor of zeros.

        Raises:
            StopError: if the directory cannot hold it.
        """
        if self.kind == "none":
            return torch.zeros(numel, dtype=dtype, device=device)
        if self.kind == "cpu":
            return torch.zeros(numel, dtype=dtype, pin_memory=device.type == "cuda")
        return self._mapped(name, numel, dtype)

    def _mapped(self, name: str, numel: int, dtype: torch.dtype) -> Tensor:
        assert self.directory is not None, "the configuration was checked"
        path = self.directory / f"{self.owner}.{name}"
        size = numel * dtype.itemsize
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            # A file that is left over would bring its old content.
            path.unlink(missing_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                # Writing beyond a full disk through a mapping would kill the process, so the blocks are taken now.
                os.posix_fallocate(descriptor, 0, max(1, size))
            finally:
                os.close(descriptor)
            mapped = torch.from_file(str(path), shared=True, size=numel, dtype=dtype)
            # The mapping keeps the content; without a name nothing is left behind, however the process ends.
            path.unlink()
        except OSError as error:
            with contextlib.suppress(OSError):
                path.unlink()
            raise StopError(
                f"offload=nvme needs {size / 2**30:.2f} GiB for {name} in {self.directory}: {error.strerror or error}"
            ) from error
        return mapped


def visit(
    states: Mapping[str, Tensor], start: int, numel: int, device: torch.device, home: Home
) -> Iterator[tuple[slice, dict[str, Tensor]]]:
    """Yield pieces of [start, start + numel): where each lies, and its states, to be changed in place on the device.

    A piece is taken home when the next one is asked for, so the iterator must be used up.
    """
    on_host = device.type != "cuda"
    if not home.away and not on_host:
        own = slice(start, start + numel)
        yield own, {name: state[own] for name, state in states.items()}
        return
    longest = min(home.piece_elements, HOST_PIECE_ELEMENTS) if on_host else home.piece_elements
    pieces = [slice(first, min(first + longest, start + numel)) for first in range(start, start + numel, longest)]
    if on_host:
        # The host computes where the states are.
        for piece in pieces:
            yield piece, {name: state[piece] for name, state in states.items()}
        return
    yield from _through_slots(states, pieces, device)


def _through_slots(
    states: Mapping[str, Tensor], pieces: list[slice], device: torch.device
) -> Iterator[tuple[slice, dict[str, Tensor]]]:
    """Copy the next piece in while one is computed with, on a stream that also copies them back, in order."""
    side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    longest = max(piece.stop - piece.start for piece in pieces)
    slots = [
        {name: torch.empty(longest, dtype=state.dtype, device=device) for name, state in states.items()}
        for _ in range(min(SLOTS, len(pieces)))
    ]

    def bring(index: int) -> tuple[dict[str, Tensor], torch.cuda.Event]:
        piece = pieces[index]
        held = {name: slot[: piece.stop - piece.start] for name, slot in slots[index % SLOTS].items()}
        with torch.cuda.stream(side):
            for name, tensor in held.items():
                tensor.copy_(states[name][piece], non_blocking=True)
        return held, side.record_event()

    coming = bring(0)
    for index, piece in enumerate(pieces):
        held, ready = coming
        if index + 1 < len(pieces):
            coming = bring(index + 1)
        torch.cuda.current_stream().wait_event(ready)
        yield piece, held
        side.wait_event(torch.cuda.current_stream().record_event())
        with torch.cuda.stream(side):
            for name, tensor in held.items():
                states[name][piece].copy_(tensor, non_blocking=True)
    # The host reads the states next (a checkpoint), and the slots go back to the allocator.
    side.synchronize()
