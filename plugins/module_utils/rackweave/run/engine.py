"""Which of the trainer's engines a plan runs on where nobody says so, and why.

The flat engine is faster (docs/performance.md); it is taken for what was measured with it over NCCL, nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .plan_file import RunPlan


@dataclass(frozen=True)
class EngineChoice:
    """`deepspeed` or `flat`, and the reason in half a sentence."""

    engine: str
    reason: str


def choose_engine(plan: RunPlan, train: Mapping[str, Any]) -> EngineChoice:
    """Return the engine of a plan whose ``train.json`` leaves it open, or the one that it names."""
    if "engine" in train:
        return EngineChoice(train["engine"], "asked for in train.json")
    sizes = plan.document["sizes"]
    if sizes["offload"] == "nvme":
        return EngineChoice("flat", "only the flat engine keeps optimizer states in a file")
    unproven = _unproven(sizes, train)
    if unproven:
        return EngineChoice("deepspeed", f"the flat engine was not measured {unproven}")
    return EngineChoice("flat", "measured over NCCL with this kind of layout, faster than DeepSpeed's")


def _unproven(sizes: Mapping[str, Any], train: Mapping[str, Any]) -> str:
    """Return what of a job the flat engine was never run with on GPUs, or an empty text."""
    several = [name for name in ("tensor", "pipeline", "data") if sizes[f"{name}_parallel_size"] > 1]
    if train["backend"] != "nccl":
        return f"over {train['backend']}"
    if train["dtype"] != "bfloat16":
        return f"in {train['dtype']}"
    if train.get("lora"):
        return "with low-rank adapters on GPUs"
    if sizes["offload"] != "none":
        return f"with offload={sizes['offload']} on GPUs"
    if sizes["sequence_parallel"]:
        return "with sequence parallelism over NCCL since its collectives became operators"
    if len(several) > 1:
        return f"with {' and '.join(several)} parallelism together over NCCL"
    return ""
