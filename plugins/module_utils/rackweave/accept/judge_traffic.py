"""Verdicts on traffic: all-reduce inside a node and between pairs, and RDMA writes from GPU memory over each rail.

A slow pair has two ends. A host fails where most of its pairs fail; a single bad pair of two otherwise good hosts is
reported with the pair and fails neither.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from ..errors import ParseError
from .bars import GLOO, NCCL_JITTER, Bar, RelativeBar, allreduce_bar, pair_bar, write_bar
from .context import Context, compare
from .figures import Collective, Observations, RailRun, Sweep
from .report import FAIL, NOT_HERE, PASS, PENDING, PairResult, TestResult
from .tool_output import write_bandwidth_gbps

GIGA = 1e9
NO_NEIGHBOUR = "pair test pending: no other idle node to measure with"
ONE_NODE = "the cluster has one node only"


@dataclass(frozen=True)
class HostTraffic:
    """Tests of one host, and the pairs it was part of."""

    tests: tuple[TestResult, ...]
    pairs: tuple[PairResult, ...]


def judge_traffic(host: str, seen: Observations, context: Context) -> HostTraffic:
    """Judge everything that a host sent and received."""
    inside = _inside(host, seen, context)
    pairs = _pairs(host, seen, context)
    return HostTraffic(
        (
            *inside,
            *(_of_pairs(name, host, pairs, seen, context) for name in ("allreduce-pair", "allreduce-pair-jitter")),
            _writes(host, seen, context),
        ),
        tuple(pairs),
    )


def _detail(sweep: Sweep) -> dict[str, float | int | str | bool]:
    spread = sweep.spread
    return {"p50_us": spread.p50_s * 1e6, "p99_us": spread.p99_s * 1e6, "max_us": spread.max_s * 1e6}


def _bandwidths(collectives: Sequence[Collective], size: int) -> dict[tuple[str, ...], float]:
    """Return hosts to bus bandwidth, GB/s, at the largest message; of two ends the slower one counts."""
    found: dict[tuple[str, ...], float] = {}
    for it in collectives:
        if len(it.hosts) == size and it.largest is not None:
            value = it.largest.bus_bytes_per_second / GIGA
            found[it.hosts] = min(found.get(it.hosts, value), value)
    return found


def _jitters(collectives: Sequence[Collective], size: int) -> dict[tuple[str, ...], float]:
    found: dict[tuple[str, ...], float] = {}
    for it in collectives:
        if len(it.hosts) == size and it.largest is not None:
            found[it.hosts] = max(found.get(it.hosts, 0.0), it.largest.jitter)
    return found


def _relative(backend: str) -> RelativeBar | None:
    return None if backend == "nccl" else GLOO


def _jitter_bar(backend: str) -> Bar | None:
    return NCCL_JITTER if backend == "nccl" else None


def _inside(host: str, seen: Observations, context: Context) -> tuple[TestResult, TestResult]:
    names = ("allreduce-node", "allreduce-node-jitter")
    mine = [it for it in seen.collectives if it.hosts == (host,)]
    failed = [it.error for it in mine if it.error] or ([] if mine else [_why_none(host, seen)])
    if failed:
        verdict = NOT_HERE if not mine and _could_not(host, seen) else FAIL
        return TestResult(names[0], verdict, reason=failed[0]), TestResult(names[1], NOT_HERE, reason=failed[0])
    if mine[0].largest is None:
        reason = "one rank has nobody to reduce with"
        return TestResult(names[0], NOT_HERE, reason=reason), TestResult(names[1], NOT_HERE, reason=reason)
    sweep, backend = mine[0].largest, mine[0].backend
    absolute = allreduce_bar(context.gpu_name(host), context.gpu_count(host)) if backend == "nccl" else None
    bandwidths = {key[0]: value for key, value in _bandwidths(seen.collectives, 1).items()}
    jitters = {key[0]: value for key, value in _jitters(seen.collectives, 1).items()}
    detail = {**_detail(sweep), "ranks": mine[0].ranks}
    bars = (context.bars.get(names[0], absolute), context.bars.get(names[1], _jitter_bar(backend)))
    return (
        compare(names[0], host, bandwidths, bars[0], context.earlier.get(names[0], {}), detail, _relative(backend)),
        compare(names[1], host, jitters, bars[1], context.earlier.get(names[1], {}), _detail(sweep)),
    )


def _could_not(host: str, seen: Observations) -> bool:
    return host in seen.nodes and "collective" in seen.nodes[host].errors


def _why_none(host: str, seen: Observations) -> str:
    if _could_not(host, seen):
        return seen.nodes[host].errors["collective"]
    return "the ranks of this node left no result; see the job's log"


def _pairs(host: str, seen: Observations, context: Context) -> list[PairResult]:
    bandwidths, jitters = _bandwidths(seen.collectives, 2), _jitters(seen.collectives, 2)
    found = []
    for pair in dict.fromkeys(it.hosts for it in seen.collectives if len(it.hosts) == 2 and host in it.hosts):
        parts = [it for it in seen.collectives if it.hosts == pair]
        errors = [f"{it.host}: {it.error}" for it in parts if it.error]
        name = (pair[0], pair[1])
        if errors or pair not in bandwidths:
            reason = errors[0] if errors else "no result"
            found.append(PairResult(name, (TestResult("allreduce-pair", FAIL, reason=reason),)))
            continue
        slowest = max((it.largest for it in parts if it.largest), key=lambda sweep: sweep.spread.p50_s)
        tests = (
            _pair_test("allreduce-pair", parts[0], bandwidths, _pair_bar(pair, context), context, slowest),
            _pair_test("allreduce-pair-jitter", parts[0], jitters, _jitter_bar(parts[0].backend), context, slowest),
        )
        found.append(PairResult(name, tests))
    return found


def _pair_bar(pair: Sequence[str], context: Context) -> Bar | None:
    rates = [sum(context.rails_gbps.get(host, ())) for host in pair]
    inside = [
        allreduce_bar(context.gpu_name(host), context.gpu_count(host)) for host in pair if host in context.documents
    ]
    return pair_bar(min(rates), inside[0] if inside else None)


def _pair_test(
    name: str,
    part: Collective,
    values: Mapping[tuple[str, ...], float],
    bar: Bar | None,
    context: Context,
    sweep: Sweep,
) -> TestResult:
    by_name = {" ".join(hosts): value for hosts, value in values.items()}
    relative = _relative(part.backend) if name == "allreduce-pair" else None
    own = context.bars.get(name, bar)
    result = compare(name, " ".join(part.hosts), by_name, own, {}, _detail(sweep), relative)
    if result.verdict == NOT_HERE:
        reason = "no other pair to compare it with"
        return TestResult(name, NOT_HERE, result.value, reason=reason, detail=result.detail)
    return result


def _of_pairs(name: str, host: str, pairs: Sequence[PairResult], seen: Observations, context: Context) -> TestResult:
    """Return what a host's pairs say of the host."""
    tests = [(pair, test) for pair in pairs for test in pair.tests if test.name == name]
    if not tests:
        return _no_pair(name, host, seen, context, bool(pairs))
    failed = [(pair, test) for pair, test in tests if test.verdict == FAIL]
    judged = [test for _, test in tests if test.verdict != NOT_HERE]
    values = [test.value for _, test in tests if test.value is not None]
    value, bar = (median(values) if values else None), next((test.bar for test in judged), None)
    if not judged:
        return TestResult(name, NOT_HERE, value, reason=tests[0][1].reason)
    if 2 * len(failed) > len(judged):
        peers = ", ".join(sorted({other for pair, _ in failed for other in pair.hosts if other != host}))
        reason = f"with {peers}: {failed[0][1].reason}"
        return TestResult(name, FAIL, value, bar, judged[0].source, reason)
    note = f"{len(failed)} of {len(judged)} pairs failed, the others are good" if failed else ""
    return TestResult(name, PASS, value, bar, judged[0].source, note)


def _no_pair(name: str, host: str, seen: Observations, context: Context, failed: bool) -> TestResult:
    if failed:
        return TestResult(name, NOT_HERE, reason="the all-reduce in pairs failed")
    if context.alone:
        return TestResult(name, NOT_HERE, reason=ONE_NODE)
    if _could_not(host, seen):
        return TestResult(name, NOT_HERE, reason=_why_none(host, seen))
    return TestResult(name, PENDING, reason=NO_NEIGHBOUR)


def _writes(host: str, seen: Observations, context: Context) -> TestResult:
    name = "rdma-write"
    rates = context.rails_gbps.get(host, ())
    if not rates:
        return TestResult(name, NOT_HERE, reason="no RDMA rail on this node")
    errors = seen.nodes[host].errors if host in seen.nodes else {}
    if "rails" in errors:
        return TestResult(name, NOT_HERE, reason=errors["rails"])
    runs = [run for run in seen.rails if host in (run.host, run.peer)]
    if not runs:
        return TestResult(
            name, NOT_HERE if context.alone else PENDING, reason=ONE_NODE if context.alone else NO_NEIGHBOUR
        )
    return _judge_writes(name, runs, rates, context)


def _judge_writes(name: str, runs: Sequence[RailRun], rates: Sequence[float], context: Context) -> TestResult:
    faults, worst, bar = [], None, context.bars.get(name) or write_bar(min(rates))
    for rail, rate in enumerate(rates):
        wanted = context.bars.get(name) or write_bar(rate)
        values, reasons = [], []
        for run in (run for run in runs if run.rail == rail):
            try:
                values.append(write_bandwidth_gbps(run.run.text))
            except ParseError as error:
                reasons.append(f"{run.host} to {run.peer}: {error}")
        best = max(values, default=None)  # the other end of a slow run may be the one at fault
        if best is None:
            faults.append(f"rail {rail}: {reasons[0] if reasons else 'not measured'}")
        elif wanted is not None and not wanted.holds(best):
            faults.append(f"rail {rail} reaches {best:g} Gb/s, not {wanted.way} {wanted.value:g}")
        worst = best if worst is None or (best is not None and best < worst) else worst
    source = bar.source if bar else ""
    without = sorted({run.host for run in runs if run.host_memory})
    notes = [f"from host memory: ib_write_bw of {', '.join(without)} has no CUDA, so GPU memory is not measured"]
    said = "; ".join([*faults, *(notes if without else [])])
    return TestResult(name, FAIL if faults else PASS, worst, bar.value if bar else None, source, said)
