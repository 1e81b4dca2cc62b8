"""``plan.json``: reader with checks, and the questions that a launcher asks it (hosts in order, node rank, master)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import DocumentError, PlanError
from ..plan.layout import ParallelSizes
from .schema import Anything, Flag, ListOf, Nullable, Record, Text, Whole, read_document, write_json

SCHEMA = "rackweave.plan/1"
ORIGINS = ("measured", "simulated", "example", "declared")

_SIZES = Record(
    {
        "tensor_parallel_size": Whole(1),
        "pipeline_parallel_size": Whole(1),
        "virtual_pipeline_size": Whole(1),
        "data_parallel_size": Whole(1),
        "context_parallel_size": Whole(1),
        "expert_parallel_size": Whole(1),
        "micro_batch_size": Whole(1),
        "global_batch_size": Whole(1),
        "num_microbatches": Whole(1),
        "zero_stage": Whole(0),
        "sequence_parallel": Flag(),
        "recompute": Text(("none", "selective", "full")),
        "offload": Text(("none", "cpu", "nvme")),
        "world_size": Whole(1),
    }
)

_RANK = Record(
    {
        "rank": Whole(),
        "host": Text(),
        "local_rank": Whole(),
        "gpu_index": Nullable(Whole()),
        "gpu_bdf": Nullable(Text()),
        "hca": Nullable(Text()),
        "tp_rank": Whole(),
        "dp_rank": Whole(),
        "pp_rank": Whole(),
        "cp_rank": Whole(),
    }
)

PLAN = Record(
    {
        "schema": Text((SCHEMA,)),
        "run": Text(),
        "origin": Text(ORIGINS),
        "model": Anything(),
        "cluster": Record(
            {
                "hosts": ListOf(Record({"host": Text(), "gpus": Whole(1), "gpu": Nullable(Text())}), 1),
                "origin": Text(ORIGINS),
                "source": Nullable(Text()),
            }
        ),
        "sizes": _SIZES,
        "ranks": ListOf(_RANK, 1),
        "memory": Anything(),
        "prediction": Anything(),
        "reliability": Anything(),
        "rejected": Anything(),
        "fits": Flag(),
        "reason": Nullable(Text()),
    }
)


@dataclass(frozen=True)
class RankPlace:
    """One row of the rank table: where a rank runs and where it sits on the mesh."""

    rank: int
    host: str
    local_rank: int
    gpu_index: int | None
    gpu_bdf: str | None
    hca: str | None
    tp_rank: int
    dp_rank: int
    pp_rank: int
    cp_rank: int


@dataclass(frozen=True)
class RunPlan:
    """A checked plan; ``document`` is the whole file for what is only passed on."""

    run: str
    origin: str
    parallel: ParallelSizes
    micro_batch_size: int
    global_batch_size: int
    num_microbatches: int
    zero_stage: int
    ranks: tuple[RankPlace, ...]
    document: Mapping[str, Any]

    @property
    def hosts(self) -> tuple[str, ...]:
        """Hosts in node-rank order, which is the order of their first rank (never the alphabet)."""
        return tuple(dict.fromkeys(place.host for place in self.ranks))

    @property
    def master_host(self) -> str:
        """The host of rank 0, where the rendezvous store runs."""
        return self.ranks[0].host

    @property
    def world_size(self) -> int:
        return len(self.ranks)

    def ranks_on(self, host: str) -> tuple[RankPlace, ...]:
        """Return the ranks of one host in local order (empty for a host outside the plan)."""
        return tuple(place for place in self.ranks if place.host == host)


def parse_plan(text: str, where: str = "plan.json") -> RunPlan:
    """Read a plan and check that it can be launched as it stands.

    Raises:
        DocumentError: if the file does not follow its schema, or its rank table contradicts its sizes or torchrun's
            numbering (a host's ranks are consecutive and its local ranks count from zero).
    """
    document = read_document(text, SCHEMA, PLAN, where)
    sizes = document["sizes"]
    try:
        parallel = ParallelSizes(
            tensor_parallel_size=sizes["tensor_parallel_size"],
            pipeline_parallel_size=sizes["pipeline_parallel_size"],
            data_parallel_size=sizes["data_parallel_size"],
            virtual_pipeline_size=sizes["virtual_pipeline_size"],
            context_parallel_size=sizes["context_parallel_size"],
            expert_parallel_size=sizes["expert_parallel_size"],
        )
    except PlanError as error:
        raise DocumentError(f"{where}: {error}") from error
    plan = RunPlan(
        run=document["run"],
        origin=document["origin"],
        parallel=parallel,
        micro_batch_size=sizes["micro_batch_size"],
        global_batch_size=sizes["global_batch_size"],
        num_microbatches=sizes["num_microbatches"],
        zero_stage=sizes["zero_stage"],
        ranks=tuple(RankPlace(**row) for row in document["ranks"]),
        document=document,
    )
    _check_sizes(plan, sizes, where)
    _check_ranks(plan, where)
    return plan


def serialise_plan(document: Mapping[str, Any]) -> str:
    """Return the text of ``plan.json`` after checking it as the reader would.

    Raises:
        DocumentError: for a document that the reader refuses.
    """
    text = write_json(document)
    parse_plan(text)
    return text


def _check_sizes(plan: RunPlan, sizes: Mapping[str, Any], where: str) -> None:
    if not sizes["world_size"] == plan.parallel.world_size == plan.world_size:
        raise DocumentError(
            f"{where}: world_size={sizes['world_size']}, but the parallel sizes make {plan.parallel.world_size} ranks "
            f"and the table has {plan.world_size}; make the plan again"
        )
    samples = plan.micro_batch_size * plan.num_microbatches * plan.parallel.data_parallel_size
    if samples != plan.global_batch_size:
        raise DocumentError(
            f"{where}: global_batch_size={plan.global_batch_size}, but micro_batch_size={plan.micro_batch_size} * "
            f"num_microbatches={plan.num_microbatches} * data_parallel_size={plan.parallel.data_parallel_size} "
            f"= {samples}; make the plan again"
        )


def _check_ranks(plan: RunPlan, where: str) -> None:
    seen: dict[str, int] = {}
    previous = ""
    for expected, place in enumerate(plan.ranks):
        if place.rank != expected:
            raise DocumentError(f"{where}: row {expected} of the rank table is rank {place.rank}, out of order")
        if place.host != previous and place.host in seen:
            raise DocumentError(
                f"{where}: the ranks of host {place.host} are not consecutive (rank {place.rank}); "
                "torchrun numbers ranks host by host"
            )
        if place.local_rank != seen.get(place.host, 0):
            raise DocumentError(
                f"{where}: rank {place.rank} on {place.host} has local_rank {place.local_rank}, "
                f"but torchrun will give it {seen.get(place.host, 0)}"
            )
        coordinates = plan.parallel.coordinates(place.rank)
        if coordinates != (place.tp_rank, place.cp_rank, place.dp_rank, place.pp_rank):
            raise DocumentError(
                f"{where}: rank {place.rank} is written at tp={place.tp_rank} cp={place.cp_rank} dp={place.dp_rank} "
                f"pp={place.pp_rank}, but the rank order puts it at tp={coordinates.tp_rank} "
                f"cp={coordinates.cp_rank} dp={coordinates.dp_rank} pp={coordinates.pp_rank}"
            )
        seen[place.host] = place.local_rank + 1
        previous = place.host
