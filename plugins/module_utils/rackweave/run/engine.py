"""What the plan decides for the own trainer beside the layout: its engine, and the peak that its MFU is measured by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import PlanError
from ..hardware.catalog import find_gpu
from ..plan.trainer import DTYPES, EngineChoice, JobTraits
from ..plan.trainer import choose_engine as choose_for_sizes
from .plan_file import RunPlan

__all__ = ["EngineChoice", "choose_engine", "with_peak"]


def choose_engine(plan: RunPlan, train: Mapping[str, Any]) -> EngineChoice:
    """Return the engine of a plan whose ``train.json`` leaves it open, or the one that it names."""
    traits = JobTraits(train["backend"], train["dtype"], bool(train.get("lora")), train.get("engine") or "")
    return choose_for_sizes(plan.document["sizes"], traits)


def with_peak(plan: RunPlan, train: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``train.json`` with the dense peak of the planned GPU in the training dtype, where it names none."""
    telemetry = train["telemetry"]
    gpu = find_gpu(str(plan.document["cluster"]["hosts"][0]["gpu"]))
    precision = next(name for name, dtype in DTYPES.items() if dtype == train["dtype"])
    if telemetry.get("peak_flops_per_second") is not None or gpu is None:
        return dict(train)
    try:
        peak = gpu.peak_flops_per_second(precision)
    except PlanError:
        return dict(train)  # the part has no such rate, so there is no MFU
    return {**train, "telemetry": {**telemetry, "peak_flops_per_second": peak}}
