"""A layout that would fit where this one did not: the planner's search, within the memory that a rank really has."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rackweave.errors import RackweaveError
from rackweave.hardware.catalog import Gpu, find_gpu, gpu_named
from rackweave.plan.constants import Constants
from rackweave.plan.explain import describe
from rackweave.plan.layout import sizes_as_dict
from rackweave.plan.machine import Machine
from rackweave.plan.memory import GIB, StageMemory
from rackweave.plan.model_file import resolve_model
from rackweave.plan.request import LayoutRequest
from rackweave.plan.rules import Layout, Place, divisors
from rackweave.plan.search import Candidate, Search, evaluate
from rackweave.plan.software import planned_software
from rackweave.plan.trainer import PLANNED_AS

from .config import JobConfig, SizesConfig, check_engine, check_model_sizes, runs_flat
from .live_bytes import Situation, live_bytes

STAND_IN = "A100-80GB"
"""Ranks layouts by speed where the catalog does not know the GPU; memory needs no GPU's figures."""
MARGIN = 1.05
"""The failed allocation was not the last one, and allocators leave holes."""
USABLE_ON_HOST = 0.8
"""Share of a host's memory that can be planned with: the C library leaves holes, and the planner's model of memory was
fitted on GPUs, of which it counts the holes itself."""
LATER_ON_HOST = 128 << 20
"""Threads and buffers that libraries make during the first step and save (97 MiB measured, torch 2.13 with gloo)."""
WRITTEN_ON_HOST = 128 << 20
"""Copies of pieces that DCP's threads write from, where no larger temporary of a step made room for them before."""
MOST_DOUBLINGS = 8
PRECISIONS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


@dataclass(frozen=True)
class Shortage:
    """What a rank measured when memory ran out, in bytes.

    Attributes:
        limit: the most that it could hold.
        own: what the program takes without model and states.
        reached: what it held, with the allocation that failed.
        cuda: the GPU's memory, not the host's.
    """

    limit: int
    own: int
    reached: int
    cuda: bool


@dataclass(frozen=True)
class Advice:
    """One sentence, and the layout that it is about: `sizes` as in plan.json, or None where none fits."""

    sentence: str
    sizes: Mapping[str, Any] | None = None
    needed_bytes: int | None = None


def advise(job: JobConfig, shortage: Shortage, failed_by_layout: bool = True) -> Advice:
    """Return the fastest layout that fits: on these hosts, with states on the host (GPUs only), or on more hosts.

    Args:
        failed_by_layout: the model and its states are why memory ran out, so the planner's estimate is corrected by
            what was reached.
    """
    try:
        return _advise(_Wishes(job, shortage, failed_by_layout))
    except RackweaveError as error:
        return Advice(f"the planner has no advice: {error}")


def _advise(wishes: _Wishes) -> Advice:
    limit = wishes.shortage.limit / GIB
    hosts = len(wishes.job.plan.cluster["hosts"])
    for doubling in range(MOST_DOUBLINGS + 1):
        for offload in ("none", "cpu") if wishes.shortage.cuda else ("none",):
            best = wishes.best(hosts << doubling, offload)
            if best is None:
                continue
            needed = wishes.needed(best.memory, wishes.flat(best.layout.zero_stage))
            where = "" if doubling == 0 else f" on {hosts << doubling} such hosts"
            return Advice(
                f"{describe(best.layout)} would fit{where}: {needed / GIB:.2f} of {limit:.2f} GiB",
                sizes_as_dict(best.layout),
                int(needed),
            )
    return Advice(
        f"no layout on up to {hosts << MOST_DOUBLINGS} such hosts fits into the {limit:.2f} GiB of a rank, of which "
        f"the program itself takes {wishes.shortage.own / GIB:.2f}"
    )


class _Fitting(Search):
    """The planner's search, with what fits decided by measured bytes."""

    wishes: _Wishes

    def fits(self, memory: StageMemory) -> bool:
        return self.wishes.needed(memory, self.software.flat) <= self.wishes.shortage.limit


class _Wishes:
    """What is asked of the planner, and how its estimate of memory is read."""

    def __init__(self, job: JobConfig, shortage: Shortage, correct: bool) -> None:
        self.job, self.shortage = job, shortage
        self._model = resolve_model({**dataclasses.asdict(job.plan.model), "parameters": None})
        self._gpus_per_host = int(job.plan.cluster["hosts"][0]["gpus"])
        self._own = shortage.own + (0 if shortage.cuda else LATER_ON_HOST)
        self._usable = 1.0 if shortage.cuda else USABLE_ON_HOST
        staged = not shortage.cuda and job.train.checkpoint.mode != "sync"
        self._situation = Situation(job.train.dtype, shortage.cuda, staged)
        self._correction = 1.0
        if correct:
            self._correct()

    def needed(self, memory: StageMemory, flat: bool) -> float:
        """Return the bytes that a rank needs for a layout, counted as the shortage counts; `flat`: on that engine."""
        written = WRITTEN_ON_HOST if flat and not self.shortage.cuda else 0
        return self._own + written + self._correction * live_bytes(memory, flat, self._situation) / self._usable

    def flat(self, zero_stage: int) -> bool:
        """Tell whether this job runs a ZeRO stage on the flat engine."""
        return runs_flat(zero_stage, self.job.train.engine)

    def _correct(self) -> None:
        """Scale the estimate so that the failed layout needs what it reached, and in any case more than the limit."""
        layout = self._current()
        search = self._search(len(self.job.plan.cluster["hosts"]), layout.zero_stage)
        current = live_bytes(evaluate(search, layout).memory, search.software.flat, self._situation)
        reached = max(self.shortage.reached, self.shortage.limit) - self._own
        self._correction = max(1.0, MARGIN * reached * self._usable / current)

    def _engine(self, zero_stage: int) -> str:
        return PLANNED_AS["flat" if self.flat(zero_stage) else "deepspeed"]

    def best(self, hosts: int, offload: str) -> Candidate | None:
        """Return the fastest layout on some hosts that fits and that the trainer runs."""
        batch = self.job.plan.sizes.global_batch_size
        found = [
            item
            for wish in self._requests(offload)
            for item in self._search(hosts, wish.zero_stage or 0).run(wish, batch).ranked
        ]
        found.sort(key=lambda candidate: candidate.time.total)
        return next((candidate for candidate in found if self._runs(candidate.layout)), None)

    def _requests(self, offload: str) -> Iterator[LayoutRequest]:
        """Yield requests that differ in what only the trainer restricts: tensor size and ZeRO stage."""
        base = LayoutRequest(
            context_parallel_size=1,
            precision=PRECISIONS[self.job.train.dtype],
            task="pretrain" if self.job.train.lora is None else "lora",
            offload=offload,
        )
        for tensor in divisors(self._gpus_per_host):
            for stage in (1, 2, 3):
                # ZeRO 3, and summed gradients of tied embeddings, have no pipeline.
                alone = stage == 3 or (stage == 2 and self._model.tied_embeddings)
                yield replace(
                    base,
                    tensor_parallel_size=tensor,
                    zero_stage=stage,
                    engine=self._engine(stage),
                    pipeline_parallel_size=1 if alone else None,
                )

    def _runs(self, layout: Layout) -> bool:
        """Tell whether the trainer accepts a layout: its own checks of sizes and plan decide."""
        if layout.sizes.world_size % self._gpus_per_host and layout.sizes.world_size > self._gpus_per_host:
            return False
        train = self.job.train
        try:
            sizes = SizesConfig(**sizes_as_dict(layout))
            check_model_sizes(self.job.plan.model, sizes)
            check_engine(sizes, train.engine, train.lora is not None, train.offload_directory)
        except RackweaveError:
            return False
        return True

    def _search(self, hosts: int, zero_stage: int) -> Search:
        gpus = hosts * self._gpus_per_host
        gpu = self._gpu()
        domain = min(gpus, max(gpu.nvlink_domain, 1)) if self.shortage.cuda else self._gpus_per_host
        machine = Machine(
            gpu, self._gpus_per_host, domain, gpu.nic_gbps * 1e9 / 8, self.shortage.limit, gpu.host_memory_bytes
        )
        constants = Constants.shipped()
        if not self.shortage.cuda:
            constants = constants.with_values({"allocated_base_gib": 0.0})
        task = "pretrain" if self.job.train.lora is None else "lora"
        place = Place(gpus, self._gpus_per_host, domain)
        software = planned_software(self._engine(zero_stage), task, self._model)
        # Nothing is compiled on CPUs, so all is kept that a backward pass can use.
        software = replace(software, thrifty=software.thrifty and self.shortage.cuda)
        search = _Fitting(self._model, machine, place, software, constants)
        search.wishes = self
        return search

    def _gpu(self) -> Gpu:
        name = self.job.plan.cluster["hosts"][0].get("gpu")
        return (find_gpu(str(name)) if name else None) or gpu_named(STAND_IN)

    def _current(self) -> Layout:
        sizes = self.job.plan.sizes
        return Layout(
            sizes=sizes.parallel,
            micro_batch_size=sizes.micro_batch_size,
            global_batch_size=sizes.global_batch_size,
            zero_stage=sizes.zero_stage,
            sequence_parallel=sizes.sequence_parallel,
            recompute=sizes.recompute,
            offload=sizes.offload,
            precision=PRECISIONS[self.job.train.dtype],
            engine=self._engine(sizes.zero_stage),
        )
