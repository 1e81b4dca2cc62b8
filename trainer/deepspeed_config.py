"""DeepSpeed's configuration: the attempt's ds_config.json, checked against the plan, plus what the schedule needs."""

from __future__ import annotations

import copy
import importlib
import importlib.metadata
from typing import Any

from .config import JobConfig, runs_flat
from .errors import StopError

LARGEST_BUCKET = 500_000_000
SECTIONS = {"bfloat16": "bf16", "float16": "fp16"}
VALIDATORS = {
    "zero_optimization": ("deepspeed.runtime.zero.config", "DeepSpeedZeroConfig"),
    "bf16": ("deepspeed.runtime.precision_config", "DeepSpeedBF16Config"),
    "fp16": ("deepspeed.runtime.precision_config", "DeepSpeedFP16Config"),
}
"""DeepSpeed's own classes of sections."""


def deepspeed_settings(job: JobConfig, manual_boundary: bool, largest_useful_bucket: int) -> dict[str, Any]:
    """Return the configuration to initialise DeepSpeed with.

    Args:
        manual_boundary: True where each backward is told whether it is the last of the step; False where step() is
            the boundary, so that gradients can be changed (tied embeddings) before they are reduced.
        largest_useful_bucket: elements that this rank holds; a larger communication bucket would stay empty.

    Raises:
        StopError: if ds_config.json contradicts the plan.
    """
    settings = copy.deepcopy(job.deepspeed)
    check_deepspeed(job)
    for name, value in _planned(job).items():
        settings.setdefault(name, value)
    zero = settings.setdefault("zero_optimization", {})
    zero["stage"] = job.plan.sizes.zero_stage
    zero.setdefault("contiguous_gradients", True)
    zero.setdefault("overlap_comm", False)
    zero.setdefault("round_robin_gradients", False)
    # DeepSpeed's own default is 500 million elements, whatever the model's size, and it allocates all of them.
    bucket = min(LARGEST_BUCKET, largest_useful_bucket)
    zero.setdefault("reduce_bucket_size", bucket)
    zero.setdefault("allgather_bucket_size", bucket)
    for dtype, section in SECTIONS.items():
        if section in settings or dtype == job.train.dtype:
            settings.setdefault(section, {})["enabled"] = dtype == job.train.dtype
    settings["gradient_clipping"] = job.train.optimizer.clip_grad
    # Our own AdamW: nothing is compiled, and the learning rate stays a pure function of the step.
    settings.pop("optimizer", None)
    settings.pop("scheduler", None)
    settings["zero_allow_untested_optimizer"] = True
    if job.plan.sizes.offload == "cpu":
        zero.setdefault("offload_optimizer", {"device": "cpu", "pin_memory": job.train.backend == "nccl"})
        # Its own optimizer for the host is an operator that would be compiled on every node.
        settings["zero_force_ds_cpu_optimizer"] = False
    settings["steps_per_print"] = 10**9
    if not manual_boundary:
        settings["managed_gradient_accumulation"] = False
    return settings


def check_deepspeed(job: JobConfig) -> None:
    """Raise StopError if the attempt's ds_config.json names another size, stage or type than the plan."""
    given = job.deepspeed
    _check_sections(given)
    _check_tied(job)
    for name, planned in _planned(job).items():
        if given.get(name, planned) not in (planned, "auto"):
            raise StopError(f"ds_config.json has {name}={given[name]}, the plan needs {planned}")
    clip = job.train.optimizer.clip_grad
    if given.get("gradient_clipping", clip) not in (clip, "auto"):
        raise StopError(
            f"ds_config.json has gradient_clipping={given['gradient_clipping']}, train.json optimizer.clip_grad={clip}"
        )
    stage = given.get("zero_optimization", {}).get("stage", job.plan.sizes.zero_stage)
    if stage != job.plan.sizes.zero_stage:
        raise StopError(f"ds_config.json has zero_optimization.stage={stage}, the plan {job.plan.sizes.zero_stage}")
    device = given.get("zero_optimization", {}).get("offload_optimizer", {}).get("device", job.plan.sizes.offload)
    if device != job.plan.sizes.offload:
        raise StopError(
            f"ds_config.json has zero_optimization.offload_optimizer.device={device}, the plan "
            f"offload={job.plan.sizes.offload}"
        )
    if not runs_flat(job.plan.sizes.zero_stage, job.train.engine):
        for section, (module, name) in VALIDATORS.items():
            _check_section(section, given.get(section, {}), module, name)
    for dtype, section in SECTIONS.items():
        enabled = given.get(section, {}).get("enabled", dtype == job.train.dtype)
        if enabled not in (dtype == job.train.dtype, "auto"):
            raise StopError(
                f"ds_config.json has {section}.enabled={enabled}, but train.json has dtype={job.train.dtype}"
            )


def _check_sections(given: dict[str, Any]) -> None:
    """Raise StopError unless every section that is read is an object."""
    for name in ("zero_optimization", *SECTIONS.values()):
        if not isinstance(given.get(name, {}), dict):
            raise StopError(f"ds_config.json: {name}={given[name]!r} must be an object")
    offload = given.get("zero_optimization", {}).get("offload_optimizer", {})
    if not isinstance(offload, dict):
        raise StopError(f"ds_config.json: zero_optimization.offload_optimizer={offload!r} must be an object")


def _check_section(section: str, content: dict[str, Any], module: str, name: str) -> None:
    """Raise StopError if DeepSpeed itself would refuse a section, which it does with many lines and much later."""
    try:
        validator = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError:
        return  # an older DeepSpeed, which takes what it knows of this section and looks at nothing else
    try:
        validator(**{key: value for key, value in content.items() if (key, value) != ("enabled", "auto")})
    except (ValueError, TypeError) as error:
        details: list[dict[str, Any]] = getattr(error, "errors", list)()
        said = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in details) or str(error)
        raise StopError(f"ds_config.json: {section} is refused by DeepSpeed: {said}") from error


def _check_tied(job: JobConfig) -> None:
    """Raise StopError if this DeepSpeed reduces gradients before two copies of a tied embedding can be summed."""
    sizes = job.plan.sizes
    tied = job.plan.model.tied_embeddings and sizes.pipeline_parallel_size > 1
    if not tied or job.train.engine == "flat" or sizes.zero_stage == 0:
        return
    constants = importlib.import_module("deepspeed.runtime.constants")
    if not hasattr(constants, "MANAGED_GRADIENT_ACCUMULATION"):
        raise StopError(
            f"tied embeddings over pipeline_parallel_size={sizes.pipeline_parallel_size} need a DeepSpeed with "
            f"managed_gradient_accumulation (0.19 has it), not {importlib.metadata.version('deepspeed')}: take "
            "engine=flat, or untie the embeddings"
        )


def _planned(job: JobConfig) -> dict[str, int]:
    sizes = job.plan.sizes
    return {
        "train_batch_size": sizes.global_batch_size,
        "train_micro_batch_size_per_gpu": sizes.micro_batch_size,
        "gradient_accumulation_steps": sizes.num_microbatches,
    }
