"""``nvidia-smi -q -x``: GPUs as the driver's own tool describes them."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass

from ..errors import ParseError
from .node import Gpu
from .text import excerpt, plain

TOOL = "nvidia-smi -q -x"
_UNKNOWN = (
    "",
    "N/A",
    "[N/A]",
    "Unknown Error",
    "[Unknown Error]",
    "Not Supported",
    "Requested functionality has been deprecated",
)


@dataclass(frozen=True)
class GpuReading:
    """What one source says of all GPUs: versions of driver (userspace) and CUDA, and the GPUs themselves."""

    driver: str | None
    cuda: str | None
    gpus: tuple[Gpu, ...]


def parse_nvidia_smi_xml(text: str) -> GpuReading:
    """Read the XML report.

    Raises:
        ParseError: if it is no such report, is cut, or its GPU count contradicts its GPUs.
    """
    report = plain(text, TOOL)
    if "<!ENTITY" in report:
        raise ParseError(f"{TOOL}: the report declares entities, which the tool never does")
    try:
        root = ElementTree.fromstring(report)
    except ElementTree.ParseError as error:
        raise ParseError(f"{TOOL}: not the XML report ({error}): {excerpt(report.strip().splitlines()[0])}") from error
    gpus = root.findall("gpu")
    count = _text(root, "attached_gpus")
    if root.tag != "nvidia_smi_log" or count is None or not count.isdigit() or int(count) != len(gpus):
        raise ParseError(f"{TOOL}: attached_gpus={count} but {len(gpus)} GPU(s) are described")
    # The report is ordered by PCI address; the minor number is the device file, and the index follows the order.
    ordered = sorted((_gpu(gpu, index) for index, gpu in enumerate(gpus)), key=lambda gpu: gpu.index)
    return GpuReading(_text(root, "driver_version"), _text(root, "cuda_version"), tuple(ordered))


def _gpu(element: ElementTree.Element, index: int) -> Gpu:
    bdf = normal_bdf(element.get("id") or "")
    uuid = _text(element, "uuid")
    if uuid is None:
        raise ParseError(f"{TOOL}: GPU {bdf} has no uuid")
    minor = _whole(element, "minor_number", "")
    ecc = _text(element, "ecc_mode/current_ecc")
    memory = _whole(element, "fb_memory_usage/total", "MiB")
    power = _first(element, ("gpu_power_readings", "power_readings"), ("current_power_limit", "power_limit"))
    return Gpu(
        index=index,
        uuid=uuid,
        bdf=bdf,
        name=_text(element, "product_name"),
        serial=_text(element, "serial"),
        memory_bytes=None if memory is None else memory * 1024 * 1024,
        ecc_enabled=None if ecc is None else ecc == "Enabled",
        max_sm_clock_mhz=_whole(element, "max_clocks/sm_clock", "MHz"),
        power_limit_w=power,
        vbios=_text(element, "vbios_version"),
        device_file=None if minor is None else f"/dev/nvidia{minor}",
    )


def _first(element: ElementTree.Element, sections: tuple[str, ...], names: tuple[str, ...]) -> int | None:
    for section in sections:
        for name in names:
            value = _whole(element, f"{section}/{name}", "W")
            if value is not None:
                return value
    return None


def _text(element: ElementTree.Element, path: str) -> str | None:
    value = (element.findtext(path) or "").strip()
    return None if value in _UNKNOWN else value


def _whole(element: ElementTree.Element, path: str, unit: str) -> int | None:
    value = _text(element, path)
    if value is None:
        return None
    # Only watts have decimals, always two; "1.980 MHz" would be another locale's 1980.
    decimals = r"(?:\.\d{2})?" if unit == "W" else ""
    match = re.fullmatch(rf"(\d+){decimals}{' ' + unit if unit else ''}", value)
    if not match:
        raise ParseError(f"{TOOL}: {path} is {excerpt(value)}, not a number{' of ' + unit if unit else ''}")
    return int(match[1])


def normal_bdf(text: str) -> str:
    """Return a PCI address as sysfs writes it: NVIDIA's tools print eight upper-case digits of domain.

    Raises:
        ParseError: if it is not a PCI address.
    """
    match = re.fullmatch(r"([0-9A-Fa-f]{1,8}):([0-9A-Fa-f]{2}):([0-9A-Fa-f]{2})\.([0-7])", text.strip())
    if not match:
        raise ParseError(f"{excerpt(text)} is not a PCI address like 00000000:17:00.0")
    return f"{int(match[1], 16):04x}:{match[2]}:{match[3]}.{match[4]}".lower()
