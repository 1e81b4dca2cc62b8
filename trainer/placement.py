"""Check that this rank runs on the host and device that the plan gave it, and record what it saw."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .config import RankConfig
from .environment import LaunchEnvironment
from .errors import StopError

PLACEMENT_SCHEMA = "rackweave.placement/1"


def check_world(environment: LaunchEnvironment, planned_world_size: int) -> None:
    """Raise StopError if the job was started with another number of ranks than planned."""
    if environment.world_size != planned_world_size:
        raise StopError(
            f"the plan is for world_size={planned_world_size}, but the job was started with "
            f"world_size={environment.world_size}"
        )


def check_placement(environment: LaunchEnvironment, planned: RankConfig, device_bdf: str | None) -> str:
    """Compare host, local rank and device with the plan.

    Args:
        device_bdf: PCI address of this rank's GPU, or None without CUDA.

    Returns:
        One sentence on how the device was checked.

    Raises:
        StopError: naming what was planned and what was found.
    """
    if _short(environment.host) != _short(planned.host):
        raise StopError(
            f"rank {planned.rank} runs on host {environment.host} ({environment.host_source}), "
            f"the plan puts it on {planned.host}"
        )
    if environment.local_rank != planned.local_rank:
        raise StopError(
            f"rank {planned.rank} has local_rank={environment.local_rank}, the plan gave it {planned.local_rank}"
        )
    if device_bdf is not None:
        return _check_bdf(planned, device_bdf)
    return _check_visible_device(environment, planned)


def placement_record(
    environment: LaunchEnvironment, planned: RankConfig, device: str, device_check: str, host_file: Mapping[str, str]
) -> dict[str, Any]:
    """Return the content of `placement/<rank>.json`: what this rank saw, each variable with its origin.

    `origin` is `host_file` (as in nccl/<host>.conf), `overridden` (there with another value), `environment` (not
    there) or `missing` (there, but not seen).
    """
    variables: dict[str, dict[str, str | None]] = {
        name: {"value": value, "origin": _origin(name, value, host_file)}
        for name, value in environment.variables.items()
    }
    for name, value in host_file.items():
        if name not in variables:
            variables[name] = {"value": None, "origin": "missing", "planned": value}
        elif variables[name]["origin"] == "overridden":
            variables[name]["planned"] = value
    return {
        "schema": PLACEMENT_SCHEMA,
        "rank": planned.rank,
        "host": environment.host,
        "host_source": environment.host_source,
        "address": own_address(os.environ.get("MASTER_ADDR", "")),
        "local_rank": environment.local_rank,
        "device": device,
        "device_check": device_check,
        "environment": variables,
    }


def own_address(towards: str) -> str | None:
    """Return the address that this host uses towards another one (nothing is sent), or None where it has no route."""
    try:
        family, kind, _, _, peer = socket.getaddrinfo(towards or "localhost", 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(peer)
            return str(probe.getsockname()[0])
    except OSError:
        return None


def read_host_file(attempt: Path, host: str) -> dict[str, str]:
    """Return the pairs of nccl/<host>.conf of an attempt; empty if there is no such file."""
    path = attempt / "nccl" / f"{host}.conf"
    if not path.exists():
        return {}
    lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return {name.strip(): value.strip() for name, _, value in pairs}


def _check_bdf(planned: RankConfig, device_bdf: str) -> str:
    if planned.gpu_bdf is None:
        return f"found {device_bdf}; the plan names no PCI address"
    if _bdf_key(planned.gpu_bdf) != _bdf_key(device_bdf):
        raise StopError(f"rank {planned.rank} has the GPU {device_bdf}, the plan gave it {planned.gpu_bdf}")
    return f"{device_bdf} is the planned PCI address"


def _check_visible_device(environment: LaunchEnvironment, planned: RankConfig) -> str:
    visible = environment.visible_devices
    if visible is None or planned.gpu_index is None:
        return "no CUDA, and no CUDA_VISIBLE_DEVICES or planned index to compare with"
    if environment.local_rank >= len(visible):
        raise StopError(
            f"rank {planned.rank} has local_rank={environment.local_rank}, but CUDA_VISIBLE_DEVICES lists "
            f"{len(visible)} devices ({','.join(visible)})"
        )
    entry = visible[environment.local_rank]
    if entry.isdigit() and int(entry) != planned.gpu_index:
        raise StopError(
            f"rank {planned.rank} was given the device {entry} by CUDA_VISIBLE_DEVICES={','.join(visible)}, "
            f"the plan gave it {planned.gpu_index}"
        )
    if ":" in entry and planned.gpu_bdf is not None:
        return _check_bdf(planned, entry)
    return f"CUDA_VISIBLE_DEVICES gives {entry} to local rank {environment.local_rank}"


def _origin(name: str, value: str, host_file: Mapping[str, str]) -> str:
    if name not in host_file:
        return "environment"
    return "host_file" if host_file[name] == value else "overridden"


def _short(host: str) -> str:
    return host.split(".", 1)[0].lower()


def _bdf_key(bdf: str) -> tuple[int, ...]:
    """Make PCI addresses comparable: tools write the domain with four or with eight digits."""
    domain, bus, rest = bdf.lower().rsplit(":", 2) if bdf.count(":") == 2 else ("0", *bdf.lower().split(":"))
    device, _, function = rest.partition(".")
    return int(domain, 16), int(bus, 16), int(device, 16), int(function or "0", 16)
