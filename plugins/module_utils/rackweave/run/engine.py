"""Which of the trainer's engines a run takes: the planner's choice, asked with what ``train.json`` says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..plan.trainer import EngineChoice, JobTraits
from ..plan.trainer import choose_engine as choose_for_sizes
from .plan_file import RunPlan

__all__ = ["EngineChoice", "choose_engine"]


def choose_engine(plan: RunPlan, train: Mapping[str, Any]) -> EngineChoice:
    """Return the engine of a plan whose ``train.json`` leaves it open, or the one that it names."""
    traits = JobTraits(train["backend"], train["dtype"], bool(train.get("lora")), train.get("engine") or "")
    return choose_for_sizes(plan.document["sizes"], traits)
