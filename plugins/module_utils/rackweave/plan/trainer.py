"""What this project's trainer runs: which of its two engines a layout takes and why, and what it refuses.

The flat engine is faster (docs/performance.md); it is taken for what was measured with it over NCCL, nothing else.
A contract test compares the refusals with those of the trainer itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .architecture import Architecture
from .rules import Layout

TRAINER_ENGINES = {"trainer": "", "trainer-flat": "flat", "trainer-deepspeed": "deepspeed"}
"""Engines of a request that mean the trainer, each with the engine that is asked of it; "" leaves it the choice."""
PLANNED_AS = {"flat": "flat", "deepspeed": "megatron"}
"""Engine that the planner's formulas know, by engine of the trainer."""
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
_FOREIGN_TRAITS = (
    "qkv_bias",
    "output_bias",
    "qk_norm",
    "embedding_norm",
    "attention_sinks",
    "attention_window",
    "experts",
    "latent_attention",
)


@dataclass(frozen=True)
class EngineChoice:
    """`deepspeed` or `flat`, and the reason in half a sentence."""

    engine: str
    reason: str


@dataclass(frozen=True)
class JobTraits:
    """What beside the sizes decides: backend and dtype as in train.json, adapters, and the engine that is asked for."""

    backend: str = "nccl"
    dtype: str = "bfloat16"
    adapters: bool = False
    asked: str = ""


def choose_engine(sizes: Mapping[str, Any], job: JobTraits) -> EngineChoice:
    """Return the engine that the trainer runs a layout on.

    Args:
        sizes: as in plan.json; read are the parallel sizes, zero_stage, sequence_parallel and offload.
        job: the rest.
    """
    if sizes["zero_stage"] == 0:
        return EngineChoice("flat", "without ZeRO there is no other")
    if job.asked:
        return EngineChoice(job.asked, "asked for in train.json")
    if sizes["offload"] == "nvme":
        return EngineChoice("flat", "only the flat engine keeps optimizer states in a file")
    unproven = _unproven(sizes, job)
    if unproven:
        return EngineChoice("deepspeed", f"the flat engine was not measured {unproven}")
    return EngineChoice("flat", "measured over NCCL with this kind of layout, faster than DeepSpeed's")


def _unproven(sizes: Mapping[str, Any], job: JobTraits) -> str:
    """Return what of a job the flat engine was never run with on GPUs, or an empty text."""
    several = [name for name in ("tensor", "pipeline", "data") if sizes[f"{name}_parallel_size"] > 1]
    if job.backend != "nccl":
        return f"over {job.backend}"
    if job.dtype != "bfloat16":
        return f"in {job.dtype}"
    if job.adapters:
        return "with low-rank adapters on GPUs"
    if sizes["offload"] != "none":
        return f"with offload={sizes['offload']} on GPUs"
    if sizes["sequence_parallel"]:
        return "with sequence parallelism over NCCL since its collectives became operators"
    if len(several) > 1:
        return f"with {' and '.join(several)} parallelism together over NCCL"
    return ""


def layout_engine(layout: Layout, job: JobTraits) -> EngineChoice:
    """Return the engine that the trainer runs a layout on."""
    sizes = layout.sizes
    values = {
        "tensor_parallel_size": sizes.tensor_parallel_size,
        "pipeline_parallel_size": sizes.pipeline_parallel_size,
        "data_parallel_size": sizes.data_parallel_size,
        "zero_stage": layout.zero_stage,
        "sequence_parallel": layout.sequence_parallel,
        "offload": layout.offload,
    }
    return choose_engine(values, job)


def model_refusal(model: Architecture, task: str, precision: str) -> str | None:
    """Return why the trainer cannot train a model at all, or None."""
    foreign = [name for name in _FOREIGN_TRAITS if getattr(model, name)]
    if model.family == "moe" or foreign:
        return f"this trainer has no model with {', '.join(foreign) or 'experts'}, as {model.name} is one"
    if model.position_embedding == "alibi":
        return f"this trainer knows learned and rotary positions, not position_embedding=alibi of {model.name}"
    if task == "qlora":
        return "this trainer does not quantise frozen weights, so task=qlora cannot run; use task=lora"
    if precision not in DTYPES:
        return f"this trainer computes in {', '.join(DTYPES)}, not in precision={precision}"
    return None


def layout_refusal(model: Architecture, layout: Layout, job: JobTraits) -> str | None:
    """Return why the trainer cannot run a layout that other programs may run, or None."""
    sizes, stage = layout.sizes, layout.zero_stage
    tensor, pipeline = sizes.tensor_parallel_size, sizes.pipeline_parallel_size
    if sizes.context_parallel_size > 1 or sizes.expert_parallel_size > 1:
        return (
            f"this trainer runs neither context nor expert parallelism: context_parallel_size="
            f"{sizes.context_parallel_size} and expert_parallel_size={sizes.expert_parallel_size} must be 1"
        )
    if model.num_query_groups % tensor:
        return (
            f"this trainer copies no KV heads: num_query_groups={model.num_query_groups} is not a multiple of "
            f"tensor_parallel_size={tensor}"
        )
    if model.num_layers % (pipeline * sizes.virtual_pipeline_size):
        return f"this trainer runs equal stages only: num_layers={model.num_layers} on {pipeline} stages is not equal"
    if model.tied_embeddings and (stage == 3 or (stage == 2 and pipeline > 1)):
        return (
            f"tied embeddings cannot run with zero_stage={stage} and pipeline_parallel_size={pipeline} in this "
            "trainer; use zero_stage=1, or 2 without a pipeline"
        )
    return _engine_refusal(layout, job)


def _engine_refusal(layout: Layout, job: JobTraits) -> str | None:
    engine = layout_engine(layout, job).engine
    if layout.offload == "nvme" and engine == "deepspeed":
        return "offload=nvme needs the trainer's flat engine, and deepspeed is asked for"
    if job.adapters and engine == "flat" and layout.zero_stage == 3:
        return "adapters on the trainer's flat engine need zero_stage <= 2; use the engine deepspeed"
    return None
