"""Memory of one GPU by component, in three totals: allocated, reserved and what nvidia-smi shows.

Closed forms of arXiv:2205.05198, generalised to GQA, gated feed-forward blocks, experts and latent attention.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from .activations import hidden_bytes, layer_bytes, logits_bytes, saved_bytes, score_bytes
from .architecture import Architecture
from .constants import Constants
from .machine import Software
from .rules import Layout
from .shapes import StageParameters, micro_batches_in_flight, moe_layers_of_stage, stage_layer_counts, stage_parameters

GIB = 2**30
_CONTEXT_BYTES = 1573 * 2**20  # CUDA context and kernels on an A100 (BLOOM log)
_MAX_LIVE_PARAMETERS = 1e9  # DeepSpeed's default stage3_max_live_parameters
_GRADIENT_BYTES = 2  # a weight gradient leaves its product in 16 bit before it is added to the accumulated one


@dataclass(frozen=True)
class StageMemory:
    """Bytes of one rank of one pipeline stage by component."""

    stage: int
    weights: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    gathered: float
    working_set: float
    pipeline_buffers: float
    cached: float
    context: float
    offloaded: float = 0.0

    @property
    def allocated(self) -> float:
        """Bytes of live tensors at the peak: torch's max_memory_allocated."""
        states = self.weights + self.gradients + self.optimizer
        return states + self.activations + self.logits + self.gathered + self.working_set + self.pipeline_buffers

    @property
    def reserved(self) -> float:
        """Bytes that the caching allocator holds: torch's max_memory_reserved."""
        return self.allocated + self.cached

    @property
    def needed(self) -> float:
        """Bytes without which the process fails.

        Before failing, the allocator returns the blocks that are wholly free; about a third of what it caches
        lies between live tensors and stays.
        """
        return self.allocated + self.cached / 3 + self.context

    @property
    def nvidia_smi(self) -> float:
        """Bytes that nvidia-smi shows for the process: reserved memory and the CUDA context with its libraries."""
        return self.reserved + self.context

    def as_dict(self) -> dict[str, float]:
        """Return the components and the three totals in GiB."""
        names = [field.name for field in fields(self) if field.name != "stage"]
        parts = {f"{name}_gib": round(getattr(self, name) / GIB, 3) for name in names}
        totals = {
            "allocated_gib": round(self.allocated / GIB, 3),
            "reserved_gib": round(self.reserved / GIB, 3),
            "nvidia_smi_gib": round(self.nvidia_smi / GIB, 3),
        }
        return {"stage": self.stage, **parts, **totals}


def stage_memory(
    model: Architecture, layout: Layout, software: Software, constants: Constants, stage: int
) -> StageMemory:
    """Return the memory of one rank of a stage at the peak of a step."""
    sizes = layout.sizes
    layers = stage_layer_counts(model, layout)[stage]
    held = stage_parameters(model, sizes, layers, stage)
    weights, gradients, optimizer = state_bytes(layout, software, held)
    moved = 0.0
    if layout.offload != "none":
        optimizer, moved = 0.0, optimizer if layout.offload == "cpu" else 0.0
    moe = moe_layers_of_stage(model, sizes, layers, stage)
    kept = (layers - moe) * saved_bytes(model, layout, software, False)
    kept += moe * saved_bytes(model, layout, software, True) if moe else 0.0
    activations = micro_batches_in_flight(layout, stage) * kept
    last = stage == sizes.pipeline_parallel_size - 1
    logits = logits_bytes(model, layout, software.loss_bytes) if last else 0.0
    working = _working_set(model, layout, software, constants, last)
    if layout.num_microbatches == 1 and logits <= _idle_gradient_bytes(model, layout, software, layers):
        logits = 0.0
    if layout.engine == "fsdp" or software.flat:
        # The logits are gone before the last layer is gathered again, or run again, for its backward pass.
        logits, working = (logits, 0.0) if logits > working else (0.0, working)
    working += constants.allocated_base_gib * GIB
    gathered = _gathered_bytes(model, layout, software, held) + software.bucket_bytes
    buffers = 2 * hidden_bytes(model, layout) if sizes.pipeline_parallel_size > 1 else 0.0
    live = weights + gradients + optimizer + activations + logits + gathered + working + buffers
    return StageMemory(
        stage=stage,
        weights=weights,
        gradients=gradients,
        optimizer=optimizer,
        activations=activations,
        logits=logits,
        gathered=gathered,
        working_set=working,
        pipeline_buffers=buffers,
        cached=constants.cached_share * live,
        context=_CONTEXT_BYTES + (constants.pipeline_engine_gib * GIB if _is_deepspeed_pipeline(layout) else 0.0),
        offloaded=moved,
    )


def peak_memory(
    model: Architecture, layout: Layout, software: Software, constants: Constants, last_only: bool = False
) -> StageMemory:
    """Return the memory of the stage that needs most, or of the last one.

    Only the first two and the last stage can be worst: embedding and most micro-batches, most layers, or the head.
    """
    last = layout.sizes.pipeline_parallel_size - 1
    stages = [last] if last_only else sorted({0, min(1, last), last})
    found = [stage_memory(model, layout, software, constants, stage) for stage in stages]
    return max(found, key=lambda memory: memory.allocated)


def state_bytes(layout: Layout, software: Software, held: StageParameters) -> tuple[float, float, float]:
    """Return the bytes of weights, gradients and optimizer states of one rank.

    ZeRO shards optimizer states from stage 1, gradients from 2, weights from 3 (arXiv:1910.02054); fp32 master weights
    and two moments are 12 bytes a parameter. Expert parameters are sharded over fewer ranks.
    """
    sizes = layout.sizes
    replicas = sizes.data_parallel_size * sizes.context_parallel_size
    dense = _state_bytes(layout, software, held.dense, replicas)
    if not held.expert:
        return dense
    expert_replicas = max(1, replicas * sizes.tensor_parallel_size // sizes.expert_parallel_size)
    expert = _state_bytes(layout, software, held.expert, expert_replicas)
    return dense[0] + expert[0], dense[1] + expert[1], dense[2] + expert[2]


def _state_bytes(layout: Layout, software: Software, parameters: float, replicas: int) -> tuple[float, float, float]:
    stage = layout.zero_stage
    if software.flat and software.trains == "all":
        return _flat_state_bytes(layout, parameters, replicas)
    wide = 4 if layout.precision == "fp32" else software.weight_bytes
    weights = parameters * wide / (replicas if stage >= 3 else 1)
    if software.trains == "adapters":
        trained = parameters * software.adapter_share
        return weights + 2 * trained, 2 * trained, 12 * trained
    width = 4 if layout.precision == "fp32" else software.gradient_bytes
    if stage >= 2 and layout.precision != "fp32":
        width = 2  # DeepSpeed keeps partitioned gradients in the type of the weights
    gradients = parameters * width / (replicas if stage >= 2 else 1)
    # Two fp32 moments, and a master copy where the weights are not fp32 themselves.
    optimizer = parameters * (8 if layout.precision == "fp32" else 12) / (replicas if stage >= 1 else 1)
    if software.fp32_weights:
        # torch FSDP keeps fp32 weights and gradients as the master copy: 4 + 4 + 8 bytes.
        return parameters * 4 / replicas, parameters * 4 / replicas, parameters * 8 / replicas
    return weights, gradients, optimizer


def _flat_state_bytes(layout: Layout, parameters: float, replicas: int) -> tuple[float, float, float]:
    """Return the same for the flat engine, without what ZeRO 2 and 3 keep whole (see `_gathered_bytes`).

    A rank that shares states holds its own part of weights and gradients beside the whole ones.
    """
    stage, width = layout.zero_stage, 4 if layout.precision == "fp32" else 2
    shards = replicas if stage >= 1 else 1
    apart = 1 / shards if shards > 1 else 0.0
    weights = width * parameters * (apart + (0.0 if stage >= 3 else 1.0))
    gradients = 4 * parameters * (apart + (0.0 if stage >= 2 else 1.0))
    if shards == 1 and stage >= 2:
        # One rank's own part is all of it, and what is streamed is streamed all the same.
        weights, gradients = width * parameters, 4.0 * parameters
    rest = {"fp32": 0, "fp16": 4}.get(layout.precision, 2)
    return weights, gradients, (8 + rest) * parameters / shards


def _idle_gradient_bytes(model: Architecture, layout: Layout, software: Software, layers: int) -> float:
    """Return the bytes of a flat rank's own gradients of layers: they hold the logits until the backward pass."""
    if not software.flat or software.trains != "all":
        return 0.0
    sizes, width = layout.sizes, 2 if layout.precision == "fp32" else 4  # of logits that are counted in 16 bit
    shards = sizes.data_parallel_size if layout.zero_stage >= 1 else 1
    return width * layers * (model.attention_parameters + model.mlp_parameters) / sizes.tensor_parallel_size / shards


def _flat_whole_bytes(model: Architecture, layout: Layout, held: StageParameters) -> float:
    """Return what ZeRO 2 and 3 keep whole on the flat engine: two layers' matrices, and all that is in no layer."""
    if layout.zero_stage < 2:
        return 0.0
    sizes, width = layout.sizes, 4 if layout.precision == "fp32" else 2
    layer = (model.attention_parameters + model.mlp_parameters) / sizes.tensor_parallel_size
    layers = model.num_layers / sizes.pipeline_parallel_size
    outside = max(0.0, held.total - layers * layer)
    alone = sizes.data_parallel_size * sizes.context_parallel_size == 1
    each = 2 * layer + (0.0 if alone else outside)
    return each * (4 + (width if layout.zero_stage == 3 else 0))


def _is_deepspeed_pipeline(layout: Layout) -> bool:
    return layout.engine == "deepspeed-pipeline"


def _gathered_bytes(model: Architecture, layout: Layout, software: Software, held: StageParameters) -> float:
    """Return the bytes of whole layers that ZeRO-3 holds: this one, the next, and the gradient of one.

    With a pipeline the whole stage stays gathered, and its fp32 gradients whole, until its last micro-batch.
    """
    if software.flat and software.trains == "all":
        return _flat_whole_bytes(model, layout, held)
    if layout.zero_stage < 3:
        return 0.0
    if layout.sizes.pipeline_parallel_size > 1:
        return (2 + 4) * held.total
    largest = _largest_matrices(model, layout, False)
    if not software.fp32_weights:
        # DeepSpeed gathers parameter by parameter, ahead of use up to a limit.
        return 2 * min(held.total, max(_MAX_LIVE_PARAMETERS, largest))
    layer = max(model.layer_parameters, model.moe_layer_parameters) / layout.sizes.tensor_parallel_size
    ends = model.vocab_size * model.hidden_size / layout.sizes.tensor_parallel_size
    return 2 * (3 * layer + 2 * ends)


def _working_set(model: Architecture, layout: Layout, software: Software, constants: Constants, last: bool) -> float:
    """Return the bytes of one layer's backward pass: gradients of its activations, and the recomputed layer."""
    scores = score_bytes(model, layout, software)
    whole = layer_bytes(model, replace(layout, recompute="none"), software, False)
    working = constants.backward_layers * (whole - scores) + (whole if layout.recompute == "full" else 0.0)
    if software.flat:
        return working
    return working + _GRADIENT_BYTES * _largest_matrices(model, layout, last)


def _largest_matrices(model: Architecture, layout: Layout, last: bool) -> float:
    """Return the parameters whose gradients exist beside the accumulated ones: widest layer matrix and head."""
    tensor = layout.sizes.tensor_parallel_size
    first = (2 if model.gated else 1) * model.hidden_size * model.ffn_hidden_size
    head = model.vocab_size * model.hidden_size if last else 0
    return (first + head) / tensor
