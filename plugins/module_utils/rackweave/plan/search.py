"""Complete search over layouts: every combination that the rules allow, ranked by step time.

Nothing is sampled. What is left out is proved not to matter: a lower ZeRO stage and less recomputation are faster where
they fit, more memory never helps, and a bound from the layers' own passes skips what cannot reach the best found.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from .architecture import Architecture
from .constants import Constants
from .machine import Machine, Software
from .memory import StageMemory, peak_memory
from .ranks import ParallelSizes
from .request import LayoutRequest
from .rules import ZERO_LIMIT, Layout, Place, Rule, divisors, first_refusal, rules_named
from .shapes import stage_layer_counts
from .step_time import StepModel, StepTime

KEPT = 24  # candidates kept for ranking and explanation
_LONG_SEQUENCE = 16384  # tokens from which context parallelism is worth enumerating
_MOST_CONTEXT = 32
_SHAPE_RULES = rules_named("heads", "query-groups", "ffn", "tensor-in-domain", "head-dim", "sequence-divides")
# What the search keeps of itself where it chooses a size, and what an asked value could break in combination with it.
_ASKED_RULES = {
    "virtual_pipeline_size": ("layers", "interleaving"),
    "data_parallel_size": ("world",),
    "expert_parallel_size": ("expert-ranks",),
    "zero_stage": ("zero-pipeline", "offload"),
    "offload": ("zero-pipeline", "offload"),
    "recompute": ("recompute-boundaries",),
}
_HOST_SHARE = 0.8  # of host memory that offloaded states may take
_MOST_TOKENS = 65536  # of one micro-batch: past it products gain nothing


@dataclass(frozen=True)
class Candidate:
    """A layout with its predictions."""

    layout: Layout
    memory: StageMemory
    time: StepTime
    fits: bool


@dataclass(frozen=True)
class SearchResult:
    """What the search found: the best layouts in order, the nearest misses, and how many were looked at."""

    ranked: tuple[Candidate, ...]
    smallest: Candidate | None
    considered: int
    refused: dict[str, str]


@dataclass
class _Best:
    """The fastest candidates so far, and the one that needs least memory."""

    heap: list[tuple[float, int, Candidate]]
    smallest: Candidate | None = None
    considered: int = 0

    @property
    def limit(self) -> float:
        """Seconds that a new candidate must beat."""
        return -self.heap[0][0] if len(self.heap) >= KEPT else float("inf")

    def add(self, candidate: Candidate) -> None:
        if not candidate.fits:
            if self.smallest is None or candidate.memory.needed < self.smallest.memory.needed:
                self.smallest = candidate
            return
        entry = (-candidate.time.total, -self.considered, candidate)
        if len(self.heap) < KEPT:
            heapq.heappush(self.heap, entry)
        elif entry > self.heap[0]:
            heapq.heapreplace(self.heap, entry)


class Search:
    """One search: a model, a machine, the place and what is asked for."""

    def __init__(
        self,
        model: Architecture,
        machine: Machine,
        place: Place,
        software: Software,
        constants: Constants,
        memory_factor: float = 1.0,
    ) -> None:
        """Take what is searched for; `memory_factor` is measured over predicted allocated memory of such machines."""
        self.model, self.machine, self.place = model, machine, place
        self.software, self.constants = software, constants
        self.times = StepModel(model, machine, software, constants)
        self.refused: dict[str, str] = {}
        self.tight = False
        self.memory_factor = memory_factor
        self.least_zero_stage = 0
        self.asked_rules: tuple[Rule, ...] = ()
        self.allows: Callable[[Layout], bool] | None = None
        """Beyond the rules: what the program runs, on the engine that is searched for."""

    def run_with_headroom(self, wish: LayoutRequest, global_batch_size: int) -> SearchResult:
        """Return the best layouts that leave the allocator its cache; if there are none, those that just fit."""
        self.tight = False
        result = self.run(wish, global_batch_size)
        if not result.ranked:
            self.tight = True
            result = self.run(wish, global_batch_size)
        return result

    def fits(self, memory: StageMemory) -> bool:
        """Return whether a GPU holds this (with all that the allocator caches, or, if tight, without), and its host."""
        host = memory.offloaded * self.machine.gpus_per_host
        if host > _HOST_SHARE * self.machine.host_memory_bytes:
            return False
        measured = (self.memory_factor - 1.0) * memory.allocated
        return measured + (memory.needed if self.tight else memory.nvidia_smi) <= self.machine.memory_bytes

    def run(self, wish: LayoutRequest, global_batch_size: int) -> SearchResult:
        """Return the best layouts of all that the request leaves open."""
        best = _Best([])
        names = {name for key, rules in _ASKED_RULES.items() if getattr(wish, key) is not None for name in rules}
        self.asked_rules = rules_named(*names)
        for layout in self._shapes(wish, global_batch_size):
            self._fill(layout, wish, best)
        ranked = sorted(best.heap, key=lambda entry: (-entry[0], -entry[1]))
        return SearchResult(tuple(entry[2] for entry in ranked), best.smallest, best.considered, self.refused)

    def _shapes(self, wish: LayoutRequest, batch: int) -> Iterator[Layout]:
        """Yield meshes with micro-batch 1 and no interleaving, larger worlds first."""
        meshes = [
            (tensor * context * pipeline * data, tensor, context, pipeline, data)
            for tensor, context in self._inner_sizes(wish, batch)
            for pipeline in self._pipeline_sizes(wish)
            for data in self._data_sizes(wish, batch, tensor * context * pipeline)
        ]
        meshes.sort(key=lambda mesh: (-mesh[0], mesh[1], mesh[3]))
        for _world, tensor, context, pipeline, data in meshes:
            for expert in self._expert_sizes(wish, tensor * context * data):
                sizes = ParallelSizes(tensor, pipeline, data, 1, context, expert)
                yield self._base(wish, sizes, batch)

    def _base(self, wish: LayoutRequest, sizes: ParallelSizes, batch: int) -> Layout:
        parallel = sizes.tensor_parallel_size > 1 and wish.sequence_parallel is not False
        return Layout(
            sizes=sizes,
            micro_batch_size=1,
            global_batch_size=batch,
            zero_stage=0,
            sequence_parallel=parallel,
            recompute="none",
            offload=wish.offload or "none",
            engine=wish.engine,
            precision=wish.precision,
            stage_layers=wish.stage_layers,
        )

    def _inner_sizes(self, wish: LayoutRequest, batch: int) -> Iterator[tuple[int, int]]:
        tensors = [wish.tensor_parallel_size] if wish.tensor_parallel_size else self._tensor_sizes()
        for tensor in tensors:
            for context in self._context_sizes(wish):
                layout = self._base(wish, ParallelSizes(tensor, 1, 1, 1, context, 1), batch)
                refusal = first_refusal(self.model, layout, self.place, _SHAPE_RULES)
                if refusal is None:
                    yield tensor, context
                else:
                    self.refused.setdefault(refusal.rule, refusal.sentence)

    def _tensor_sizes(self) -> list[int]:
        most = self.place.num_gpus if self.place.cross_domain_tensor_parallel else self.place.domain_size
        return [size for size in divisors(most) if size <= self.model.num_attention_heads]

    def _context_sizes(self, wish: LayoutRequest) -> list[int]:
        if wish.context_parallel_size:
            return [wish.context_parallel_size]
        if self.model.sequence_length < _LONG_SEQUENCE:
            return [1]
        return [size for size in (1, 2, 4, 8, 16, 32) if size <= min(_MOST_CONTEXT, self.place.num_gpus)]

    def _pipeline_sizes(self, wish: LayoutRequest) -> list[int]:
        if wish.pipeline_parallel_size:
            return [wish.pipeline_parallel_size]
        if wish.stage_layers:
            return [len(wish.stage_layers)]
        return [size for size in divisors(self.model.num_layers) if size <= self.place.num_gpus]

    def _data_sizes(self, wish: LayoutRequest, batch: int, inner: int) -> list[int]:
        most, host = self.place.num_gpus // inner, self.place.gpus_per_host
        if most == 0:
            return []
        if wish.data_parallel_size:
            return [wish.data_parallel_size] if wish.data_parallel_size <= most else []
        return [
            size
            for size in divisors(batch)
            if size <= most and (inner * size % host == 0 or inner * size == self.place.num_gpus)
        ]

    def _expert_sizes(self, wish: LayoutRequest, ranks: int) -> list[int]:
        experts = self.model.experts
        if experts is None:
            return [1]
        if wish.expert_parallel_size:
            return [wish.expert_parallel_size]
        return [size for size in divisors(experts.num_experts) if ranks % size == 0 and size <= 64]

    def _fill(self, base: Layout, wish: LayoutRequest, best: _Best) -> None:
        """Try micro-batches and chunks of one mesh."""
        per_rank = base.global_batch_size // base.sizes.data_parallel_size
        wished = wish.micro_batch_size
        for micro in [wished] if wished else divisors(per_rank):
            if per_rank % micro or (micro > 1 and not wished and micro * self.model.sequence_length > _MOST_TOKENS):
                continue
            layout = replace(base, micro_batch_size=micro)
            if self.times.lower_bound(layout) >= best.limit:
                continue
            fitted = False
            for chunks in self._chunk_sizes(wish, layout):
                fitted |= self._settle(layout, chunks, wish, best)
            if not fitted:
                return  # larger micro-batches need more memory still

    def _chunk_sizes(self, wish: LayoutRequest, layout: Layout) -> list[int]:
        stages = layout.sizes.pipeline_parallel_size
        if wish.virtual_pipeline_size:
            return [wish.virtual_pipeline_size]
        if stages == 1 or layout.engine == "deepspeed-pipeline" or layout.num_microbatches % stages:
            return [1]
        if self.model.num_layers % stages:
            return [1]
        return divisors(self.model.num_layers // stages)

    def _settle(self, layout: Layout, chunks: int, wish: LayoutRequest, best: _Best) -> bool:
        """Take the fastest ZeRO stage and recomputation that fit; return whether any does.

        The rules of what is asked do not depend on the micro-batch, or hold for the smallest if for any.
        """
        sizes = layout.sizes
        if chunks > 1:
            sizes = ParallelSizes(
                sizes.tensor_parallel_size,
                sizes.pipeline_parallel_size,
                sizes.data_parallel_size,
                chunks,
                sizes.context_parallel_size,
                sizes.expert_parallel_size,
            )
        found = False
        for stage in self._zero_stages(wish, layout):
            for recompute in self._recompute_kinds(wish, stage):
                trial = replace(layout, sizes=sizes, zero_stage=stage, recompute=recompute)
                if self.asked_rules and self._breaks_what_is_asked(trial):
                    continue
                if self.allows is not None and not self.allows(trial):
                    continue
                memory = peak_memory(self.model, trial, self.software, self.constants)
                fits = self.fits(memory)
                best.considered += 1
                if fits or best.smallest is None or memory.needed < best.smallest.memory.needed:
                    best.add(Candidate(trial, memory, self.times.predict(trial), fits))
                if fits:
                    found = True
                    break
        return found

    def _breaks_what_is_asked(self, trial: Layout) -> bool:
        refusal = first_refusal(self.model, trial, self.place, self.asked_rules)
        if refusal is not None:
            self.refused.setdefault(refusal.rule, refusal.sentence)
        return refusal is not None

    def _zero_stages(self, wish: LayoutRequest, layout: Layout) -> list[int]:
        sizes = layout.sizes
        replicas = sizes.data_parallel_size * sizes.context_parallel_size
        if wish.zero_stage is not None:
            return [wish.zero_stage]
        if wish.engine == "fsdp":
            return [3]
        most = ZERO_LIMIT[layout.engine]
        if sizes.pipeline_parallel_size == 1 and layout.engine in ("megatron", "flat"):
            most = 3
        least = 2 if layout.offload != "none" and layout.engine != "flat" else 1
        if replicas == 1 and layout.offload == "none":
            return [self.least_zero_stage]
        return list(range(least, most + 1))

    def _recompute_kinds(self, wish: LayoutRequest, stage: int) -> list[str]:
        if wish.recompute:
            return [wish.recompute]
        # With fused attention there is no score matrix, so selective recomputation saves nothing.
        return ["none", "full"]


def evaluate(search: Search, layout: Layout) -> Candidate:
    """Return the predictions for one given layout."""
    memory = peak_memory(search.model, layout, search.software, search.constants)
    return Candidate(layout, memory, search.times.predict(layout), search.fits(memory))


def layers_text(model: Architecture, layout: Layout) -> str:
    """Return the layers of the stages in words."""
    counts = stage_layer_counts(model, layout)
    return f"{counts[0]} layers a stage" if len(set(counts)) == 1 else f"{'-'.join(map(str, counts))} layers"
