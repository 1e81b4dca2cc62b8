"""Megatron-LM's command-line flags for a plan, for a user's own ``pretrain_gpt.py`` under our launcher.

Flag names: Megatron-LM ``megatron/training/arguments.py`` (core 0.15). One word a line, so that no shell splits them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import DocumentError
from .plan_file import RunPlan

_NORMALIZATION = {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"}
_POSITIONS = {"learned": "learned_absolute", "rotary": "rope"}
_PRECISION = {"float32": (), "bfloat16": ("--bf16",), "float16": ("--fp16",)}


def megatron_args(plan: RunPlan, train: Mapping[str, Any]) -> list[str]:
    """Return the words of Megatron's command line that follow from a plan and ``train.json``.

    Raises:
        DocumentError: for a model that these flags cannot describe.
    """
    model = plan.document["model"]
    if model["family"] not in ("gpt", "llama") or model["position_embedding"] not in _POSITIONS:
        raise DocumentError(
            f"model {model['name']} ({model['family']}, position embedding {model['position_embedding']}) has no "
            "complete set of Megatron flags here; write them into training_job_command"
        )
    values: dict[str, Any] = {
        **_parallel_flags(plan),
        **_model_flags(plan.document["model"]),
        **_optimizer_flags(train),
        "--save": train["checkpoint"]["directory"],
        "--load": train["checkpoint"]["directory"],
        "--distributed-backend": train["backend"],
    }
    if train["checkpoint"]["interval"]:
        values["--save-interval"] = train["checkpoint"]["interval"]
    words = [word for flag, value in values.items() if value is not None for word in (flag, str(value))]
    return words + _switches(plan) + list(_PRECISION[train["dtype"]])


def _parallel_flags(plan: RunPlan) -> dict[str, Any]:
    parallel = plan.parallel
    flags: dict[str, Any] = {
        "--tensor-model-parallel-size": parallel.tensor_parallel_size,
        "--pipeline-model-parallel-size": parallel.pipeline_parallel_size,
        "--micro-batch-size": plan.micro_batch_size,
        "--global-batch-size": plan.global_batch_size,
    }
    if parallel.context_parallel_size > 1:
        flags["--context-parallel-size"] = parallel.context_parallel_size
    if parallel.expert_parallel_size > 1:
        flags["--expert-model-parallel-size"] = parallel.expert_parallel_size
    if parallel.virtual_pipeline_size > 1:
        layers = plan.document["model"]["num_layers"]
        chunks = parallel.pipeline_parallel_size * parallel.virtual_pipeline_size
        flags["--num-layers-per-virtual-pipeline-stage"] = layers // chunks
    return flags


def _model_flags(model: Mapping[str, Any]) -> dict[str, Any]:
    flags = {
        "--num-layers": model["num_layers"],
        "--hidden-size": model["hidden_size"],
        "--ffn-hidden-size": model["ffn_hidden_size"],
        "--num-attention-heads": model["num_attention_heads"],
        "--seq-length": model["sequence_length"],
        "--max-position-embeddings": model["sequence_length"],
        "--kv-channels": model["head_dim"],
        "--normalization": _NORMALIZATION[model["normalization"]],
        "--position-embedding-type": _POSITIONS[model["position_embedding"]],
    }
    if model["num_query_groups"] != model["num_attention_heads"]:
        flags["--num-query-groups"] = model["num_query_groups"]
    if model["position_embedding"] == "rotary" and model.get("rotary_base"):
        flags["--rotary-base"] = int(model["rotary_base"])
    return flags


def _optimizer_flags(train: Mapping[str, Any]) -> dict[str, Any]:
    optimizer = train["optimizer"]
    return {
        "--lr": optimizer["learning_rate"],
        "--min-lr": optimizer["minimum_learning_rate"],
        "--lr-warmup-iters": optimizer["warmup_steps"],
        "--lr-decay-iters": optimizer["decay_steps"],
        "--lr-decay-style": optimizer["schedule"],
        "--weight-decay": optimizer["weight_decay"],
        "--adam-beta1": optimizer["beta1"],
        "--adam-beta2": optimizer["beta2"],
        "--adam-eps": optimizer["epsilon"],
        "--clip-grad": optimizer["clip_grad"],
        "--train-iters": train["steps"],
        "--seed": train["seed"],
        "--hidden-dropout": train["dropout"]["hidden"],
        "--attention-dropout": train["dropout"]["attention"],
        "--distributed-timeout-minutes": max(1, round(train["timeouts"]["collective_s"] / 60)),
    }


def _switches(plan: RunPlan) -> list[str]:
    model = plan.document["model"]
    sizes = plan.document["sizes"]
    words = []
    if model["num_query_groups"] != model["num_attention_heads"]:
        words.append("--group-query-attention")
    if model["num_query_groups"] != model["num_attention_heads"] or model["family"] == "llama":
        words.append("--use-mcore-models")
    if model["activation"] == "swiglu":
        words.append("--swiglu")
    if not model["linear_bias"]:
        words.append("--disable-bias-linear")
    if not model["tied_embeddings"]:
        words.append("--untie-embeddings-and-output-weights")
    if sizes["sequence_parallel"]:
        words.append("--sequence-parallel")
    if sizes["recompute"] == "selective":
        words.append("--recompute-activations")
    if sizes["recompute"] == "full":
        words += ["--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1"]
    return words
