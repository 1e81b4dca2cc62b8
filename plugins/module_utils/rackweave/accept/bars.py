"""The bars that measured figures are held against, as data with their source.

A bar is absolute where somebody published or the hardware states one, else relative to the other nodes: then a node
stands out, but a fleet that is slow as a whole does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from ..errors import FabricError
from ..hardware.catalog import find_gpu

HIGHER, LOWER = "at least", "at most"


@dataclass(frozen=True)
class Bar:
    """What a figure must reach; `way` is ``at least`` or ``at most``. `source` says where the value comes from."""

    value: float
    way: str
    source: str

    def holds(self, value: float) -> bool:
        return value >= self.value if self.way == HIGHER else value <= self.value


@dataclass(frozen=True)
class RelativeBar:
    """A fraction (or multiple) of the median of the others; figures on the good side of `slack` always pass.

    The slack keeps noise of tiny figures out: a round trip of 0.3 ms beside one of 0.05 ms is no fault.
    """

    factor: float
    way: str
    slack: float | None = None

    def among(self, others: Sequence[float]) -> Bar:
        """Return the bar that the figures of the other nodes make."""
        value = self.factor * median(others)
        if self.slack is not None:
            value = max(value, self.slack) if self.way == LOWER else min(value, self.slack)
        count = len(others)
        whom = "the other node" if count == 1 else f"the median of {count} other nodes"
        return Bar(value, self.way, f"{self.factor:g} x {whom}")


UNITS = {
    "memlock": "MiB",
    "bare-metal": "",
    "cpu-work": "MB/s",
    "cpu-steal": "%",
    "round-trip": "us",
    "storage-write": "MB/s",
    "storage-read": "MB/s",
    "pcie-links": "links below their maximum",
    "nvlink-lanes": "active links of a GPU",
    "dcgm-diagnostic": "failed tests",
    "rdma-write": "Gb/s",
    "allreduce-node": "GB/s",
    "allreduce-node-jitter": "p99/p50 - 1",
    "allreduce-pair": "GB/s",
    "allreduce-pair-jitter": "p99/p50 - 1",
}
"""Every test, in the order in which it is shown, and the unit of its value."""

RELATIVE = {
    "cpu-work": RelativeBar(0.5, HIGHER),
    "round-trip": RelativeBar(5.0, LOWER, slack=1000.0),
    "storage-write": RelativeBar(0.25, HIGHER),
    "storage-read": RelativeBar(0.25, HIGHER),
    "allreduce-node": RelativeBar(0.8, HIGHER),
    "allreduce-pair": RelativeBar(0.8, HIGHER),
    "allreduce-node-jitter": RelativeBar(10.0, LOWER, slack=20.0),
    "allreduce-pair-jitter": RelativeBar(10.0, LOWER, slack=20.0),
}

GLOO = RelativeBar(0.25, HIGHER)
"""All-reduce between processes on CPUs, which other work disturbs far more than a network of GPUs."""

STEAL = Bar(2.0, LOWER, "assumed: a collective waits for the slowest rank, so 2 % of one node is 2 % of all")
NCCL_JITTER = Bar(0.5, LOWER, "assumed: single calls of the largest message on an idle fabric spread little")

_HEALTH_CHECKS = "Azure/azurehpc-health-checks, conf of the machine type"
_SHEET = "NVIDIA data sheet"
# All-reduce bus bandwidth inside one host of 8 GPUs, GB/s, at the largest message.
_ALLREDUCE = {
    "A100-40GB": (228.0, _HEALTH_CHECKS),
    "A100-80GB": (228.0, _HEALTH_CHECKS),
    "H100": (460.0, _HEALTH_CHECKS),
    "H200": (480.0, _HEALTH_CHECKS),
}
_NVLINKS = {
    "A100-40GB": 12,
    "A100-80GB": 12,
    "H100": 18,
    "H200": 18,
    "B200": 18,
    "GB200": 18,
    "GB300": 18,
}
# What `ib_write_bw` from GPU memory must reach, as a fraction of the port's rate: 380 of 400, 180 of 200 Gb/s.
_WRITE_FRACTION = ((400.0, 0.95), (200.0, 0.90))
_PAIR_FRACTION = 0.8


def allreduce_bar(gpu: str | None, count: int) -> Bar | None:
    """Return the bar of the all-reduce inside a host of `count` GPUs; None where nobody published one."""
    known = find_gpu(gpu or "")
    if known is None or known.name not in _ALLREDUCE or count != known.gpus_per_host:
        return None
    value, source = _ALLREDUCE[known.name]
    return Bar(value, HIGHER, source)


def nvlink_bar(gpu: str | None) -> Bar | None:
    """Return how many NVLinks of a GPU must be active; None for a part that has none or is not known."""
    known = find_gpu(gpu or "")
    return Bar(_NVLINKS[known.name], HIGHER, _SHEET) if known is not None and known.name in _NVLINKS else None


def write_bar(rate_gbps: float) -> Bar | None:
    """Return the bar of `ib_write_bw` over one port of a rate; None where the rate is unknown."""
    if rate_gbps <= 0:
        return None
    fraction = next((part for rate, part in _WRITE_FRACTION if rate_gbps >= rate), _WRITE_FRACTION[-1][1])
    return Bar(fraction * rate_gbps, HIGHER, f"{fraction:.0%} of {rate_gbps:g} Gb/s; {_HEALTH_CHECKS}")


def pair_bar(rails_gbps: float, nvlink: Bar | None) -> Bar | None:
    """Return the bar of the all-reduce between two hosts, GB/s, from the rate of all rails of one of them."""
    if rails_gbps <= 0:
        return None
    value, source = _PAIR_FRACTION * rails_gbps / 8, f"assumed: {_PAIR_FRACTION:.0%} of {rails_gbps:g} Gb/s of rails"
    if nvlink is not None and nvlink.value * _PAIR_FRACTION < value:
        value, source = nvlink.value * _PAIR_FRACTION, f"assumed: {_PAIR_FRACTION:.0%} of the bar inside a host"
    return Bar(value, HIGHER, source)


def read_overrides(values: Mapping[str, object]) -> dict[str, Bar]:
    """Return the operator's own bars by test, in the test's unit.

    Raises:
        FabricError: for a test that takes no bar, or a value that is no number.
    """
    found = {}
    ways = {**{name: bar.way for name, bar in RELATIVE.items()}, "rdma-write": HIGHER, "cpu-steal": LOWER}
    for name, value in values.items():
        if name not in ways:
            raise FabricError(f"acceptance_bars: {name!r} takes no bar; these do: {', '.join(sorted(ways))}")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
            raise FabricError(f"acceptance_bars: {name}={value!r} must be a number in {UNITS[name]}")
        found[name] = Bar(float(value), ways[name], "the inventory (acceptance_bars)")
    return found
