"""Weights that depend on the seed and the global name only: every layout starts from the same model."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..config import ModelConfig
from ..mesh import Mesh
from .partition import ParameterInfo, stage_parameters
from .stage import Stage

STANDARD_DEVIATION = 0.02


WholeTensor = Callable[[ParameterInfo], Tensor]


def initialize(stages: Sequence[Stage], model: ModelConfig, source: WholeTensor, mesh: Mesh) -> None:
    """Fill all parameters from a source of whole tensors, and mark the split ones for DeepSpeed's gradient norm.

    One whole tensor at a time is on the CPU, so the peak is the largest tensor, not the model.
    """
    tp_size = mesh.sizes.tensor_parallel_size
    with torch.no_grad():
        for info in stage_parameters(stages, model, mesh.where.tp_rank, tp_size):
            info.parameter.copy_(info.take(source(info)))
            # DeepSpeed counts a parameter without this mark once per tensor group; Megatron sets it only when it
            # initialises weights itself.
            info.parameter.tensor_model_parallel = info.split_dim is not None  # type: ignore[attr-defined]
            info.parameter.partition_dim = -1 if info.split_dim is None else info.split_dim  # type: ignore[attr-defined]


def draw(info: ParameterInfo, model: ModelConfig, seed: int) -> Tensor:
    """Return the whole initial tensor of a parameter, float32 on the CPU.

    Matrices are normal(0, 0.02), those that write to the residual stream divided by sqrt(2 * num_layers) (GPT-2). An
    adapter starts as zero: its A is random, its B is not.
    """
    name = "embedding.word_embeddings.weight" if is_tied_copy(info.name, model) else info.name
    if name.endswith((".bias", ".lora_b")):
        return torch.zeros(info.global_shape)
    if len(info.global_shape) == 1:
        return torch.ones(info.global_shape)
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))
    deviation = STANDARD_DEVIATION
    if name.endswith(".lora_a"):
        deviation = 1.0 / math.sqrt(info.global_shape[1])
    elif name.endswith(("linear_proj.weight", "linear_fc2.weight")):
        deviation /= math.sqrt(2 * model.num_layers)
    return torch.randn(info.global_shape, generator=generator) * deviation


def is_tied_copy(name: str, model: ModelConfig) -> bool:
    """Tell whether a parameter is the last stage's copy of the tied word embeddings."""
    return model.tied_embeddings and name == "output_layer.weight"
