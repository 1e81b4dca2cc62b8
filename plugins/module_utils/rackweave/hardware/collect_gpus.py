"""GPUs of a node: NVML, else ``nvidia-smi -q -x``, else sysfs; in the lab, device nodes that stand for GPUs."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace

from ..errors import ParseError
from .collect_pci import GPU_CLASSES, NVIDIA_VENDOR, functions_of_class, pci_function
from .kernel import gpu_information
from .node import Gpu
from .nvidia_smi import GpuReading, normal_bdf, parse_nvidia_smi_xml
from .order import bdf_key, natural_key
from .system import System

PROC = "/proc/driver/nvidia/gpus"
_DEVICE_NODE = re.compile(r"nvidia\d+")
# Namespace of the made-up UUIDs of simulated GPUs: the same host and index always give the same one.
SIMULATED_NAMESPACE = uuid.UUID("5b0f7d53-6f0a-5d0f-9c0e-1b7f6f1f0a5d")


@dataclass(frozen=True)
class GpuFinding:
    """The GPUs, where they were read (`GPU_SOURCES`), and versions that only that source knows."""

    source: str
    gpus: tuple[Gpu, ...]
    driver: str | None = None
    cuda: str | None = None


def find_gpus(
    system: System,
    nvml: Callable[[], GpuReading] | None,
    slots: dict[str, str],
    simulated_host: str | None,
    warnings: list[str],
) -> GpuFinding:
    """Return the GPUs from the best source that works; each source that failed leaves a warning.

    Args:
        nvml: reads NVML, or None where its bindings are not installed; it raises `ParseError` if NVML fails.
        simulated_host: name of a simulated node, None on real ones: only there device nodes count as GPUs.
    """
    finding = _by_driver(system, nvml, warnings) or _by_sysfs(system, warnings)
    if finding is None and simulated_host is not None:
        finding = _by_device_nodes(system, simulated_host, warnings)
    if finding is None:
        return GpuFinding("none", ())
    return replace(finding, gpus=tuple(_located(system, gpu, slots) for gpu in finding.gpus))


def _by_driver(system: System, nvml: Callable[[], GpuReading] | None, warnings: list[str]) -> GpuFinding | None:
    if nvml is not None:
        try:
            reading = nvml()
            return GpuFinding("nvml", reading.gpus, reading.driver, reading.cuda)
        except ParseError as error:
            warnings.append(f"NVML: {error}")
    output = system.run_all([("nvidia-smi", "-q", "-x")])[0]
    if output is None:
        return None
    try:
        if output.status:
            raise ParseError(f"nvidia-smi -q -x: exit status {output.status}: {output.stdout.strip()[:200]}")
        reading = parse_nvidia_smi_xml(output.stdout)
    except ParseError as error:
        warnings.append(str(error))
        return None
    return GpuFinding("nvidia-smi", reading.gpus, reading.driver, reading.cuda)


def _by_sysfs(system: System, warnings: list[str]) -> GpuFinding | None:
    files = {bdf: system.read(f"{PROC}/{bdf}/information") for bdf in system.names(PROC)}
    rows = [_of_information(normal_bdf(bdf), text, warnings) for bdf, text in files.items() if text]
    if not rows:
        rows = [Gpu(index=0, bdf=bdf) for bdf in functions_of_class(system, GPU_CLASSES, NVIDIA_VENDOR)]
        if rows:
            warnings.append(f"{len(rows)} NVIDIA GPU(s) on the bus, but no driver is loaded: UUIDs unknown")
    if not rows:
        return None
    ordered = sorted(rows, key=lambda gpu: bdf_key(gpu.bdf or ""))
    return GpuFinding("sysfs", tuple(replace(gpu, index=index) for index, gpu in enumerate(ordered)))


def _of_information(bdf: str, text: str, warnings: list[str]) -> Gpu:
    values = gpu_information(text)
    minor, gpu_uuid = values.get("Device Minor"), values.get("GPU UUID")
    if not gpu_uuid or "?" in gpu_uuid:
        # The driver prints question marks until the GPU is first opened.
        warnings.append(f"GPU {bdf}: UUID not known to the driver yet")
        gpu_uuid = None
    return Gpu(
        index=0,
        uuid=gpu_uuid,
        bdf=bdf,
        name=values.get("Model"),
        vbios=values.get("Video BIOS"),
        device_file=f"/dev/nvidia{minor}" if minor and minor.isdigit() else None,
    )


def _by_device_nodes(system: System, host: str, warnings: list[str]) -> GpuFinding | None:
    nodes = sorted((name for name in system.names("/dev") if _DEVICE_NODE.fullmatch(name)), key=natural_key)
    if not nodes:
        return None
    warnings.append(f"{len(nodes)} simulated GPU(s): device nodes only; their UUIDs are made up from host and index")
    return GpuFinding("simulated", tuple(_simulated(host, index, node) for index, node in enumerate(nodes)))


def _simulated(host: str, index: int, node: str) -> Gpu:
    made_up = uuid.uuid5(SIMULATED_NAMESPACE, f"{host}/{index}")
    return Gpu(index=index, uuid=f"GPU-{made_up}", name="simulated", device_file=f"/dev/{node}")


def _located(system: System, gpu: Gpu, slots: dict[str, str]) -> Gpu:
    if gpu.bdf is None:
        return gpu
    function = pci_function(system, gpu.bdf, slots)
    return replace(
        gpu,
        pci_id=function.pci_id,
        slot=function.slot,
        numa_node=function.numa_node,
        pcie_path=function.path,
        local_cpus=function.local_cpus,
    )
