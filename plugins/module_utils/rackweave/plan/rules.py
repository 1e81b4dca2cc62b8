"""Rules of the frameworks and of the mesh, each with its source. A rule says what is wrong and the nearest way out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from .architecture import Architecture
from .ranks import ParallelSizes


@dataclass(frozen=True)
class Layout:
    """One way to run a job: sizes of the mesh, batch, and what is kept where."""

    sizes: ParallelSizes
    micro_batch_size: int
    global_batch_size: int
    zero_stage: int
    sequence_parallel: bool
    recompute: str
    offload: str = "none"
    engine: str = "megatron"
    precision: str = "bf16"
    stage_layers: tuple[int, ...] | None = None

    @property
    def num_microbatches(self) -> int:
        """Micro-batches that each data-parallel rank runs per step."""
        return self.global_batch_size // (self.micro_batch_size * self.sizes.data_parallel_size)


@dataclass(frozen=True)
class Place:
    """What the rules need to know of the machines."""

    num_gpus: int
    gpus_per_host: int
    domain_size: int
    cross_domain_tensor_parallel: bool = False
    sequence_parallel_refused: bool = False


@dataclass(frozen=True)
class Rule:
    """A named rule; `check` returns a sentence if the layout breaks it."""

    name: str
    source: str
    check: Callable[[Architecture, Layout, Place], str | None]


@dataclass(frozen=True)
class Refusal:
    """A broken rule with its numbers."""

    rule: str
    sentence: str
    source: str


def refusals(model: Architecture, layout: Layout, place: Place) -> list[Refusal]:
    """Return every rule that a layout breaks, most fundamental first."""
    found = []
    for rule in RULES:
        sentence = rule.check(model, layout, place)
        if sentence is not None:
            found.append(Refusal(rule.name, sentence, rule.source))
    return found


def first_refusal(model: Architecture, layout: Layout, place: Place, rules: Iterable[Rule]) -> Refusal | None:
    """Return the first of some rules that a layout breaks, or None."""
    for rule in rules:
        sentence = rule.check(model, layout, place)
        if sentence is not None:
            return Refusal(rule.name, sentence, rule.source)
    return None


def divisors(number: int) -> list[int]:
    """Return the divisors of a positive number in rising order."""
    small = [value for value in range(1, int(number**0.5) + 1) if number % value == 0]
    return small + [number // value for value in reversed(small) if value * value != number]


def _nearest(wish: int, choices: Iterable[int]) -> str:
    ordered = sorted(set(choices), key=lambda value: (abs(value - wish), value))[:2]
    return " or ".join(str(value) for value in sorted(ordered)) or "none"


def _world(model: Architecture, layout: Layout, place: Place) -> str | None:
    sizes = layout.sizes
    if sizes.world_size <= place.num_gpus and place.num_gpus % sizes.world_size == 0:
        return None
    if sizes.world_size < place.num_gpus and sizes.world_size % place.gpus_per_host == 0:
        return None
    product = (
        f"tensor_parallel_size={sizes.tensor_parallel_size} * pipeline_parallel_size={sizes.pipeline_parallel_size}"
        f" * context_parallel_size={sizes.context_parallel_size} * data_parallel_size={sizes.data_parallel_size}"
    )
    return f"{product} = {sizes.world_size} ranks do not lie on {place.num_gpus} GPUs in whole hosts"


def _tensor_in_domain(model: Architecture, layout: Layout, place: Place) -> str | None:
    size = layout.sizes.tensor_parallel_size
    if place.cross_domain_tensor_parallel:
        return None
    if size > place.domain_size:
        return (
            f"tensor_parallel_size={size} does not stay in the NVLink domain of {place.domain_size} GPUs; use at most "
            f"{_nearest(size, _tensor_choices(model, place))}, or ask for cross_domain_tensor_parallel and pay for it"
        )
    if place.gpus_per_host % size and size % place.gpus_per_host:
        return (
            f"tensor_parallel_size={size} does not divide the {place.gpus_per_host} GPUs of a host, so groups would "
            f"leave it; nearest: {_nearest(size, _tensor_choices(model, place))}"
        )
    return None


def _tensor_choices(model: Architecture, place: Place) -> list[int]:
    return [
        size
        for size in divisors(place.domain_size)
        if model.num_attention_heads % size == 0 and _groups_divide(model, size)
    ]


def _groups_divide(model: Architecture, size: int) -> bool:
    return model.num_query_groups % size == 0 or size % model.num_query_groups == 0


def _heads(model: Architecture, layout: Layout, place: Place) -> str | None:
    size = layout.sizes.tensor_parallel_size
    if model.num_attention_heads % size == 0:
        return None
    return (
        f"num_attention_heads={model.num_attention_heads} is not a multiple of tensor_parallel_size={size}; "
        f"nearest: {_nearest(size, _tensor_choices(model, place))}"
    )


def _query_groups(model: Architecture, layout: Layout, place: Place) -> str | None:
    size = layout.sizes.tensor_parallel_size
    if _groups_divide(model, size):
        return None
    return (
        f"num_query_groups={model.num_query_groups} and tensor_parallel_size={size} do not divide each other; "
        f"nearest: {_nearest(size, _tensor_choices(model, place))}"
    )


def _ffn(model: Architecture, layout: Layout, place: Place) -> str | None:
    size = layout.sizes.tensor_parallel_size
    if model.ffn_hidden_size % size == 0:
        return None
    choices = [choice for choice in _tensor_choices(model, place) if model.ffn_hidden_size % choice == 0]
    return (
        f"ffn_hidden_size={model.ffn_hidden_size} is not a multiple of tensor_parallel_size={size}; "
        f"nearest: {_nearest(size, choices)}"
    )


def _layers(model: Architecture, layout: Layout, place: Place) -> str | None:
    stages, chunks = layout.sizes.pipeline_parallel_size, layout.sizes.virtual_pipeline_size
    named = layout.stage_layers
    if named is not None:
        if len(named) != stages or sum(named) != model.num_layers:
            return (
                f"stage_layers names {len(named)} stages with {sum(named)} layers; needed are "
                f"pipeline_parallel_size={stages} stages with num_layers={model.num_layers}"
            )
        return None
    if model.num_layers % stages:
        return (
            f"num_layers={model.num_layers} is not a multiple of pipeline_parallel_size={stages}; "
            f"nearest: {_nearest(stages, divisors(model.num_layers))}, or name uneven stages with stage_layers"
        )
    if model.num_layers % (stages * chunks):
        choices = divisors(model.num_layers // stages)
        return (
            f"num_layers={model.num_layers} is not a multiple of pipeline_parallel_size={stages} * "
            f"virtual_pipeline_size={chunks}; nearest virtual_pipeline_size: {_nearest(chunks, choices)}"
        )
    return None


def _interleaving(model: Architecture, layout: Layout, place: Place) -> str | None:
    sizes = layout.sizes
    if sizes.virtual_pipeline_size == 1:
        return None
    if sizes.pipeline_parallel_size == 1:
        return (
            f"virtual_pipeline_size={sizes.virtual_pipeline_size} needs pipeline_parallel_size above 1; "
            "use virtual_pipeline_size=1"
        )
    if layout.engine == "deepspeed-pipeline":
        return (
            f"DeepSpeed's pipeline engine is not interleaved, so virtual_pipeline_size={sizes.virtual_pipeline_size} "
            "cannot run; use 1, or Megatron's schedule"
        )
    if layout.num_microbatches % sizes.pipeline_parallel_size:
        return (
            f"interleaving needs num_microbatches={layout.num_microbatches} to be a multiple of "
            f"pipeline_parallel_size={sizes.pipeline_parallel_size}; use virtual_pipeline_size=1 or another batch"
        )
    return None


def _batch(model: Architecture, layout: Layout, place: Place) -> str | None:
    samples = layout.micro_batch_size * layout.sizes.data_parallel_size
    batch = layout.global_batch_size
    if batch % samples == 0:
        return None
    below, above = batch // samples * samples, -(-batch // samples) * samples
    nearest = f"{below} or {above}" if below else str(above)
    return (
        f"global_batch_size={batch} is not a multiple of micro_batch_size={layout.micro_batch_size} * "
        f"data_parallel_size={layout.sizes.data_parallel_size} = {samples}; nearest: {nearest}"
    )


ZERO_LIMIT = {"megatron": 2, "flat": 2, "deepspeed-pipeline": 1, "fsdp": 3}


def _zero_pipeline(model: Architecture, layout: Layout, place: Place) -> str | None:
    stages, limit = layout.sizes.pipeline_parallel_size, ZERO_LIMIT[layout.engine]
    pipelined = stages > 1 or layout.engine == "deepspeed-pipeline"
    if not pipelined or layout.zero_stage <= limit:
        return None
    return (
        f"zero_stage={layout.zero_stage} with pipeline_parallel_size={stages}: the engine {layout.engine} allows "
        f"at most ZeRO {limit} with a pipeline; use zero_stage={limit} or pipeline_parallel_size=1"
        + (" with another engine" if layout.engine == "deepspeed-pipeline" else "")
    )


def _offload(model: Architecture, layout: Layout, place: Place) -> str | None:
    if layout.offload == "none":
        return None
    needed = 1 if layout.engine == "flat" else 3 if layout.offload == "nvme" else 2
    if layout.zero_stage < needed:
        return (
            f"offload={layout.offload} needs zero_stage={needed} or more, not {layout.zero_stage}: the engine "
            "offloads partitioned gradients and states only"
        )
    if layout.engine == "deepspeed-pipeline":
        return f"offload={layout.offload} needs ZeRO {needed}, which DeepSpeed's pipeline engine does not allow"
    return None


def _sequence_parallel(model: Architecture, layout: Layout, place: Place) -> str | None:
    size = layout.sizes.tensor_parallel_size
    if layout.sequence_parallel and size == 1:
        return "sequence_parallel needs tensor_parallel_size above 1; turn it off"
    if size > 1 and not layout.sequence_parallel and not place.sequence_parallel_refused:
        return f"tensor_parallel_size={size} runs with sequence_parallel unless it is refused by name"
    return None


def _sequence_divides(model: Architecture, layout: Layout, place: Place) -> str | None:
    sizes = layout.sizes
    tensor = sizes.tensor_parallel_size if layout.sequence_parallel else 1
    # Context parallelism balances a causal mask by giving each rank one early and one late chunk.
    context = 2 * sizes.context_parallel_size if sizes.context_parallel_size > 1 else 1
    if model.sequence_length % (tensor * context) == 0:
        return None
    step = tensor * context
    return (
        f"sequence_length={model.sequence_length} is not a multiple of tensor_parallel_size={tensor} * {context} "
        f"(context chunks); nearest: {model.sequence_length // step * step or step}"
    )


def _head_dim(model: Architecture, layout: Layout, place: Place) -> str | None:
    if model.head_dim % 8 == 0:
        return None
    return (
        f"head_dim={model.head_dim} is not a multiple of 8, which tensor cores and fused attention need; "
        f"nearest: {model.head_dim // 8 * 8 or 8} or {-(-model.head_dim // 8) * 8}"
    )


def _experts(model: Architecture, layout: Layout, place: Place) -> str | None:
    size = layout.sizes.expert_parallel_size
    if model.experts is None:
        return f"expert_parallel_size={size}, but {model.name} has no experts; use 1" if size > 1 else None
    if model.experts.num_experts % size:
        return (
            f"num_experts={model.experts.num_experts} is not a multiple of expert_parallel_size={size}; "
            f"nearest: {_nearest(size, divisors(model.experts.num_experts))}"
        )
    return None


def _expert_ranks(model: Architecture, layout: Layout, place: Place) -> str | None:
    size = layout.sizes.expert_parallel_size
    ranks = layout.sizes.data_parallel_size * layout.sizes.context_parallel_size * layout.sizes.tensor_parallel_size
    if ranks % size:
        return (
            f"expert_parallel_size={size} does not divide the {ranks} ranks of one pipeline stage; "
            f"nearest: {_nearest(size, divisors(ranks))}"
        )
    return None


def _recompute_boundaries(model: Architecture, layout: Layout, place: Place) -> str | None:
    if layout.zero_stage < 3 or layout.recompute != "selective":
        return None
    return (
        "recompute=selective cuts inside a layer, while ZeRO-3 gathers whole layers, so each would be gathered "
        "again in the middle; use recompute=full or none with zero_stage=3"
    )


RULES = (
    Rule("world", "product of the mesh axes; torchrun starts whole hosts", _world),
    Rule("heads", "Megatron core: heads are split over the tensor axis", _heads),
    Rule("query-groups", "Megatron core: KV heads are split, or copied, over the tensor axis", _query_groups),
    Rule("ffn", "Megatron core: column-parallel width", _ffn),
    Rule("tensor-in-domain", "arXiv:2104.04473 section 3.2; tokens/s fall by half past one node", _tensor_in_domain),
    Rule("layers", "Megatron core: equal stages unless named; Llama 3 405B named them (arXiv:2407.21783)", _layers),
    Rule("interleaving", "Megatron core schedules; DeepSpeed#1110 (1F1B only)", _interleaving),
    Rule("batch", "train_batch_size = micro * accumulation * data-parallel size (DeepSpeed, Megatron)", _batch),
    Rule("zero-pipeline", "Megatron-DeepSpeed#474, DeepSpeed#823, #3589; torchtitan runs FSDP x PP", _zero_pipeline),
    Rule("offload", "DeepSpeed configuration: offload_optimizer from stage 2, NVMe from stage 3", _offload),
    Rule("sequence-parallel", "arXiv:2205.05198: same volume, less memory", _sequence_parallel),
    Rule("sequence-divides", "Megatron core: chunks of equal length", _sequence_divides),
    Rule("head-dim", "fused attention kernels; BLOOM log: head_dim 108 a third slower", _head_dim),
    Rule("experts", "Megatron core: whole experts per rank", _experts),
    Rule("expert-ranks", "Megatron core: expert groups within a stage", _expert_ranks),
    Rule("recompute-boundaries", "DeepSpeed ZeRO-3 partitions by module", _recompute_boundaries),
)


def rules_named(*names: str) -> tuple[Rule, ...]:
    """Return some rules by name, in the order of the table."""
    return tuple(rule for rule in RULES if rule.name in names)
