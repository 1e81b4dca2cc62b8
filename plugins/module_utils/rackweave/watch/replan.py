"""On which nodes a run goes on without some of them: a spare in place, or fewer replicas with the same global batch.

The global batch and the seed alone give the order of samples, so a run with fewer replicas sees the same samples in the
same order. Where no number of replicas divides the batch, this refuses: another batch would be another training run.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ..errors import PlanError
from ..run.plan_file import RunPlan


@dataclass(frozen=True)
class Replacement:
    """Hosts in node-rank order and the sizes to plan with; ``why`` is one sentence."""

    hosts: tuple[str, ...]
    sizes: dict[str, int]
    smaller: bool
    why: str


def replacement(
    plan: RunPlan, usable: Sequence[str], leave: Collection[str], smaller_ok: bool, wanted: int = 0
) -> Replacement:
    """Return where a run goes on without the hosts of ``leave``.

    Args:
        plan: the plan that ran last.
        usable: hosts that Slurm can give us, in the order of the inventory.
        smaller_ok: whether fewer nodes may be taken where no spare stands in.
        wanted: number of nodes that the run was meant for, where its last plan had fewer; 0 takes the plan's.

    Raises:
        PlanError: if there is no such set, naming what is missing.
    """
    size = max(wanted, len(plan.hosts))
    kept = [host for host in plan.hosts if host in usable and host not in leave]
    spares = [host for host in usable if host not in plan.hosts and host not in leave]
    found = (kept + spares)[:size]
    if len(found) == size:
        came = [host for host in found if host not in plan.hosts]
        why = f"without {', '.join(sorted(leave)) or 'nobody'}" + (f", {', '.join(came)} in place" if came else "")
        return Replacement(tuple(found), _sizes(plan, size), False, why)
    if not smaller_ok:
        without = ", ".join(sorted(leave)) or "nobody"
        raise PlanError(
            f"run {plan.run} needs {size} nodes, {len(found)} are usable without {without}, and "
            "going on with fewer is not allowed (operator_shrink): return a node, or allow it"
        )
    count = _fewer(plan, len(found))
    return Replacement(
        tuple(found[:count]),
        _sizes(plan, count),
        True,
        f"{size} nodes are not to be had, so {count} go on: data-parallel size "
        f"{_sizes(plan, count)['data_parallel_size']} in place of {plan.parallel.data_parallel_size}, "
        f"global batch {plan.global_batch_size} and the order of samples as before",
    )


def _ranks_per_host(plan: RunPlan) -> int:
    return plan.world_size // len(plan.hosts)


def _replica(plan: RunPlan) -> int:
    """Ranks of one data-parallel replica."""
    return plan.world_size // plan.parallel.data_parallel_size


def _fewer(plan: RunPlan, most: int) -> int:
    """The largest number of nodes that whole replicas fill and whose replicas divide the global batch.

    Raises:
        PlanError: if there is none.
    """
    for count in range(most, 0, -1):
        world = count * _ranks_per_host(plan)
        if world % _replica(plan) == 0:
            replicas = world // _replica(plan)
            if plan.global_batch_size % (plan.micro_batch_size * replicas) == 0:
                return count
    raise PlanError(
        f"{most} nodes of {_ranks_per_host(plan)} GPUs hold no number of replicas (of {_replica(plan)} GPUs each) that "
        f"keeps global_batch_size={plan.global_batch_size} with micro_batch_size={plan.micro_batch_size}: "
        "wait for a node"
    )


def current_sizes(plan: RunPlan) -> dict[str, int]:
    """The sizes of a plan, as a replacement names them."""
    parallel = plan.parallel
    return {
        "tensor_parallel_size": parallel.tensor_parallel_size,
        "pipeline_parallel_size": parallel.pipeline_parallel_size,
        "virtual_pipeline_size": parallel.virtual_pipeline_size,
        "context_parallel_size": parallel.context_parallel_size,
        "expert_parallel_size": parallel.expert_parallel_size,
        "data_parallel_size": parallel.data_parallel_size,
        "micro_batch_size": plan.micro_batch_size,
        "global_batch_size": plan.global_batch_size,
        "zero_stage": plan.zero_stage,
    }


def _sizes(plan: RunPlan, nodes: int) -> dict[str, int]:
    return {**current_sizes(plan), "data_parallel_size": nodes * _ranks_per_host(plan) // _replica(plan)}
