"""``ds_config.json``: DeepSpeed's configuration, derived from the plan and the training settings, nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import DocumentError
from .plan_file import RunPlan


def render_ds_config(plan: RunPlan, train: Mapping[str, Any]) -> dict[str, Any]:
    """Return DeepSpeed's configuration of a plan.

    DeepSpeed's gradient accumulation is Megatron's number of micro-batches, its data-parallel axis is ours.

    Raises:
        DocumentError: if the plan offloads with a ZeRO stage that cannot (DeepSpeed's offload needs stage 1 to 3).
    """
    return {
        "train_batch_size": plan.global_batch_size,
        "train_micro_batch_size_per_gpu": plan.micro_batch_size,
        "gradient_accumulation_steps": plan.num_microbatches,
        "gradient_clipping": train["optimizer"]["clip_grad"],
        "zero_optimization": _zero(plan),
        # The optimizer is the trainer's own AdamW, so no CUDA operator has to be compiled on the nodes.
        "zero_allow_untested_optimizer": True,
        "bf16": {"enabled": train["dtype"] == "bfloat16"},
        "fp16": {"enabled": train["dtype"] == "float16"},
        "steps_per_print": 1_000_000,
        "wall_clock_breakdown": False,
    }


def _zero(plan: RunPlan) -> dict[str, Any]:
    offload = plan.document["sizes"]["offload"]
    zero: dict[str, Any] = {"stage": plan.zero_stage}
    if offload == "none":
        return zero
    if plan.zero_stage == 0:
        raise DocumentError(f"offload={offload} needs zero_stage 1, 2 or 3, but the plan has zero_stage=0")
    zero["offload_optimizer"] = {"device": offload, "pin_memory": True}
    return zero
