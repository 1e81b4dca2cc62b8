"""Parallel layouts: `plan_layout` turns a cluster, a model and a request into a plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import PlanError
from .architecture import Architecture
from .cluster import Cluster
from .model_file import Config, resolve_model
from .placement import place_ranks, used_hosts
from .ranks import ParallelSizes, RankCoordinates
from .request import LayoutRequest
from .rules import Layout, Place, Refusal, divisors, refusals

__all__ = ["ParallelSizes", "Plan", "RankCoordinates", "plan_layout"]

SCHEMA = "rackweave.plan/1"
_ASSUMED_TOKENS_PER_BATCH = 4 * 1024 * 1024


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

    def as_dict(self) -> dict[str, Any]:
        """Return plan.json as `docs/contracts.md` describes it."""
        hosts = used_hosts(self.cluster, self.layout.sizes.world_size)
        gpu = self.cluster.gpu.name if self.cluster.gpu else None
        return {
            "schema": SCHEMA,
            "run": self.run,
            "origin": self.cluster.origin,
            "model": self.model.as_dict(),
            "cluster": {
                "hosts": [
                    {"host": host.name, "gpus": len(host.slots), "gpu": host.gpu_product or gpu} for host in hosts
                ],
                "origin": self.cluster.origin,
                "source": self.cluster.source,
            },
            "sizes": sizes_as_dict(self.layout),
            "ranks": [row.as_dict() for row in place_ranks(self.cluster, self.layout.sizes)],
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


def plan_layout(cluster: Cluster, model: str | Config | Architecture, request: LayoutRequest | None = None) -> Plan:
    """Lay a model out on a cluster: asked sizes are kept, the others chosen.

    Raises:
        PlanError: if the request breaks a rule; the sentence names the numbers and the nearest layout that works.
    """
    wish = request or LayoutRequest()
    architecture = resolve_model(model, wish.sequence_length)
    layout = _fixed_layout(cluster, architecture, wish)
    broken = refusals(architecture, layout, place_of(cluster, wish))
    if broken:
        raise PlanError(refusal_text(broken))
    return Plan(wish.run, cluster, architecture, layout, True, "not predicted")


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


def assumed_global_batch(model: Architecture, num_gpus: int) -> int:
    """Return a batch of about 4 Mi tokens that every data-parallel size of these GPUs divides."""
    wish = -(-_ASSUMED_TOKENS_PER_BATCH // model.sequence_length)
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
        global_batch_size=wish.global_batch_size or assumed_global_batch(model, cluster.num_gpus),
        zero_stage=1 if wish.zero_stage is None else wish.zero_stage,
        sequence_parallel=tensor > 1 if wish.sequence_parallel is None else wish.sequence_parallel,
        recompute=wish.recompute or "full",
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
