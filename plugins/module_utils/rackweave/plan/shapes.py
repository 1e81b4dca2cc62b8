"""Sizes that memory and time both need: parameters per rank and stage, layers per stage, micro-batches in flight."""

from __future__ import annotations

from dataclasses import dataclass

from .architecture import Architecture
from .ranks import ParallelSizes
from .rules import Layout

VOCABULARY_MULTIPLE = 128  # Megatron's --make-vocab-size-divisible-by, times the tensor size


def padded_vocabulary(vocab_size: int, tensor_parallel_size: int) -> int:
    """Return the rows of the embedding table after padding."""
    multiple = VOCABULARY_MULTIPLE * tensor_parallel_size
    return -(-vocab_size // multiple) * multiple


def stage_layer_counts(model: Architecture, layout: Layout) -> tuple[int, ...]:
    """Return the number of layers of each pipeline stage.

    Equal where they divide; otherwise embedding and head count as one layer each if that divides (BLOOM, Llama 3 405B),
    and else the earlier stages get one layer more.
    """
    if layout.stage_layers is not None:
        return layout.stage_layers
    stages, layers = layout.sizes.pipeline_parallel_size, model.num_layers
    if layers % stages == 0:
        return (layers // stages,) * stages
    if (layers + 2) % stages == 0 and (layers + 2) // stages > 1:
        each = (layers + 2) // stages
        return (each - 1, *(each,) * (stages - 2), each - 1)
    each, rest = divmod(layers, stages)
    return tuple(each + (1 if stage < rest else 0) for stage in range(stages))


def micro_batches_in_flight(layout: Layout, stage: int) -> float:
    """Return how many micro-batches' activations of a whole stage are alive at once.

    1F1B: min(m, p - stage). Interleaved: the first stage holds 1 + (p-1)/(p v) times as much (arXiv:2104.04473).
    """
    sizes = layout.sizes
    stages, chunks, count = sizes.pipeline_parallel_size, sizes.virtual_pipeline_size, layout.num_microbatches
    if stages == 1:
        return 1.0
    if chunks == 1:
        return float(min(count, stages - stage))
    warm_up = (stages - stage - 1) * 2 + (chunks - 1) * stages
    return min(count * chunks, warm_up + 1) / chunks


@dataclass(frozen=True)
class StageParameters:
    """Parameters that one rank of a stage holds, split by how they are sharded."""

    dense: float
    expert: float

    @property
    def total(self) -> float:
        """All parameters of the rank."""
        return self.dense + self.expert


def moe_layers_of_stage(model: Architecture, sizes: ParallelSizes, layers: int, stage: int) -> int:
    """Return how many layers of a stage are mixtures of experts; dense ones come first."""
    if model.experts is None:
        return 0
    return max(0, layers - model.experts.dense_layers) if stage == 0 else layers


def stage_parameters(model: Architecture, sizes: ParallelSizes, layers: int, stage: int) -> StageParameters:
    """Return the parameters of one rank of a stage with so many layers.

    Matrices are split over the tensor axis; normalisations and biases of row-parallel layers are copied, which is
    small and neglected for the experts' own biases.
    """
    tensor = sizes.tensor_parallel_size
    moe_layers = moe_layers_of_stage(model, sizes, layers, stage)
    split, copied = _layer_split(model)
    dense = (layers - moe_layers) * (split / tensor + copied)
    if moe_layers:
        split_moe, copied_moe = _moe_layer_split(model)
        dense += moe_layers * (split_moe / tensor + copied_moe)
    dense += _ends(model, sizes, stage)
    expert = 0.0
    if moe_layers and model.experts is not None:
        expert = moe_layers * model.experts.num_experts / sizes.expert_parallel_size * model.expert_parameters
    return StageParameters(dense, expert)


def _layer_split(model: Architecture) -> tuple[float, float]:
    """Return (split over the tensor axis, copied) parameters of a dense layer."""
    copied = 2 * model.norm_parameters + (2 * model.hidden_size if model.linear_bias else 0)
    if model.output_bias:
        copied += model.hidden_size
    if model.qk_norm:
        copied += 2 * model.head_dim
    return model.layer_parameters - copied, copied


def _moe_layer_split(model: Architecture) -> tuple[float, float]:
    """Return (split, copied) parameters of a mixture layer without its routed experts."""
    moe = model.experts
    if moe is None:
        return 0.0, 0.0
    router = model.hidden_size * moe.num_experts
    copied = 2 * model.norm_parameters + router
    split = model.attention_parameters + model.router_parameters - router
    return split, copied


def _ends(model: Architecture, sizes: ParallelSizes, stage: int) -> float:
    """Return the parameters of embedding and head that a rank of this stage holds."""
    tensor, stages = sizes.tensor_parallel_size, sizes.pipeline_parallel_size
    table = padded_vocabulary(model.vocab_size, tensor) * model.hidden_size / tensor
    count = 0.0
    if stage == 0:
        count += table + (model.input_parameters - model.vocab_size * model.hidden_size)
    if stage == stages - 1:
        count += model.norm_parameters
        if not model.tied_embeddings or stages > 1:
            count += table
    return count
