"""The support matrix as data: which Python, torch, Megatron core, DeepSpeed and NCCL go together, and what was run.

A row says where it is from. What was never run is `unproven`; it may work, and it is said.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import PlanError

_NAME = re.compile(r"^\s*([A-Za-z0-9][A-Za-z0-9._-]*?)\s*(?:\[[^\]]*\])?\s*==\s*([^\s;]+)")


@dataclass(frozen=True)
class Environment:
    """Pinned packages of the trainer's virtual environment, from a version of Python on."""

    python: str
    packages: tuple[str, ...]
    state: str


_COMMON = (
    "torch==2.13.0",
    "deepspeed==0.19.8",
    "megatron-core==0.16.1",
    # The stacks of a job that hangs are read with it (job_evidence); it is a program, nothing imports it.
    "py-spy==0.4.3",
    # For training_job_prometheus_port; without it a job that asks for the port is refused.
    "prometheus-client==0.26.0",
)
ENVIRONMENTS = (
    Environment("3.11", (*_COMMON, "numpy==2.4.6"), "run on Debian 12 (Python 3.11)"),
    # numpy 2.4 needs Python 3.11, torch 2.13 needs 3.10: metadata of the packages.
    Environment("3.10", (*_COMMON, "numpy==2.2.6"), "unproven"),
)
"""Newest first."""


@dataclass(frozen=True)
class BaseImage:
    """A vendor's image that a training image is built from; versions as its maker publishes them."""

    python: str
    torch: str
    cuda: str
    nccl: str
    megatron_core: str
    deepspeed: str
    state: str
    source: str


IMAGES: Mapping[str, BaseImage] = {
    "nvcr.io/nvidia/pytorch:24.08-py3": BaseImage(
        python="3.10",
        torch="2.5.0a0",
        cuda="12.6",
        nccl="2.22.3",
        megatron_core="0.15.0",  # 0.15.3 and later ask for torch 2.6
        deepspeed="0.16.9",
        state="unproven: plans and NCCL environments are made for it, but no job was run in it",
        source="NVIDIA, PyTorch container release notes 24.08",
    )
}
# What a training image holds beside torch; `Containerfile` puts it there, and the job looks for it before it starts.
MODULES = ("torch", "deepspeed", "megatron.core", "rackweave", "trainer")


@dataclass(frozen=True)
class Needs:
    """From `version` on a package needs another one (or Python) of at least a version."""

    package: str
    version: str
    other: str
    at_least: str
    source: str


NEEDS = (
    Needs("megatron-core", "0.15.3", "torch", "2.6", "metadata of megatron-core"),
    Needs("megatron-core", "0.17", "python", "3.12", "metadata of megatron-core"),
    Needs("torch", "2.6", "deepspeed", "0.14.4", "earlier DeepSpeed does not import beside torch 2.6 or later: run"),
    Needs("torch", "2.13", "python", "3.10", "metadata of torch"),
    Needs("numpy", "2.3", "python", "3.11", "metadata of numpy"),
    Needs("numpy", "2.1", "python", "3.10", "metadata of numpy"),
)


def release(text: str) -> tuple[int, ...]:
    """Return the numbers of a version: ``2.5.0a0+git`` -> ``(2, 5, 0)``; pre-releases count as their release."""
    match = re.match(r"\d+(?:\.\d+)*", text.strip())
    return tuple(int(number) for number in match.group().split(".")) if match else ()


def environment_pins(python: str) -> list[str]:
    """Return the pinned packages of the trainer's environment for a Python such as ``3.11.2``.

    Raises:
        PlanError: if that Python is too old for any.
    """
    for row in ENVIRONMENTS:
        if release(python) >= release(row.python):
            return list(row.packages)
    raise PlanError(
        f"the nodes' Python is {python}, and the trainer's packages need {ENVIRONMENTS[-1].python} or later: install a "
        "newer one and name it in trainer_runtime_python, or name packages for it in trainer_runtime_packages"
    )


def pinned(packages: Sequence[str]) -> dict[str, str]:
    """Return package (as PEP 503 normalises it) to version, of requirements that pin one."""
    found = (_NAME.match(package) for package in packages)
    return {re.sub(r"[-_.]+", "-", match[1]).lower(): match[2] for match in found if match}


def clashes(versions: Mapping[str, str]) -> list[str]:
    """Return a sentence for each pair of packages (or Python) that do not go together; unknown ones are passed over."""
    return [
        f"{need.package} {versions[need.package]} needs {need.other} {need.at_least} or later, not "
        f"{versions[need.other]} ({need.source})"
        for need in NEEDS
        if need.package in versions
        and need.other in versions
        and release(versions[need.package]) >= release(need.version)
        and release(versions[need.other]) < release(need.at_least)
    ]


def support_findings(settings: Mapping[str, object]) -> list[str]:
    """Return what contradicts itself in the software that an inventory names.

    Args:
        settings: ``runtime`` (venv, docker, pyxis), ``image``, ``base_image``, ``packages`` (requirements of the
            virtual environment; empty for ours), ``torch_version``, ``nccl_version`` and ``cuda_version``, each empty
            if unset.
    """
    text = {key: str(value or "") for key, value in settings.items() if key != "packages"}
    given = settings.get("packages")
    packages = (
        [str(entry) for entry in given] if isinstance(given, (list, tuple)) and given else ENVIRONMENTS[0].packages
    )
    if (text.get("runtime") or "venv") == "venv":
        return _environment_findings(pinned(packages), text)
    return _image_findings(text)


def _environment_findings(versions: Mapping[str, str], text: Mapping[str, str]) -> list[str]:
    found = clashes(versions)
    given, torch = text.get("torch_version", ""), versions.get("torch")
    if given and torch and release(given) != release(torch):
        found.append(
            f"rackweave_torch_version={given}, but the job runs in the virtual environment with torch {torch}: "
            "leave it out, or run in an image (training_job_runtime)"
        )
    return found


def _image_findings(text: Mapping[str, str]) -> list[str]:
    name = text.get("base_image") or text.get("image", "")
    image = IMAGES.get(name)
    if image is None:
        return []
    stated = (
        ("rackweave_torch_version", text.get("torch_version"), image.torch),
        ("rackweave_nccl_version", text.get("nccl_version"), image.nccl),
        ("gpu_driver_cuda_version", text.get("cuda_version"), image.cuda),
    )
    return [
        f"{variable}={given}, but {name} has {version}: correct it, or name the right image in rackweave_base_image"
        for variable, given, version in stated
        if given and release(given) != release(version)
    ]


def support_note(settings: Mapping[str, object]) -> str:
    """Return what is known of the job's software, as one sentence for the user; the settings of `support_findings`."""
    if str(settings.get("runtime") or "venv") == "venv":
        states = ", ".join(f"Python {row.python}: {row.state}" for row in ENVIRONMENTS)
        own = "packages of the inventory: unproven" if settings.get("packages") else f"our pins ({states})"
        return f"the job runs in the virtual environment; {own}"
    name = str(settings.get("base_image") or settings.get("image") or "")
    image = IMAGES.get(name)
    if image is None:
        return f"the job's image is made from {name!r}, which the support matrix does not know: unproven"
    versions = f"Python {image.python}, torch {image.torch}, NCCL {image.nccl}"
    note = f"the job's image is made from {name} ({versions}): {image.state}"
    if settings.get("image") in IMAGES:
        note += (
            "; it holds neither the trainer nor Megatron core nor DeepSpeed: build the job's image with Containerfile"
        )
    return note
