"""What a verdict needs beside the figures, and how one figure is held against its bar."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..hardware.node import NodeDocument
from .bars import RELATIVE, Bar, RelativeBar
from .report import FAIL, NOT_HERE, PASS, TestResult


@dataclass(frozen=True)
class Context:
    """What a verdict needs beside the figures.

    Attributes:
        documents: node documents by host.
        rails_gbps: rate of every rail of a host, by host; missing or empty where there is no RDMA.
        bars: the operator's own bars by test.
        earlier: figures of earlier runs, by test and host: peers of a node that is measured alone.
        virtual_ok: whether nodes may be virtual machines.
        dcgm_level: run level of the diagnostic; 0 leaves it out.
        alone: whether the cluster has one node only, so that nothing between nodes can ever be measured.
    """

    documents: Mapping[str, NodeDocument]
    rails_gbps: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    bars: Mapping[str, Bar] = field(default_factory=dict)
    earlier: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    virtual_ok: bool = False
    dcgm_level: int = 2
    alone: bool = False

    def gpu_name(self, host: str) -> str | None:
        gpus = self.documents[host].gpus
        return gpus[0].name if gpus else None

    def gpu_count(self, host: str) -> int:
        return len(self.documents[host].gpus)


def compare(
    name: str,
    host: str,
    values: Mapping[str, float],
    bar: Bar | None,
    earlier: Mapping[str, float],
    detail: Mapping[str, float | int | str | bool] | None = None,
    relative: RelativeBar | None = None,
) -> TestResult:
    """Hold one value against an absolute bar, else against the same figure of the other nodes."""
    value = values[host]
    if bar is None:
        others = [other for peer, other in values.items() if peer != host]
        others = others or [other for peer, other in earlier.items() if peer != host]
        if not others:
            return TestResult(name, NOT_HERE, value, reason="no other node to compare it with", detail=detail or {})
        bar = (relative or RELATIVE[name]).among(others)
    holds = bar.holds(value)
    reason = "" if holds else f"{value:.4g} is not {bar.way} {bar.value:.4g}, {bar.source}"
    return TestResult(name, PASS if holds else FAIL, value, bar.value, bar.source, reason, detail or {})
