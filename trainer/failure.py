"""Last words of a rank: what its memory held when it ran out, and which collectives it was in when a peer failed."""

from __future__ import annotations

import gc
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .advice import Shortage, advise
from .config import JobConfig
from .memory import MemoryMeter, requested_bytes
from .outcome import write_json

OOM_SCHEMA = "rackweave.oom/1"
LARGEST = 10
NO_MEMORY = (
    "can't allocate memory",
    "Cannot allocate memory",
    "MemoryError",
    "failed to map segment",
    "std::bad_alloc",
    "CUDA error: out of memory",
    "CUDA out of memory",
    "Cuda failure 2",
    "Cuda failure 'out of memory'",
)
NO_THREAD = ("Resource temporarily unavailable", "can't start new thread")
THREAD_STACK_BYTES = 16 << 20
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


def is_out_of_memory(error: BaseException, meter: MemoryMeter) -> bool:
    """Tell whether an exception means that memory ran out, on the GPU or on the host."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    if any(text in str(error) for text in NO_THREAD):
        # The system's words for too many threads, and for no room for the stack of one more.
        return not meter.cuda and meter.limit_bytes() - meter.held_bytes() < THREAD_STACK_BYTES
    # PyTorch's CPU allocator, the dynamic loader and system calls each wrap ENOMEM in an exception of their own.
    return any(text in str(error) for text in NO_MEMORY)


def report_out_of_memory(where: Where, error: BaseException, job: JobConfig, meter: MemoryMeter) -> str:
    """Write `oom/<rank>.json` and return one sentence with phase, rank, sizes and a layout that would fit."""
    tensors = _largest_tensors()
    held, reserved, limit = meter.held_bytes(), meter.reserved_bytes(), meter.limit_bytes()
    requested = requested_bytes(error)
    shortage = Shortage(limit, min(meter.own_bytes(), held), held + requested, meter.cuda)
    # Communicators are set up before there is a model: what they lack, no layout has taken.
    found = advise(job, shortage, failed_by_layout=where.phase != "nccl_init")
    content = {
        "schema": OOM_SCHEMA,
        "rank": where.rank,
        "host": where.host,
        "phase": where.phase,
        "step": where.step,
        "device": where.device,
        "allocated_bytes": held,
        "reserved_bytes": reserved,
        "program_bytes": shortage.own,
        "requested_bytes": requested or None,
        "limit_bytes": limit,
        "largest_tensors": tensors,
        "advice": ADVICE.get(where.phase, "take a larger layout"),
        "planner": found.sentence,
        "layout": found.sizes,
        "layout_needs_bytes": found.needed_bytes,
    }
    write_json(where.attempt / "oom" / f"{where.rank}.json", content)
    sizes = f"{held / 2**30:.2f} GiB allocated of at most {limit / 2**30:.2f}"
    if reserved is not None:
        sizes += f", {reserved / 2**30:.2f} GiB reserved"
    biggest = f"; largest tensor {tensors[0]['shape']} {tensors[0]['dtype']}" if tensors else ""
    return (
        f"out of memory in phase {where.phase} on rank {where.rank} ({sizes}{biggest}): {content['advice']}; "
        f"{found.sentence}"
    )


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
