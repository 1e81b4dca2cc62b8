"""The searches that one request needs: one, or for the trainer one for each of its engines, with one result.

What an engine is predicted to need and to take differs, so each layout is searched with the engine that will run it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .architecture import Architecture
from .constants import Constants
from .machine import Machine
from .request import LayoutRequest
from .rules import Layout, Place
from .search import Candidate, Search, SearchResult, evaluate
from .software import planned_software
from .trainer import (
    DTYPES,
    PLANNED_AS,
    TRAINER_ENGINES,
    EngineChoice,
    JobTraits,
    layout_engine,
    layout_refusal,
)


@dataclass(frozen=True)
class Asked:
    """A search with the request as it searches for: its engine is one that the formulas know."""

    search: Search
    wish: LayoutRequest


def traits_of(wish: LayoutRequest) -> JobTraits | None:
    """Return what of a request decides on the trainer's engine, or None where another program is planned for."""
    if wish.engine not in TRAINER_ENGINES:
        return None
    adapters = wish.task in ("lora", "qlora")
    return JobTraits(wish.backend, DTYPES.get(wish.precision, ""), adapters, TRAINER_ENGINES[wish.engine])


def planned_engine(layout: Layout, traits: JobTraits | None) -> str:
    """Return the engine that a layout is planned for: its own, or what the trainer will choose for it."""
    return layout.engine if traits is None else PLANNED_AS[layout_engine(layout, traits).engine]


class Searches:
    """All searches of a request; `place` is the rules' view of the cluster."""

    def __init__(
        self, model: Architecture, machine: Machine, place: Place, wish: LayoutRequest, memory_factor: float = 1.0
    ) -> None:
        self.model, self._machine, self._place, self._factor = model, machine, place, memory_factor
        self.traits = traits_of(wish)
        if self.traits is None:
            self.all = [Asked(self._open(wish.engine, wish.task), wish)]
            return
        alone = replace(wish, context_parallel_size=1, expert_parallel_size=1)
        self.all = [
            Asked(self._open(engine, wish.task), replace(alone, engine=engine)) for engine in PLANNED_AS.values()
        ]

    def run(self, global_batch_size: int) -> SearchResult:
        """Return the best layouts of all engines that leave the allocator its cache; without any, those that just fit.

        Layouts considered are counted over all searches.
        """
        found = [asked.search.run_with_headroom(asked.wish, global_batch_size) for asked in self.all]
        roomy = [result for asked, result in zip(self.all, found) if result.ranked and not asked.search.tight]
        taken = roomy or found
        ranked = sorted((item for result in taken for item in result.ranked), key=lambda item: item.time.total)
        missed = [result.smallest for result in found if result.smallest is not None]
        return SearchResult(
            tuple(ranked),
            min(missed, key=lambda item: item.memory.needed) if missed else None,
            sum(result.considered for result in found),
            {rule: sentence for result in found for rule, sentence in result.refused.items()},
        )

    def owner(self, layout: Layout) -> Asked:
        """Return the search with the engine that runs a layout."""
        engine = planned_engine(layout, self.traits)
        return next(asked for asked in self.all if asked.wish.engine == engine)

    def evaluate(self, layout: Layout) -> Candidate:
        """Return the predictions for one layout on the engine that runs it."""
        asked = self.owner(layout)
        return evaluate(asked.search, replace(layout, engine=asked.wish.engine))

    def refusal(self, layout: Layout) -> str | None:
        """Return why the program cannot run a layout that the frameworks' rules allow."""
        return None if self.traits is None else layout_refusal(self.model, layout, self.traits)

    def choice(self, layout: Layout) -> EngineChoice | None:
        """Return the trainer's engine for a layout, or None where another program is planned for."""
        return None if self.traits is None else layout_engine(layout, self.traits)

    def _open(self, engine: str, task: str) -> Search:
        software, constants = planned_software(engine, task, self.model), Constants.shipped()
        search = Search(self.model, self._machine, self._place, software, constants, self._factor)
        if self.traits is None:
            return search
        # Where the flat engine was not measured a single replica takes ZeRO 1, since ZeRO 0 has no other engine.
        search.least_zero_stage = 1 if engine == PLANNED_AS["deepspeed"] else 0
        search.allows = lambda layout: self._allows(layout, engine)
        return search

    def _allows(self, layout: Layout, engine: str) -> bool:
        return planned_engine(layout, self.traits) == engine and self.refusal(layout) is None
