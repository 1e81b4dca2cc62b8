"""What a swap changed, in words: parts, what follows for the job's environment and Slurm, and what was lost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..fabric.environment import render_environment
from ..fabric.rails import RailPlan
from ..fabric.request import EnvironmentRequest
from ..hardware.difference import MEMORY_TOLERANCE, Change, compare_documents, consequences
from ..hardware.node import Nic, NodeDocument
from ..slurm.config import SlurmSite, slurm_files
from ..slurm.munge import SlurmError

# Variables of the environment that name hardware; others (traffic class, timeouts) do not follow from a swap.
NAMING_VARIABLES = ("NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_IB_GID_INDEX", "NCCL_TOPO_FILE")


@dataclass(frozen=True)
class SwapReport:
    """One node before and after.

    Attributes:
        baseline: what was compared with: ``accepted``, ``before the rebuild``, or ``none``.
        changes: as :func:`compare_documents` finds them.
        effects: what follows, with the old and the new value.
        losses: what the node has less of than before; such a node does not return without consent.
    """

    host: str
    baseline: str
    changes: tuple[Change, ...] = ()
    effects: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()

    @property
    def replan(self) -> bool:
        """Whether the rail map or the number of GPUs changed."""
        return any(change.changes_rails for change in self.changes)

    @property
    def lines(self) -> tuple[str, ...]:
        """The report for people."""
        if self.baseline == "none":
            return (f"{self.host}: nothing known from before, so there is nothing to compare with",)
        head = f"{self.host}: {len(self.changes)} difference(s) from the hardware {self.baseline}"
        body = [f"  {change.message}" for change in self.changes]
        body += [f"  lost: {loss}" for loss in self.losses]
        return (head, *body, *(f"  -> {effect}" for effect in self.effects))

    def as_dict(self) -> dict[str, object]:
        """Return the report as JSON holds it."""
        return {
            "host": self.host,
            "baseline": self.baseline,
            "changes": [change.as_dict() for change in self.changes],
            "effects": list(self.effects),
            "losses": list(self.losses),
            "replan": self.replan,
            "lines": list(self.lines),
        }


def swap_report(
    observed: NodeDocument, before: NodeDocument | None, baseline: str, request: EnvironmentRequest
) -> SwapReport:
    """Compare a rebuilt node with what it was.

    Args:
        before: the accepted document, or the last one observed before the rebuild; None if there is neither.
        baseline: how `before` is called in the report.
        request: for which the environments before and after are rendered.
    """
    if before is None:
        return SwapReport(observed.host, "none")
    changes = compare_documents(before, observed)
    effects = [*_environment_effects(before, observed, request), *_gres_effects(before, observed)]
    rest = [it for it in consequences(changes) if not it.startswith(("The gres line", "A part is missing"))]
    return SwapReport(observed.host, baseline, changes, (*effects, *rest), losses(before, observed))


def losses(before: NodeDocument, after: NodeDocument) -> tuple[str, ...]:
    """Return what a node has less of than before, as sentences; an unknown value is no loss."""
    found = []
    for what, was, now in _counts(before, after):
        if was is not None and now is not None and now < was:
            found.append(f"{what}: {_number(was)} before, {_number(now)} now")
    total, left = before.memory_total_bytes, after.memory_total_bytes
    if total and left and left < total * (1 - MEMORY_TOLERANCE):
        found.append(f"memory: {total / 2**30:.1f} GiB before, {left / 2**30:.1f} GiB now")
    return tuple(found)


def loss_words(report: SwapReport) -> str:
    """Return one sentence for a drain's reason: the losses, and which parts are missing."""
    missing = [change.message for change in report.changes if change.kind in ("gpu-missing", "nic-missing")]
    return "; ".join([*report.losses, *missing])


Count = tuple[str, "float | None", "float | None"]


def _counts(before: NodeDocument, after: NodeDocument) -> Iterable[Count]:
    yield "GPUs", len(before.gpus), len(after.gpus)
    yield "RDMA devices", len(before.nics), len(after.nics)
    yield "NVSwitches", len(before.nvswitches), len(after.nvswitches)
    yield "logical processors", before.cpu.logical, after.cpu.logical
    gpus = {gpu.index: gpu for gpu in before.gpus}
    for gpu in after.gpus:
        was = gpus.get(gpu.index)
        if was is not None:
            yield f"memory of GPU {gpu.index} (bytes)", was.memory_bytes, gpu.memory_bytes
            yield f"NVLinks of GPU {gpu.index}", was.nvlink_links, gpu.nvlink_links
    nics = {nic.bdf or nic.device: nic for nic in before.nics}
    for nic in after.nics:
        known = nics.get(nic.bdf or nic.device)
        if known is not None:
            yield f"rate of {nic.device} (Gb/s)", _rate(known), _rate(nic)


def _rate(nic: Nic) -> float | None:
    rates = [port.rate_gbps for port in nic.ports if port.rate_gbps is not None]
    return sum(rates) if rates else None


def _environment_effects(before: NodeDocument, after: NodeDocument, request: EnvironmentRequest) -> list[str]:
    was, now = render_environment(before, request), render_environment(after, request)
    effects = [
        f"{name}: {_value(was.variables, name)} -> {_value(now.variables, name)}"
        for name in NAMING_VARIABLES
        if was.variables.get(name) != now.variables.get(name)
    ]
    old, new = _rail_words(was.rails), _rail_words(now.rails)
    if old != new:
        gone, come = [rail for rail in old if rail not in new], [rail for rail in new if rail not in old]
        effects.append(f"rail map: {', '.join(gone) or 'nothing'} -> {', '.join(come) or 'nothing'}")
    return effects


def _rail_words(plan: RailPlan) -> list[str]:
    """Return which RDMA device serves which GPUs, such as ``rail 3: mlx5_3 for GPU 3``."""
    return [
        f"rail {rail.index}: {'+'.join(member.device for member in rail.members)} for GPU "
        + "/".join(str(gpu) for gpu in rail.gpus)
        for rail in plan.rails
    ]


def _gres_effects(before: NodeDocument, after: NodeDocument) -> list[str]:
    was, now = _gres(before), _gres(after)
    return [] if was == now else [f"gres: {was} -> {now}"]


def _gres(document: NodeDocument) -> str:
    """Return the lines of gres.conf that this document alone makes, without the host's name."""
    site = SlurmSite("compared", "compared", (document.host,))
    try:
        text = slurm_files(site, [document])["gres.conf"]
    except SlurmError as error:
        return f"none ({error})"
    rows = [line.split(" ", 1)[1] for line in text.splitlines() if line.startswith("NodeName=")]
    return "; ".join(rows) or "no GPU"


def _value(variables: Mapping[str, str], name: str) -> str:
    return variables.get(name, "not set")


def _number(value: float) -> str:
    return f"{value:g}" if value < 1e6 else f"{value:.0f}"


@dataclass(frozen=True)
class Acceptance:
    """Whether the acceptance run lets the node return, in words, and whether a test with another node is missing."""

    passed: bool
    words: str
    pair_pending: bool


def judge_acceptance(report: Mapping[str, object], host: str) -> Acceptance:
    """Judge ``rackweave.acceptance/1`` for one host; a host that was not tested is not accepted."""
    hosts = report.get("hosts")
    entry = hosts.get(host) if isinstance(hosts, Mapping) else None
    if not isinstance(entry, Mapping):
        return Acceptance(False, f"the acceptance run says nothing of {host}", True)
    pairs = [pair for pair in _rows(report.get("pairs")) if host in _names(pair)]
    tests = [*_rows(entry.get("tests")), *(test for pair in pairs for test in _rows(pair.get("tests")) or [pair])]
    failed = [test for test in tests if test.get("verdict") == "fail"]
    pending = not any(pair.get("verdict") in ("pass", "fail") for pair in pairs)
    if failed:
        return Acceptance(False, "acceptance: " + "; ".join(_test_words(test) for test in failed), pending)
    if entry.get("verdict") != "pass":
        waiting = [str(test.get("reason") or test.get("name")) for test in tests if test.get("verdict") == "pending"]
        words = f"acceptance of {host} is {entry.get('verdict')}" + (f": {'; '.join(waiting)}" if waiting else "")
        return Acceptance(False, words, pending)
    return Acceptance(True, "acceptance passed" + (", pair test pending" if pending else ""), pending)


def _rows(value: object) -> Sequence[Mapping[str, object]]:
    return [row for row in value if isinstance(row, Mapping)] if isinstance(value, (list, tuple)) else []


def _names(pair: Mapping[str, object]) -> Sequence[object]:
    """Return the hosts that a pair test names, under whichever key."""
    hosts = pair.get("hosts") or pair.get("nodes") or []
    return hosts if isinstance(hosts, (list, tuple)) else str(hosts).replace(",", " ").split()


def _test_words(test: Mapping[str, object]) -> str:
    value, unit, bar = test.get("value"), test.get("unit") or "", test.get("bar")
    figure = f" {value} {unit}".rstrip() if value is not None else ""
    wanted = f" (bar {bar} {unit})".replace(" )", ")") if bar is not None else ""
    reason = f": {test['reason']}" if test.get("reason") else ""
    return f"{test.get('name')}{figure}{wanted}{reason}"
