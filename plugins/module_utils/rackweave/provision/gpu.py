"""GPU software decisions from PCI devices, versions and capabilities: fabric manager, GPUDirect way, reboot reasons.

The table of devices below has only what these decisions need; capabilities of GPUs are in ``hardware/catalog.py``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import ProvisionError
from .versions import version_key

NVIDIA_VENDOR = "10de"
_GPU_CLASSES = ("0300", "0302")  # VGA controller, 3D controller
_NVSWITCH_CLASS = "0680"  # bridge of another kind
# HGX boards whose switches hang behind ConnectX-7 functions, so that no NVSwitch shows among the PCI devices of NVIDIA,
# yet the node's own fabric manager (with the NVLink subnet manager) programs them. Source: Fabric Manager User Guide.
_HGX_WITH_HIDDEN_SWITCHES = {"2901": "B200 SXM", "3182": "B300 SXM"}
# Oldest components for GPU memory registration through dmabuf. Source: NCCL documentation, NCCL_DMABUF_ENABLE.
_DMABUF_DRIVER, _DMABUF_KERNEL, _DMABUF_CUDA = "515", "5.12", "11.7"
# Generations with NVSwitches whose GPUs report no fabric state, as nvidia-smi spells them. Sources: NVML documentation,
# nvmlDeviceGetGpuFabricInfo (Hopper or newer); nvidia-smi 555.42 on A100 SXM4, which prints N/A for all of it.
_WITHOUT_FABRIC_STATE = ("Volta", "Ampere")
# The newest NCCL that does not find nvidia_peermem under its newer path. Source: NVIDIA/nccl issue 1676.
_NCCL_BLIND_TO_PEERMEM = "2.22.3"


@dataclass(frozen=True)
class PciDevice:
    """One PCI function: address with domain, class (four hex digits), vendor and device (four hex digits)."""

    bdf: str
    pci_class: str
    vendor: str
    device: str


def pci_devices(rows: Sequence[Mapping[str, str]]) -> tuple[PciDevice, ...]:
    """Return the devices that the module ``gpu_driver_facts`` read, with hexadecimal ids in one spelling."""
    return tuple(
        PciDevice(
            bdf=row["bdf"].lower(),
            pci_class=_hex(row["class"])[:4],
            vendor=_hex(row["vendor"]),
            device=_hex(row["device"]),
        )
        for row in rows
    )


def _hex(text: str) -> str:
    text = text.lower()
    return text[2:] if text.startswith("0x") else text


def gpus(devices: Sequence[PciDevice]) -> tuple[PciDevice, ...]:
    """Return the NVIDIA GPUs, by class and vendor, so that a GPU too new for any table is still one."""
    return tuple(d for d in devices if d.vendor == NVIDIA_VENDOR and d.pci_class in _GPU_CLASSES)


def nvswitches(devices: Sequence[PciDevice]) -> tuple[PciDevice, ...]:
    """Return the NVSwitches among the PCI devices.

    Only class 0680 counts. NVIDIA's PCI-to-PCI bridges (0604) are root ports of its own CPUs, not switches of NVLink.
    """
    return tuple(d for d in devices if d.vendor == NVIDIA_VENDOR and d.pci_class == _NVSWITCH_CLASS)


def fabric_manager_decision(devices: Sequence[PciDevice], state: str) -> dict[str, object]:
    """Return whether the node needs a fabric manager of its own, and why.

    Args:
        devices: all PCI devices of the node.
        state: ``auto``, ``present`` or ``absent`` as the operator configured it.
    """
    switches = nvswitches(devices)
    models = {d.device for d in gpus(devices)}
    hidden = sorted(name for device, name in _HGX_WITH_HIDDEN_SWITCHES.items() if device in models)
    if state not in ("auto", "present", "absent"):
        raise ProvisionError(f"gpu_driver_fabric_manager={state!r} is none of auto, present, absent")
    if state != "auto":
        return {"wanted": state == "present", "subnet_manager": bool(hidden), "reason": f"configured as {state}"}
    if switches:
        return {"wanted": True, "subnet_manager": False, "reason": f"{len(switches)} NVSwitch devices on the PCI bus"}
    if hidden:
        reason = f"{', '.join(hidden)} boards have NVSwitches behind network functions"
        return {"wanted": True, "subnet_manager": True, "reason": reason}
    return {"wanted": False, "subnet_manager": False, "reason": "no NVSwitch on the PCI bus"}


def gpudirect_decision(
    *, requested: str, flavour: str, driver: str, kernel: str, cuda: str | None, nccl: str | None = None
) -> dict[str, object]:
    """Return how NICs reach GPU memory: ``dmabuf`` or ``peermem``, with the reason and warnings.

    Args:
        requested: ``auto``, ``dmabuf`` or ``peermem``.
        flavour: of the kernel modules, ``open`` or ``proprietary``.
        driver: full driver version.
        kernel: kernel release.
        cuda: version of the CUDA runtime that jobs use; ``None`` if the job brings an unknown one.
        nccl: version that jobs use, if known.

    Raises:
        ProvisionError: if dmabuf is asked for where it cannot work.
    """
    lacking = _dmabuf_lacks(flavour, driver, kernel, cuda)
    if requested == "dmabuf" and lacking:
        raise ProvisionError(f"gpu_driver_gpudirect=dmabuf cannot work here: {'; '.join(lacking)}")
    if requested not in ("auto", "dmabuf", "peermem"):
        raise ProvisionError(f"gpu_driver_gpudirect={requested!r} is none of auto, dmabuf, peermem")
    if requested != "peermem" and not lacking:
        return {"way": "dmabuf", "reason": "open modules, driver, kernel and CUDA all carry dmabuf", "warnings": []}
    warnings = []
    if nccl is not None and version_key(nccl) <= version_key(_NCCL_BLIND_TO_PEERMEM):
        warnings.append(
            f"NCCL {nccl} does not find newer nvidia_peermem modules and reports GPUDirect RDMA as unavailable; "
            f"use an NCCL newer than {_NCCL_BLIND_TO_PEERMEM}, or dmabuf"
        )
    reason = "configured" if requested == "peermem" else "; ".join(lacking)
    return {"way": "peermem", "reason": reason, "warnings": warnings}


def _dmabuf_lacks(flavour: str, driver: str, kernel: str, cuda: str | None) -> list[str]:
    lacking = []
    if flavour != "open":
        lacking.append("kernel modules are proprietary, dmabuf needs the open ones")
    if version_key(driver) < version_key(_DMABUF_DRIVER):
        lacking.append(f"driver {driver} is older than {_DMABUF_DRIVER}")
    if version_key(kernel) < version_key(_DMABUF_KERNEL):
        lacking.append(f"kernel {kernel} is older than {_DMABUF_KERNEL}")
    if cuda is not None and version_key(cuda) < version_key(_DMABUF_CUDA):
        lacking.append(f"CUDA {cuda} is older than {_DMABUF_CUDA}")
    return lacking


def driver_reboot_reasons(facts: Mapping[str, object], *, wanted: str) -> list[str]:
    """Return why the wanted driver is not the one in use; an empty list means that no reboot is due.

    Args:
        facts: of the module ``gpu_driver_facts`` after installation.
        wanted: the full driver version that is installed now.
    """
    reasons = []
    loaded = facts.get("loaded_driver")
    modules = facts.get("modules")
    loaded_modules = modules if isinstance(modules, (list, tuple)) else ()
    if "nouveau" in loaded_modules:
        reasons.append("nouveau drives the GPUs and can only be replaced at boot")
    if loaded is None:
        reasons.append(f"driver {wanted} is installed and not loaded")
    elif loaded != wanted:
        reasons.append(f"driver {loaded} is loaded, {wanted} is installed")
    return reasons


def driver_library_mismatch(loaded: str | None, library: str | None) -> str | None:
    """Return a sentence if the driver in the kernel and the user-space library differ; new jobs would fail in NVML."""
    if loaded is None or library is None:
        return None
    # NVML names itself by branch and minor number only, so no more than both sides give is compared.
    mine, theirs = loaded.split("."), library.split(".")
    shared = min(len(mine), len(theirs))
    if mine[:shared] == theirs[:shared]:
        return None
    return (
        f"kernel driver {loaded} and user-space library {library} differ: running jobs go on, new ones fail with "
        "'Driver/library version mismatch'; drain the node and reboot it"
    )


def kernel_headers_missing(kernel: str, found: bool, package: str, candidate: str | None) -> str | None:
    """Return a sentence if modules cannot be built for the running kernel, else ``None``.

    Args:
        kernel: release of the running kernel.
        found: whether its build directory exists.
        package: name of the package that brings it.
        candidate: version of that package in the repositories, ``None`` if there is none.
    """
    if found or candidate is not None:
        return None
    return (
        f"no kernel headers for the running kernel {kernel}: its build directory is absent and no repository has "
        f"{package}, so DKMS could not build the driver; boot a kernel whose headers are available "
        "(a planned kernel move), or add the repository that has them"
    )


def peermem_rebuild(depends: str, dkms: str, driver: str) -> list[str]:
    """Return the DKMS modules (``name/version``) to build anew because nvidia-peermem was built before OFED was there.

    Without OFED's peer memory interface the module is a stub that names no InfiniBand module among its dependencies,
    and refuses to load.

    Args:
        depends: ``modinfo --field depends nvidia_peermem``; empty where there is no such module or it needs nothing.
        dkms: ``dkms status``, of DKMS 2 (``nvidia, 570.86.10, …``) or 3 (``nvidia/570.86.10, …``).
        driver: the installed full version.
    """
    if any(name.startswith("ib_") for name in re.split(r"[,\s]+", depends)):
        return []
    found = re.findall(r"^(nvidia[\w.-]*)(?:/|, )([\d.]+)\b", dkms, re.MULTILINE)
    return list(dict.fromkeys(f"{name}/{version}" for name, version in found if version == driver))


def smi_library_version(text: str) -> str | None:
    """Return the version of the user-space library that nvidia-smi prints, ``None`` if it prints none.

    On a mismatch nvidia-smi fails and names the library itself: ``NVML library version: 535.309``.
    """
    version = r"(\d{3}\.\d+(?:\.\d+)?)"
    for label in (r"NVIDIA-SMI(?: version\s*:)?\s+", r"NVML version\s*:\s*", r"NVML library version:\s*"):
        pattern = label + version
        match = re.search(pattern, text)
        if match:
            return match.group(1)
    return None


def first_version(text: str) -> str:
    """Return the first driver-like version in a text, such as ``Fabric Manager version is : 535.161.07``."""
    match = re.search(r"\b\d{3}\.\d{1,3}(?:\.\d{1,3})?\b", text)
    if match is None:
        raise ProvisionError(f"no driver version in {text.strip()[:80]!r}")
    return match.group(0)


def fabric_is_up(text: str, *, manager_runs: bool = False) -> bool:
    """Return whether ``nvidia-smi --query`` shows the NVLink fabric as completed with success.

    The service being active is not enough: it stays active while a GPU is still registering or has failed to. Only
    generations that report no fabric at all leave nothing else to ask.

    Args:
        text: of one GPU.
        manager_runs: whether the service of the fabric manager is active.
    """
    value = r"(\S[^\n]*?)[ \t]*"
    match = re.search(rf"^\s*Fabric\s*\n\s*State\s*:\s*{value}\n\s*Status\s*:\s*{value}$", text, re.MULTILINE)
    generation = re.search(r"^\s*Product Architecture\s*:\s*(\S+)", text, re.MULTILINE)
    if generation is not None and generation.group(1) in _WITHOUT_FABRIC_STATE:
        return manager_runs and (match is None or match.group(1) == "N/A")
    return match is not None and match.group(1) == "Completed" and match.group(2) == "Success"
