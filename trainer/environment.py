"""The one file that reads environment variables: what torchrun, Slurm and the launcher said to this process."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from .errors import StopError

RECORDED_PREFIXES = ("NCCL_", "GLOO_", "TORCH_NCCL_", "TORCH_FR_", "UCX_", "DS_")
MOST_THREADS = 16
RECORDED_NAMES = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_MAX_CONNECTIONS", "OMP_NUM_THREADS")


@dataclass(frozen=True)
class LaunchEnvironment:
    """Where this process stands in the job, as its launcher said.

    Attributes:
        rank, world_size, local_rank, local_world_size: from torchrun.
        host: `$SLURMD_NODENAME`, or the host name where Slurm did not start the process.
        host_source: which of the two it was.
        visible_devices: entries of `CUDA_VISIBLE_DEVICES`, or None where it is not set.
        variables: communication variables as this process saw them.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    host: str
    host_source: str
    visible_devices: tuple[str, ...] | None
    variables: Mapping[str, str]


def read_environment(variables: Mapping[str, str] | None = None) -> LaunchEnvironment:
    """Read the launch environment of this process.

    Raises:
        StopError: if torchrun's variables are missing or are not numbers.
    """
    source = os.environ if variables is None else variables
    numbers = {name: _number(source, name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")}
    node_name = source.get("SLURMD_NODENAME", "")
    visible = source.get("CUDA_VISIBLE_DEVICES")
    return LaunchEnvironment(
        rank=numbers["RANK"],
        world_size=numbers["WORLD_SIZE"],
        local_rank=numbers["LOCAL_RANK"],
        local_world_size=numbers["LOCAL_WORLD_SIZE"],
        host=node_name or socket.gethostname(),
        host_source="SLURMD_NODENAME" if node_name else "hostname",
        visible_devices=None if visible is None else tuple(entry for entry in visible.split(",") if entry),
        variables={name: value for name, value in sorted(source.items()) if _is_recorded(name)},
    )


def store_address(variables: Mapping[str, str] | None = None) -> tuple[str, int]:
    """Return host and port of the job's store.

    Raises:
        StopError: if the launcher did not set them.
    """
    source = os.environ if variables is None else variables
    address = source.get("MASTER_ADDR")
    if not address:
        raise StopError("the environment variable MASTER_ADDR is not set: start the trainer with torchrun")
    port = _number(source, "MASTER_PORT")
    if not 0 < port < 65536:
        raise StopError(f"the environment variable MASTER_PORT is {port}, which is no port")
    return address, port


def usable_threads(variables: Mapping[str, str] | None = None) -> int:
    """Return how many threads this process may keep busy: its share of the processors that its host's ranks may use."""
    source = os.environ if variables is None else variables
    ranks = _number(source, "LOCAL_WORLD_SIZE")
    return max(1, min(MOST_THREADS, len(os.sched_getaffinity(0)) // max(1, ranks)))


def prepare_environment(cuda: bool) -> None:
    """Set the variables that libraries read while they are imported; a value that is already set is kept."""
    defaults = {"DS_BUILD_OPS": "0", "TORCH_FR_BUFFER_SIZE": "2000"}
    if cuda:
        # Megatron core overlaps tensor-parallel communication by launch order: one hardware queue keeps that order.
        defaults["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
        defaults["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    else:
        defaults["DS_ACCELERATOR"] = "cpu"
        defaults["OMP_NUM_THREADS"] = "1"
        # DeepSpeed counts the host's ranks by it, and otherwise by a program that need not be installed (numactl).
        defaults["LOCAL_SIZE"] = os.environ.get("LOCAL_WORLD_SIZE", "1")
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


def _is_recorded(name: str) -> bool:
    return name.startswith(RECORDED_PREFIXES) or name in RECORDED_NAMES


def _number(source: Mapping[str, str], name: str) -> int:
    text = source.get(name)
    if text is None or not text.isdigit():
        raise StopError(f"the environment variable {name} is {text!r}: start the trainer with torchrun")
    return int(text)
