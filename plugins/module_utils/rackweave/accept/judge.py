"""The verdict on what was measured: each test passes, fails, is not possible here, or is still pending."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..hardware.node import NodeDocument
from .bars import STEAL
from .context import Context, compare
from .figures import NodeFigures, Observations
from .judge_hardware import judge_dcgm, judge_links, judge_nvlinks
from .judge_traffic import HostTraffic, judge_traffic
from .report import FAIL, NOT_HERE, PASS, AcceptanceReport, HostResult, TestResult

MEGA = 1e6
CONTAINERS = ("container", "docker", "lxc", "oci", "podman", "systemd-nspawn")


def judge(hosts: Sequence[str], seen: Observations, context: Context) -> AcceptanceReport:
    """Return the verdict on `hosts`; other hosts that were measured are only their peers."""
    peers = _figures(seen)
    traffic = {host: judge_traffic(host, seen, context) for host in hosts if host not in seen.pending}
    results = []
    for host in hosts:
        if host in seen.pending:
            results.append(HostResult(host, pending=seen.pending[host]))
        else:
            results.append(HostResult(host, _judge_host(host, seen, context, peers, traffic[host])))
    pairs = {frozenset(pair.hosts): pair for part in traffic.values() for pair in part.pairs}
    return AcceptanceReport(tuple(results), tuple(pairs.values()), _totals(seen))


def _judge_host(
    host: str,
    seen: Observations,
    context: Context,
    peers: Mapping[str, Mapping[str, float]],
    traffic: HostTraffic,
) -> tuple[TestResult, ...]:
    node = seen.nodes.get(host)
    if node is None:
        lines = [line for line in seen.log.splitlines() if host in line or "error" in line.lower()]
        why = lines[-1].strip()[:200] if lines else "the job step left no result of this node"
        return (
            TestResult("memlock", FAIL, reason=f"nothing could be measured inside a job step: {why}"),
            *traffic.tests,
        )
    warm = {bdf: link for it in seen.collectives if it.host == host for bdf, link in it.links.items()}
    return (
        _memlock(node, context.documents[host]),
        _bare_metal(node, context),
        _against_peers("cpu-work", host, peers, context, node.errors.get("cpu")),
        _steal(host, seen, context),
        _against_peers("round-trip", host, peers, context, node.errors.get("round_trip"), _round_trip_detail(node)),
        _storage("storage-write", host, node, peers, context),
        _storage("storage-read", host, node, peers, context),
        judge_links(node, warm),
        judge_nvlinks(node, context.documents[host]),
        judge_dcgm(node, context.dcgm_level),
        *traffic.tests,
    )


def _figures(seen: Observations) -> dict[str, dict[str, float]]:
    """Return test to host to value, in the unit of the test, of what is compared between nodes."""
    nodes = seen.nodes.values()
    return {
        "cpu-work": {it.host: it.cpu_work_bytes_per_second / MEGA for it in nodes if it.cpu_work_bytes_per_second},
        "round-trip": {it.host: it.round_trip.p50_s * 1e6 for it in nodes if it.round_trip},
        "storage-write": {it.host: it.write.bytes_per_second / MEGA for it in nodes if it.write},
        "storage-read": {it.host: it.read.bytes_per_second / MEGA for it in nodes if it.read},
    }


def _against_peers(
    name: str,
    host: str,
    peers: Mapping[str, Mapping[str, float]],
    context: Context,
    error: str | None,
    detail: Mapping[str, float | int | str | bool] | None = None,
) -> TestResult:
    if host not in peers[name]:
        return TestResult(name, NOT_HERE, reason=error or "it was not measured")
    return compare(name, host, peers[name], context.bars.get(name), context.earlier.get(name, {}), detail)


def _round_trip_detail(node: NodeFigures) -> dict[str, float | int | str | bool]:
    spread = node.round_trip
    return {} if spread is None else {"p99_us": spread.p99_s * 1e6, "max_us": spread.max_s * 1e6}


def _storage(
    name: str, host: str, node: NodeFigures, peers: Mapping[str, Mapping[str, float]], context: Context
) -> TestResult:
    if host not in peers[name]:
        # Unlike other tools, the shared file system must be there: a job could not start without it.
        return TestResult(name, FAIL, reason=node.errors.get("storage", "it was not measured"))
    figure = node.write if name == "storage-write" else node.read
    cached = figure is not None and not figure.direct
    result = compare(name, host, peers[name], context.bars.get(name), context.earlier.get(name, {}))
    return TestResult(
        name, result.verdict, result.value, result.bar, result.source, result.reason,
        {"page_cache": True} if cached else {},
    )  # fmt: skip


def _memlock(node: NodeFigures, document: NodeDocument) -> TestResult:
    soft, hard = node.memlock_soft_bytes, node.memlock_hard_bytes
    if soft is None:
        return TestResult("memlock", FAIL, reason=node.errors.get("limits", "the limit inside the step is unknown"))
    if soft == -1:
        return TestResult("memlock", PASS, -1.0, -1.0, "RDMA registers memory by locking it", "unlimited")
    wanted = f"{soft} bytes inside the job step (at most {hard}), not unlimited"
    value = soft / 2**20
    if document.identity.virtualization in CONTAINERS:
        reason = f"{wanted}: a container cannot exceed its host's limit"
        return TestResult("memlock", NOT_HERE, value, -1.0, reason=reason)
    return TestResult("memlock", FAIL, value, -1.0, "RDMA registers memory by locking it", wanted)


def _bare_metal(node: NodeFigures, context: Context) -> TestResult:
    kind = context.documents[node.host].identity.virtualization or node.virtualization
    if kind in CONTAINERS:
        return TestResult(
            "bare-metal", NOT_HERE, reason=f"the node is a container ({kind}), which hides what it runs on"
        )
    if kind in (None, "none") and not node.hypervisor_flag:
        return TestResult("bare-metal", PASS, reason="bare metal: no hypervisor flag, no virtualisation detected")
    what = f"virtual machine ({kind if kind not in (None, 'none') else 'the processor reports a hypervisor'})"
    if context.virtual_ok:
        return TestResult("bare-metal", PASS, reason=f"{what}, allowed by acceptance_virtual_ok")
    return TestResult("bare-metal", FAIL, reason=f"{what}; set acceptance_virtual_ok where that is meant")


def _steal(host: str, seen: Observations, context: Context) -> TestResult:
    figures = [it.steal for it in seen.collectives if it.host == host] + [seen.nodes[host].steal]
    known = [100.0 * steal for steal in figures if steal is not None]
    if not known:
        return TestResult("cpu-steal", NOT_HERE, reason="the kernel does not tell")
    bar = context.bars.get("cpu-steal", STEAL)
    if context.documents[host].identity.virtualization in CONTAINERS:
        return TestResult(
            "cpu-steal", NOT_HERE, max(known), reason="a container shows the steal of its host, not its own"
        )
    holds = bar.holds(max(known))
    reason = "" if holds else f"{max(known):.2f} % of the CPU time went to others, at most {bar.value:g} % is allowed"
    return TestResult("cpu-steal", PASS if holds else FAIL, max(known), bar.value, bar.source, reason)


def _totals(seen: Observations) -> tuple[TestResult, ...]:
    """Return what all nodes moved together to and from the shared file system, from first start to last end."""
    found = []
    for name, direction in (("storage-write", "write"), ("storage-read", "read")):
        parts = [figure for node in seen.nodes.values() if (figure := getattr(node, direction)) is not None]
        if len(parts) < 2:
            continue
        seconds = max(part.end for part in parts) - min(part.start for part in parts)
        rate = sum(part.transferred_bytes for part in parts) / max(seconds, 1e-9) / MEGA
        found.append(TestResult(name, PASS, rate, reason=f"{len(parts)} nodes at once", detail={"seconds": seconds}))
    return tuple(found)
