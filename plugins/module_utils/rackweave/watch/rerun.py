"""Megatron core's rerun state machine: which GPU gave the result that another one does not reproduce.

A first rerun on the same GPU tells a passing error from a lasting one. For the latter the job starts again on other
GPUs, and there the second rerun is reported by the GPU that is *right*.
"""

from __future__ import annotations

from collections.abc import Iterator

from .evidence import Finding, Hit, Store, finding_of, to_finding
from .lifecycle import Lifecycle

_SUSPECT = "num.sdc_suspect/megatron"
_LASTING = "num.sdc_persistent/megatron"
DEFERRED = frozenset({_SUSPECT, _LASTING})


def verdicts(store: Store, life: Lifecycle) -> Iterator[Finding]:
    """Findings of all reruns of a job, named by the GPU that was first in doubt."""
    suspects, lasting = store.of(_SUSPECT), store.of(_LASTING)
    right = store.of("fact:rerun_agrees")
    for hit in right:
        if "nan" in hit.line.text.lower():
            yield finding_of("num.nan", hit, 20)
    if right and not lasting:
        # Another GPU gives the same result, so that the numbers are the program's.
        cleared = max(hit.last for hit in right)
        suspects = [hit for hit in suspects if hit.last > cleared]
    yield from map(to_finding, suspects)
    first = _first_gpu(store, suspects, lasting)
    for hit in lasting:
        finding = to_finding(hit)
        if first is not None:
            finding = finding_of("num.sdc_persistent", hit, hit.signature.depth, *first)
        yield finding


def _first_gpu(store: Store, suspects: list[Hit], lasting: list[Hit]) -> tuple[set[int], set[str]] | None:
    """Rank and host of the GPU whose wrong result was the same twice; None where no line tells it."""
    doubted = [hit for hit in suspects if "is reproducible" in hit.line.text and "host" in hit.groups]
    ranks = {rank for hit in lasting for rank in to_finding(hit).ranks}
    chosen = [hit for hit in doubted if int(hit.groups["rank"]) in ranks] or doubted
    if chosen:
        return {int(hit.groups["rank"]) for hit in chosen}, {hit.groups["host"] for hit in chosen}
    again = store.of("fact:rerun_same_gpu")
    return (ranks, {hit.groups["host"] for hit in again}) if again else None
