"""Parallel layouts: `plan_layout` turns a cluster, a model and a request into a plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..errors import PlanError
from .architecture import Architecture
from .calibration import Calibration, cluster_key
from .cluster import Cluster
from .explain import (
    band_text,
    describe,
    memory_object,
    offload_table,
    prediction,
    reasons,
    rejected_rows,
    zero_table,
)
from .machine import Machine
from .memory import GIB
from .model_file import Config, resolve_model
from .placement import place_ranks, used_hosts
from .ranks import ParallelSizes, RankCoordinates
from .reliability import reliability
from .request import LayoutRequest
from .rules import Layout, Place, Refusal, divisors, refusals
from .search import Candidate, Search, SearchResult
from .searches import Searches, planned_engine, traits_of
from .shapes import padded_vocabulary
from .trainer import layout_refusal, model_refusal

__all__ = ["ParallelSizes", "Plan", "RankCoordinates", "plan_layout"]

SCHEMA = "rackweave.plan/1"
_ASSUMED_TOKENS = {"pretrain": 4 * 1024 * 1024, "full-finetune": 128 * 1024, "lora": 128 * 1024, "qlora": 128 * 1024}
_ASSUMED_SEQUENCE = {"full-finetune": 1024, "lora": 4096, "qlora": 4096}
_TIGHT = "; close to the limit: the allocator keeps little of what it caches, so expect slower steps or a failure"


@dataclass(frozen=True)
class Plan:
    """A layout with the machines and the model it was made for, and what is expected of it."""

    run: str
    cluster: Cluster
    model: Architecture
    layout: Layout
    fits: bool
    reason: str
    notes: tuple[str, ...] = ()
    memory: dict[str, Any] | None = None
    prediction: dict[str, Any] | None = None
    reliability: dict[str, Any] | None = None
    rejected: tuple[dict[str, Any], ...] = ()
    candidates: tuple[Candidate, ...] = ()

    def trained_model(self) -> Architecture:
        """Return the model as it is trained: its vocabulary padded where the tensor size does not divide it."""
        tensor = self.layout.sizes.tensor_parallel_size
        if self.model.vocab_size % tensor == 0:
            return self.model
        return replace(self.model, vocab_size=padded_vocabulary(self.model.vocab_size, tensor))

    def rank_rows(self, limit: int | None = None) -> list[dict[str, Any]]:
        """Return the rows of the rank table, or the first of them."""
        rows = place_ranks(self.cluster, self.layout.sizes, limit)
        return [dict(vars(row)) for row in rows]

    def as_dict(self) -> dict[str, Any]:
        """Return plan.json as `docs/contracts.md` describes it."""
        hosts = used_hosts(self.cluster, self.layout.sizes.world_size)
        gpu = self.cluster.gpu.name if self.cluster.gpu else None
        return {
            "schema": SCHEMA,
            "run": self.run,
            "origin": self.cluster.origin,
            "model": self.trained_model().as_dict(),
            "cluster": {
                "hosts": [
                    {"host": host.name, "gpus": len(host.slots), "gpu": host.gpu_product or gpu} for host in hosts
                ],
                "origin": self.cluster.origin,
                "source": self.cluster.source,
            },
            "sizes": sizes_as_dict(self.layout),
            "ranks": self.rank_rows(),
            "memory": self.memory,
            "prediction": self.prediction,
            "reliability": self.reliability,
            "rejected": list(self.rejected),
            "fits": self.fits,
            "reason": self.reason,
        }


def sizes_as_dict(layout: Layout) -> dict[str, Any]:
    """Return the `sizes` object of plan.json."""
    sizes = layout.sizes
    return {
        "tensor_parallel_size": sizes.tensor_parallel_size,
        "pipeline_parallel_size": sizes.pipeline_parallel_size,
        "virtual_pipeline_size": sizes.virtual_pipeline_size,
        "data_parallel_size": sizes.data_parallel_size,
        "context_parallel_size": sizes.context_parallel_size,
        "expert_parallel_size": sizes.expert_parallel_size,
        "micro_batch_size": layout.micro_batch_size,
        "global_batch_size": layout.global_batch_size,
        "num_microbatches": layout.num_microbatches,
        "zero_stage": layout.zero_stage,
        "sequence_parallel": layout.sequence_parallel,
        "recompute": layout.recompute,
        "offload": layout.offload,
        "world_size": sizes.world_size,
    }


def plan_layout(
    cluster: Cluster,
    model: str | Config | Architecture,
    request: LayoutRequest | None = None,
    calibration: Calibration | None = None,
) -> Plan:
    """Lay a model out on a cluster: asked sizes are kept, the others found by complete search.

    Args:
        cluster: hosts in rank order.
        model: preset name, mapping or architecture.
        request: sizes and settings that are fixed.
        calibration: measured factors of this cluster.

    Raises:
        PlanError: if the request breaks a rule; the sentence names the numbers and the nearest layout that works.
    """
    wish = request or LayoutRequest()
    architecture = resolve_task_model(model, wish)
    batch = wish.global_batch_size or assumed_global_batch(architecture, cluster.num_gpus, wish.task)
    if wish.tensor_parallel_size and wish.pipeline_parallel_size and not wish.data_parallel_size:
        asked = (wish.tensor_parallel_size, wish.context_parallel_size or 1, wish.pipeline_parallel_size)
        wish = replace(wish, data_parallel_size=_data_parallel_size(cluster, architecture, asked))
    _check_asked(cluster, architecture, wish, batch)
    if cluster.gpu is None:
        return _unpredicted(cluster, architecture, wish)
    return _searched(cluster, architecture, wish, batch, calibration)


def resolve_task_model(model: str | Config | Architecture, wish: LayoutRequest) -> Architecture:
    """Return the architecture at the asked sequence length, or at a usual one for fine-tuning."""
    architecture = resolve_model(model, wish.sequence_length)
    usual = _ASSUMED_SEQUENCE.get(wish.task)
    if wish.sequence_length is None and usual is not None and usual < architecture.sequence_length:
        return resolve_model(architecture, usual)
    return architecture


def _searched(
    cluster: Cluster, model: Architecture, wish: LayoutRequest, batch: int, calibration: Calibration | None
) -> Plan:
    machine = Machine.of_cluster(cluster)
    place = place_of(cluster, wish)
    memory_factor = calibration.memory_factor_for(cluster) if calibration else 1.0
    searches = Searches(model, machine, place, wish, memory_factor)
    result = searches.run(batch)
    chosen = result.ranked[0] if result.ranked else result.smallest
    if chosen is None:
        raise PlanError(_nothing_allowed(cluster, model, wish, batch, result.refused))
    search, choice = searches.owner(chosen.layout).search, searches.choice(chosen.layout)
    notes = _notes(cluster, model, wish, batch, chosen.layout)
    if choice is not None:
        notes.append(f"predicted for the trainer's engine {choice.engine}: {choice.reason}")
    factor = calibration.factor_for(cluster) if calibration else 1.0
    return Plan(
        run=wish.run,
        cluster=cluster,
        model=model,
        layout=chosen.layout,
        fits=chosen.fits,
        reason=_reason(search, cluster, searches.owner(chosen.layout).wish, result),
        notes=tuple(notes),
        memory=memory_object(search, chosen),
        prediction={
            **prediction(search, chosen, factor),
            "explanation": reasons(result.ranked or [chosen], machine.memory_bytes),
            "engine": chosen.layout.engine if choice is None else choice.engine,
            "zero_table": zero_table(searches, chosen.layout, place),
            "offload_table": offload_table(searches, chosen.layout, place),
            "layouts_considered": result.considered,
            "cluster_key": cluster_key(cluster),
            "notes": notes,
        },
        reliability=reliability(model, machine, chosen.layout.sizes.world_size).as_dict(),
        rejected=tuple(rejected_rows(result.ranked, result.refused, result.smallest)),
        candidates=result.ranked,
    )


def _check_asked(cluster: Cluster, model: Architecture, wish: LayoutRequest, batch: int) -> None:
    """Refuse what the asked sizes already break, whatever else is chosen.

    Raises:
        PlanError: with the sentences of all broken rules.
    """
    tensor, context = wish.tensor_parallel_size or 1, wish.context_parallel_size or 1
    pipeline = wish.pipeline_parallel_size or (len(wish.stage_layers) if wish.stage_layers else 1)
    data = wish.data_parallel_size or 1
    sizes = ParallelSizes(
        tensor, pipeline, data, wish.virtual_pipeline_size or 1, context, wish.expert_parallel_size or 1
    )
    if sizes.world_size > cluster.num_gpus:
        raise PlanError(
            f"tensor_parallel_size={tensor} * pipeline_parallel_size={pipeline} * context_parallel_size={context} * "
            f"data_parallel_size={data} = {sizes.world_size} needs more than the {cluster.num_gpus} GPUs of the cluster"
        )
    stage = wish.zero_stage if wish.zero_stage is not None else 2 if wish.offload not in (None, "none") else 1
    layout = Layout(
        sizes=sizes,
        micro_batch_size=wish.micro_batch_size or 1,
        global_batch_size=batch,
        zero_stage=3 if wish.engine == "fsdp" else 3 if wish.offload == "nvme" and wish.zero_stage is None else stage,
        sequence_parallel=tensor > 1 if wish.sequence_parallel is None else wish.sequence_parallel,
        recompute=wish.recompute or "none",
        offload=wish.offload or "none",
        engine=wish.engine,
        precision=wish.precision,
        stage_layers=wish.stage_layers,
    )
    unasked = _rules_of_unasked(wish)
    broken = [item for item in _broken(cluster, model, wish, layout) if item.rule not in unasked]
    if broken:
        raise PlanError(refusal_text(broken))


def _broken(cluster: Cluster, model: Architecture, wish: LayoutRequest, layout: Layout) -> list[Refusal]:
    """Return the rules that a layout breaks on the engine that will run it, and what the trainer itself refuses."""
    traits = traits_of(wish)
    broken = refusals(model, replace(layout, engine=planned_engine(layout, traits)), place_of(cluster, wish))
    if traits is None:
        return broken
    said = [model_refusal(model, wish.task, wish.precision), layout_refusal(model, layout, traits)]
    return broken + [Refusal("trainer", sentence, "trainer/config.py") for sentence in said if sentence]


def _rules_of_unasked(wish: LayoutRequest) -> set[str]:
    """Return the rules that only sizes left open could break: the search keeps those itself."""
    unasked = set()
    if not wish.data_parallel_size:
        unasked |= {"world"}
    if not (wish.data_parallel_size and wish.tensor_parallel_size):
        unasked |= {"expert-ranks"}
    if not wish.pipeline_parallel_size:
        unasked |= {"interleaving"} if not wish.virtual_pipeline_size or wish.virtual_pipeline_size > 1 else set()
    if not wish.data_parallel_size or not wish.micro_batch_size:
        unasked |= {"interleaving"}
    return unasked


def _nothing_allowed(
    cluster: Cluster, model: Architecture, wish: LayoutRequest, batch: int, refused: dict[str, str]
) -> str:
    """Return why no layout is allowed, with what would be."""
    if refused:
        return "; ".join(f"{sentence} (rule {rule})" for rule, sentence in refused.items())
    inner = (wish.tensor_parallel_size or 1) * (wish.pipeline_parallel_size or 1) * (wish.context_parallel_size or 1)
    ranks = max(1, cluster.num_gpus // inner)
    return (
        f"no layout of {model.name} uses whole hosts of the {cluster.num_gpus} GPUs with global_batch_size={batch}; "
        f"a global_batch_size of {-(-batch // ranks) * ranks} would allow data_parallel_size={ranks}"
    )


def _reason(search: Search, cluster: Cluster, wish: LayoutRequest, result: SearchResult) -> str:
    """Return the one sentence of the plan: why this layout, or why none fits and what would."""
    if result.ranked:
        best = result.ranked[0]
        idle = cluster.num_gpus - best.layout.sizes.world_size
        rest = f"; {idle} of {cluster.num_gpus} GPUs stay idle" if idle else ""
        return (
            f"{describe(best.layout)} is the fastest of {result.considered} layouts considered: "
            f"{band_text(best.time.total)} a step, {best.memory.needed / GIB:.1f} of "
            f"{search.machine.memory_bytes / GIB:.1f} GiB{rest}{_TIGHT if search.tight else ''}"
        )
    nearest = result.smallest
    if nearest is None:
        return "no layout is allowed"
    need, limit = nearest.memory.needed / GIB, search.machine.memory_bytes / GIB
    return (
        f"{search.model.name} does not fit on {cluster.num_gpus} GPUs: the least is {describe(nearest.layout)} with "
        f"{need:.1f} GiB on stage {nearest.memory.stage}, {need - limit:.1f} GiB more than the {limit:.1f} GiB of "
        f"{search.machine.gpu.name}; {nearest_that_fits(search, cluster, wish, nearest)}"
    )


def nearest_that_fits(search: Search, cluster: Cluster, wish: LayoutRequest, nearest: Candidate) -> str:
    """Return the smallest change that makes the model fit: offloading, or more hosts."""
    batch = nearest.layout.global_batch_size
    free = replace(wish, data_parallel_size=None, micro_batch_size=None)
    if (
        wish.offload is None
        and wish.zero_stage is None
        and wish.engine in ("megatron", "flat")
        and wish.task != "qlora"
    ):
        moved = search.run(replace(free, offload="cpu"), batch)
        if moved.ranked:
            return f"with the optimizer on the host it fits as {describe(moved.ranked[0].layout)}"
    for doubling in range(1, 9):
        hosts = len(cluster.hosts) * 2**doubling
        gpus = hosts * cluster.gpus_per_host
        domain = min(search.machine.domain_size, gpus)
        wider = Search(
            search.model,
            search.machine,
            replace(search.place, num_gpus=gpus, domain_size=max(domain, search.place.domain_size)),
            search.software,
            search.constants,
        )
        open_wish = replace(free, pipeline_parallel_size=None, tensor_parallel_size=None, zero_stage=None)
        found = wider.run(open_wish, -(-batch // gpus) * gpus)
        if found.ranked:
            return f"on {hosts} such hosts ({gpus} GPUs) it fits as {describe(found.ranked[0].layout)}"
    return "no number of such hosts tried makes it fit"


def _notes(cluster: Cluster, model: Architecture, wish: LayoutRequest, batch: int, layout: Layout) -> list[str]:
    """Return what was assumed because it was not given."""
    notes = [f"assumed: {note}" for note in cluster.assumed]
    if wish.global_batch_size is None:
        notes.append(f"assumed: global_batch_size {batch} ({batch * model.sequence_length:,} tokens)")
    if wish.sequence_length is None:
        notes.append(f"assumed: sequence_length {model.sequence_length}")
    if layout.sizes.tensor_parallel_size > cluster.domain_size:
        notes.append("tensor groups leave the NVLink domain, as asked; their traffic crosses the network")
    tensor = layout.sizes.tensor_parallel_size
    if model.vocab_size % tensor:
        padded = padded_vocabulary(model.vocab_size, tensor)
        notes.append(
            f"vocab_size {model.vocab_size} is padded to {padded}, as tensor_parallel_size={tensor} must divide it"
        )
    idle = cluster.num_gpus - layout.sizes.world_size
    if idle:
        notes.append(f"{idle} of {cluster.num_gpus} GPUs stay idle: no layout on more of them is faster")
    return notes


def _unpredicted(cluster: Cluster, model: Architecture, wish: LayoutRequest) -> Plan:
    """Return a plan by rules alone, for GPUs that the catalog does not know (the simulated lab)."""
    layout = _fixed_layout(cluster, model, wish)
    broken = _broken(cluster, model, wish, layout)
    if broken:
        raise PlanError(refusal_text(broken))
    product = cluster.hosts[0].gpu_product or "unknown"
    reason = f"sizes follow the rules; memory and time are not predicted, as GPU {product!r} is not in the catalog"
    layout = replace(layout, engine=planned_engine(layout, traits_of(wish)))
    return Plan(wish.run, cluster, model, layout, True, reason)


def refusal_text(broken: list[Refusal]) -> str:
    """Return the sentences of broken rules as one message."""
    return "; ".join(f"{refusal.sentence} (rule {refusal.rule})" for refusal in broken)


def place_of(cluster: Cluster, wish: LayoutRequest) -> Place:
    """Return what the rules need to know of a cluster."""
    return Place(
        cluster.num_gpus,
        cluster.gpus_per_host,
        cluster.domain_size,
        wish.cross_domain_tensor_parallel,
        wish.sequence_parallel is False,
    )


def assumed_global_batch(model: Architecture, num_gpus: int, task: str = "pretrain") -> int:
    """Return a usual batch that every data-parallel size of these GPUs divides: 4 Mi tokens, fine-tuning 128 Ki."""
    wish = -(-_ASSUMED_TOKENS[task] // model.sequence_length)
    return -(-wish // num_gpus) * num_gpus


def _fixed_layout(cluster: Cluster, model: Architecture, wish: LayoutRequest) -> Layout:
    tensor = wish.tensor_parallel_size or _usual_tensor_size(cluster, model)
    context = wish.context_parallel_size or 1
    pipeline = wish.pipeline_parallel_size or _usual_pipeline_size(cluster, model, tensor * context)
    data = wish.data_parallel_size or _data_parallel_size(cluster, model, (tensor, context, pipeline))
    sizes = ParallelSizes(
        tensor,
        pipeline,
        data,
        wish.virtual_pipeline_size or 1,
        context,
        wish.expert_parallel_size or 1,
    )
    micro = wish.micro_batch_size or 1
    return Layout(
        sizes=sizes,
        micro_batch_size=micro,
        global_batch_size=wish.global_batch_size or assumed_global_batch(model, cluster.num_gpus, wish.task),
        zero_stage=1 if wish.zero_stage is None else wish.zero_stage,
        sequence_parallel=tensor > 1 if wish.sequence_parallel is None else wish.sequence_parallel,
        recompute=wish.recompute or "none",
        offload=wish.offload or "none",
        engine=wish.engine,
        precision=wish.precision,
        stage_layers=wish.stage_layers,
    )


def _data_parallel_size(cluster: Cluster, model: Architecture, asked: tuple[int, int, int]) -> int:
    """Return how many copies of the model all GPUs hold.

    Raises:
        PlanError: if copies of that size do not fill the cluster evenly.
    """
    tensor, context, pipeline = asked
    copy = tensor * context * pipeline
    if copy <= cluster.num_gpus and cluster.num_gpus % copy == 0:
        return cluster.num_gpus // copy
    product = f"tensor_parallel_size={tensor} * pipeline_parallel_size={pipeline}" + (
        f" * context_parallel_size={context}" if context > 1 else ""
    )
    choices = [
        size
        for size in divisors(model.num_layers)
        if cluster.num_gpus % (tensor * context * size) == 0 and tensor * context * size <= cluster.num_gpus
    ]
    ways = [f"pipeline_parallel_size={size}" for size in sorted(choices, key=lambda size: abs(size - pipeline))[:2]]
    copies = cluster.num_gpus // copy
    if copies and copies * copy % cluster.gpus_per_host == 0 and model.num_layers % pipeline == 0:
        ways.append(f"data_parallel_size={copies} on {copies * copy} GPUs, leaving the others idle")
    raise PlanError(
        f"{product} = {copy} does not divide the {cluster.num_gpus} GPUs of the cluster; "
        f"what works: {', or '.join(ways) or 'a smaller tensor_parallel_size'}"
    )


def _usual_tensor_size(cluster: Cluster, model: Architecture) -> int:
    place = Place(cluster.num_gpus, cluster.gpus_per_host, cluster.domain_size)
    allowed = [
        size
        for size in divisors(min(place.domain_size, cluster.gpus_per_host))
        if model.num_attention_heads % size == 0
        and (model.num_query_groups % size == 0 or size % model.num_query_groups == 0)
        and model.ffn_hidden_size % size == 0
    ]
    return max(allowed)


def _usual_pipeline_size(cluster: Cluster, model: Architecture, inner: int) -> int:
    """Return the fewest stages whose weights, gradients and states take at most half of the memory."""
    ranks = cluster.num_gpus // inner
    allowed = [size for size in divisors(max(ranks, 1)) if model.num_layers % size == 0]
    budget = 0.5 * (cluster.gpu_memory_bytes or float("inf"))
    for size in allowed:
        if model.parameters * 18 / (inner * size) <= budget:
            return size
    return allowed[-1]
