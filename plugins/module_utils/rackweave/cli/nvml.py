"""GPUs through NVML, with the bindings of ``nvidia-ml-py`` where they are installed."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

from ..errors import ParseError
from ..hardware.node import Gpu
from ..hardware.nvidia_smi import GpuReading, normal_bdf

BINDINGS = "pynvml"
MAX_NVLINKS = 18


def nvml_reader() -> Callable[[], GpuReading] | None:
    """Return a function that reads all GPUs, or None where the bindings are not installed."""
    if importlib.util.find_spec(BINDINGS) is None:
        return None
    return lambda: read_gpus(importlib.import_module(BINDINGS))


def read_gpus(nvml: Any) -> GpuReading:
    """Read all GPUs.

    Raises:
        ParseError: if NVML does not start or does not name a GPU (driver not loaded, versions that differ).
    """
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise ParseError(f"does not start: {error}") from error
    try:
        gpus = tuple(_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount()))
        return GpuReading(_text(nvml.nvmlSystemGetDriverVersion()), _cuda(nvml), gpus)
    except nvml.NVMLError as error:
        raise ParseError(f"cannot read a GPU: {error}") from error
    finally:
        nvml.nvmlShutdown()


def _gpu(nvml: Any, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    ecc = _optional(nvml, lambda: nvml.nvmlDeviceGetEccMode(handle)[0])
    power = _optional(nvml, lambda: nvml.nvmlDeviceGetPowerManagementLimit(handle))
    minor = _optional(nvml, lambda: nvml.nvmlDeviceGetMinorNumber(handle))
    return Gpu(
        index=index,
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        bdf=normal_bdf(_text(nvml.nvmlDeviceGetPciInfo(handle).busId)),
        name=_optional(nvml, lambda: _text(nvml.nvmlDeviceGetName(handle))),
        serial=_optional(nvml, lambda: _text(nvml.nvmlDeviceGetSerial(handle))),
        memory_bytes=_optional(nvml, lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).total)),
        nvlink_links=_nvlinks(nvml, handle),
        ecc_enabled=None if ecc is None else bool(ecc),
        max_sm_clock_mhz=_optional(nvml, lambda: int(nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM))),
        power_limit_w=None if power is None else power // 1000,
        vbios=_optional(nvml, lambda: _text(nvml.nvmlDeviceGetVbiosVersion(handle))),
        device_file=None if minor is None else f"/dev/nvidia{minor}",
    )


def _nvlinks(nvml: Any, handle: Any) -> int | None:
    """Count active links; None where NVML does not know the question, 0 where it says "not supported"."""
    active = 0
    for link in range(MAX_NVLINKS):
        with contextlib.suppress(nvml.NVMLError):
            active += nvml.nvmlDeviceGetNvLinkState(handle, link) == nvml.NVML_FEATURE_ENABLED
    return active


def _cuda(nvml: Any) -> str | None:
    number = _optional(nvml, nvml.nvmlSystemGetCudaDriverVersion_v2)
    return None if number is None else f"{number // 1000}.{number % 1000 // 10}"


def _optional(nvml: Any, read: Callable[[], Any]) -> Any:
    """Return a value that not every GPU has (serial, ECC, power limit), None where NVML says so."""
    try:
        return read()
    except nvml.NVMLError:
        return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
