"""Build this rank's chunks from the job, with global names, partitions and seeded weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Callable

import torch
import torch.nn.functional as F
from megatron.core.transformer.transformer_config import TransformerConfig

from ..config import JobConfig, ModelConfig, SizesConfig
from ..environment import usable_threads
from ..errors import StopError
from ..mesh import Mesh
from .huggingface import HuggingFaceWeights
from .init import LocalTensor, SeededWeights, fill, hollow
from .layers import NORM_EPSILON, LayerOptions
from .lora import add_adapters
from .partition import ParameterInfo, stage_parameters
from .stage import Stage, StageSpan

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def stage_spans(model: ModelConfig, sizes: SizesConfig, pp_rank: int) -> list[StageSpan]:
    """Return the chunks of one pipeline rank, in order of their virtual index.

    With virtual stages a rank holds every pipeline_parallel_size-th chunk (Narayanan et al. 2021).
    """
    pipeline, virtual = sizes.pipeline_parallel_size, sizes.virtual_pipeline_size
    per_chunk = model.num_layers // (pipeline * virtual)
    spans = []
    for index in range(virtual):
        position = index * pipeline + pp_rank
        last = position == pipeline * virtual - 1
        spans.append(StageSpan(position * per_chunk, per_chunk, position == 0, last, index if virtual > 1 else None))
    return spans


def transformer_config(job: JobConfig) -> TransformerConfig:
    """Return Megatron's configuration of the planned job; fusions that need Apex or a compiler stay off."""
    model, sizes, dtype = job.plan.model, job.plan.sizes, DTYPES[job.train.dtype]
    virtual = sizes.virtual_pipeline_size if sizes.virtual_pipeline_size > 1 else None
    activation: Callable[[torch.Tensor], torch.Tensor] = F.silu if model.activation == "swiglu" else F.gelu
    return TransformerConfig(
        num_layers=model.num_layers,
        hidden_size=model.hidden_size,
        ffn_hidden_size=model.ffn_hidden_size,
        num_attention_heads=model.num_attention_heads,
        num_query_groups=model.num_query_groups,
        kv_channels=model.head_dim,
        normalization="RMSNorm" if model.normalization == "rmsnorm" else "LayerNorm",
        gated_linear_unit=model.activation == "swiglu",
        activation_func=activation,
        add_bias_linear=model.linear_bias,
        hidden_dropout=job.train.dropout.hidden,
        attention_dropout=job.train.dropout.attention,
        tensor_model_parallel_size=sizes.tensor_parallel_size,
        pipeline_model_parallel_size=sizes.pipeline_parallel_size,
        virtual_pipeline_model_parallel_size=virtual,
        sequence_parallel=sizes.sequence_parallel,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=job.train.dtype == "bfloat16",
        fp16=job.train.dtype == "float16",
        # Megatron then leaves the device to the caller, which is what lets a model be outlined without memory.
        use_cpu_initialization=True,
        perform_initialization=False,
        gradient_accumulation_fusion=False,
        masked_softmax_fusion=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        apply_rope_fusion=False,
        persist_layer_norm=False,
        batch_p2p_comm=False,
        # The backward seam of trainer.schedule keeps the graph of an output: nothing may be freed under it.
        deallocate_pipeline_outputs=False,
    )


def outline_stages(job: JobConfig, mesh: Mesh) -> list[Stage]:
    """Build this rank's chunks with hollow parameters: shapes, types and device, but no memory (see init.hollow)."""
    sizes, dropout = job.plan.sizes, job.train.dropout
    config = transformer_config(job)
    imported = imported_weights(job)
    options = LayerOptions(
        model=job.plan.model,
        device=mesh.device,
        sequence_parallel=sizes.sequence_parallel,
        hidden_dropout=dropout.hidden,
        attention_dropout=dropout.attention,
        recompute_mlp=sizes.recompute == "selective",
        norm_epsilon=NORM_EPSILON if imported is None else imported.norm_epsilon,
    )
    with torch.device("meta"):
        stages = [
            Stage(options, config, mesh.tensor, span, recompute_layers=sizes.recompute == "full")
            for span in stage_spans(job.plan.model, sizes, mesh.where.pp_rank)
        ]
        if job.train.lora is not None:
            for stage in stages:
                add_adapters(stage, job.train.lora)
    hollow(stages, job.plan.model, mesh)
    return stages


def weights_of(job: JobConfig) -> LocalTensor:
    """Return where a rank's initial weights come from: the seed, or imported ones; equal in every layout."""
    model = job.plan.model
    drawn = SeededWeights(model, job.train.seed, usable_threads())
    imported = imported_weights(job)
    if imported is None:
        return drawn

    def local(info: ParameterInfo) -> torch.Tensor:
        if ".lora_" in info.name:
            return drawn(info)
        tensor = imported.whole(info.name)
        if tuple(tensor.shape) != info.global_shape:
            raise StopError(
                f"{info.name} has shape {tuple(tensor.shape)} in the imported weights, not {info.global_shape}"
            )
        return info.take(tensor)

    return local


def build_stages(job: JobConfig, mesh: Mesh) -> list[Stage]:
    """Build this rank's chunks on its device, with their initial weights."""
    stages = outline_stages(job, mesh)
    fill(parameters_of(job, mesh, stages), weights_of(job))
    return stages


def parameters_of(job: JobConfig, mesh: Mesh, stages: Sequence[Stage]) -> list[ParameterInfo]:
    """Return every parameter of this rank's chunks; call it before an engine changes the parameters' shapes."""
    return list(stage_parameters(stages, job.plan.model, mesh.where.tp_rank, mesh.sizes.tensor_parallel_size))


def imported_weights(job: JobConfig) -> HuggingFaceWeights | None:
    """Open the weights to start from, or return None where the seed decides.

    Raises:
        StopError: if they are missing, damaged or of another architecture than the plan's.
    """
    weights = job.train.weights
    return None if weights is None else HuggingFaceWeights(Path(weights.path), job.plan.model)
