"""Last words of a rank: what its memory held when it ran out, and which collectives it was in when a peer failed."""

from __future__ import annotations

import gc
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .outcome import write_json

OOM_SCHEMA = "rackweave.oom/1"
LARGEST = 10
NO_MEMORY = ("can't allocate memory", "Cannot allocate memory", "failed to map segment", "std::bad_alloc")
LOG = logging.getLogger("trainer")

ADVICE = {
    "nccl_init": "look for a left-over process on the GPU; fewer communicators or a smaller NCCL_BUFFSIZE need less",
    "model_build": "raise tensor_parallel_size or pipeline_parallel_size",
    "checkpoint_load": "raise tensor_parallel_size or pipeline_parallel_size: loading needs some room beside the model",
    "optimizer_init": "raise zero_stage or data_parallel_size, or offload the optimizer states",
    "forward": "lower micro_batch_size, recompute activations, or switch sequence_parallel on",
    "backward": "lower micro_batch_size, recompute activations, or switch sequence_parallel on",
    "optimizer_step": "raise zero_stage or data_parallel_size, or offload the optimizer states",
    "save": "leave room for a second copy of this rank's optimizer states in host memory, or save with mode sync",
    "evaluate": "lower micro_batch_size",
}


@dataclass(frozen=True)
class Where:
    """Where a rank was when it failed."""

    attempt: Path
    rank: int
    host: str
    phase: str
    step: int | None
    device: str


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an exception means that memory ran out, on the GPU or on the host."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    # PyTorch's CPU allocator, the dynamic loader and system calls each wrap ENOMEM in an exception of their own.
    return any(text in str(error) for text in NO_MEMORY)


def report_out_of_memory(where: Where) -> str:
    """Write `oom/<rank>.json` and return one sentence with phase, rank, sizes and advice."""
    tensors = _largest_tensors()
    cuda = where.device.startswith("cuda")
    allocated = torch.cuda.memory_allocated() if cuda else _resident_bytes()
    reserved = torch.cuda.memory_reserved() if cuda else None
    advice = ADVICE.get(where.phase, "a larger layout")
    content = {
        "schema": OOM_SCHEMA,
        "rank": where.rank,
        "host": where.host,
        "phase": where.phase,
        "step": where.step,
        "device": where.device,
        "allocated_bytes": allocated,
        "reserved_bytes": reserved,
        "largest_tensors": tensors,
        "advice": advice,
    }
    write_json(where.attempt / "oom" / f"{where.rank}.json", content)
    held = f"{allocated / 2**30:.2f} GiB {'allocated' if cuda else 'resident'}"
    if reserved is not None:
        held += f", {reserved / 2**30:.2f} GiB reserved"
    biggest = f"; largest tensor {tensors[0]['shape']} {tensors[0]['dtype']}" if tensors else ""
    return f"out of memory in phase {where.phase} on rank {where.rank} ({held}{biggest}): {advice}"


def dump_collectives(where: Where) -> Path | None:
    """Write what the flight recorder knows of this rank's collectives; NCCL does that itself, gloo does not.

    Returns None where this build of torch records nothing.
    """
    dump = getattr(torch._C._distributed_c10d, "_dump_fr_trace", None)
    if dump is None:
        return None
    path = where.attempt / "flight" / f"{where.rank}.pickle"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(dump(True, True, False))
    return path


def _largest_tensors() -> list[dict[str, Any]]:
    """Return the largest distinct storages that Python knows of, biggest first."""
    found: dict[int, dict[str, Any]] = {}
    for thing in gc.get_objects():
        # Proxies answer isinstance by importing what they stand for, so the class itself is asked.
        if not issubclass(type(thing), torch.Tensor):
            continue
        try:
            storage = thing.untyped_storage()
            size, key = storage.nbytes(), storage.data_ptr()
        except (RuntimeError, NotImplementedError):
            continue  # meta and wrapper tensors hold no memory
        if key and size > found.get(key, {"bytes": -1})["bytes"]:
            shape, dtype = list(thing.shape), str(thing.dtype).removeprefix("torch.")
            found[key] = {"bytes": size, "shape": shape, "dtype": dtype, "device": str(thing.device)}
    return sorted(found.values(), key=lambda entry: -int(entry["bytes"]))[:LARGEST]


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096
