"""From findings to one verdict: the nearest cause, whom it names, and what to do first."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from . import rerun, versions
from .classes import CLASSES
from .evidence import Finding, dated, to_finding, with_year
from .flight import analyse
from .phases import OOM_ADVICE
from .prefix import YEARLESS, parse_time
from .rules import is_address, is_virtual, joined, named_peers
from .scanner import Scan, Source
from .signatures import SIGNATURES

# Kernel and fabric events this much older than the job's first mark belong to something before it.
BEFORE_START = timedelta(seconds=60)
# Without a mark of the start, an event may lie this far before the first dated line (a collective time-out later).
BEFORE_FIRST_LINE = timedelta(hours=2)
# Lines of one exception and of what it says of its causes.
REPORT_LINES = 30
# Silence is judged against this floor, in seconds, and against the printed interval.
SILENCE_FLOOR_S = 120.0
# A declared phase (start-up, evaluation, save) may be silent this long, in seconds.
PHASE_LIMIT_S = 1800.0

# How a process dies of a cause: the launcher's table then says which one.
_DEATHS = {"mem.host_oom": "launch.sigkill_unconfirmed", "nccl.segfault": "launch.child_crash"}
# Completions of verbs that report what the remote end refused: invalid request, access and operation errors.
_REMOTE_ERROR = re.compile(
    r"Got completion .*\b(?:status|error)[ =](?:9|10|11)\b|remote access (?:error )?on mlx5", re.I
)
# The service of the switches, which has nothing to do on a node that has none.
_SWITCH_SERVICE = re.compile(r"fabric-?manager", re.IGNORECASE)
_DEFERRED = {"slurm.controller_unreachable/any", "storage.unresponsive/fact", versions.PAIRS, *rerun.DEFERRED}


@dataclass(frozen=True)
class Verdict:
    """The answer of a diagnosis; ``as_dict`` is what ``rackweave diagnose --json`` prints."""

    diagnosis_class: str
    culprit: str = "none"
    phase: str | None = None
    severity: str = "info"
    alarm: bool = False
    role: str = "none"
    first_action: str = ""
    evidence: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    time: datetime | None = None
    collectors: tuple[tuple[str, str], ...] = ()

    @property
    def family(self) -> str:
        """The part of the class before the dot."""
        return self.diagnosis_class.split(".", 1)[0]

    def as_dict(self) -> dict[str, object]:
        """A plain dictionary, ready for JSON."""
        return {
            "diagnosis_class": self.diagnosis_class,
            "family": self.family,
            "culprit": self.culprit,
            "phase": self.phase,
            "alarm": self.alarm,
            "severity": self.severity,
            "role": self.role,
            "first_action": self.first_action,
            "evidence": list(self.evidence),
            "others": list(self.others),
            "time": self.time.isoformat() if self.time and self.time.year != YEARLESS else None,
            "collectors": dict(self.collectors),
        }


def diagnose(
    evidence: str | bytes | Source | Iterable[str | bytes] | Iterable[Source],
    now: datetime | str | None = None,
    addresses: Mapping[str, str] | None = None,
) -> Verdict:
    """Name the cause of what the evidence shows.

    Args:
        evidence: a log text, lines or byte chunks, or sources with host, rank and kind.
        now: the clock against which silence is judged; None judges the text alone.
        addresses: host name of each known address, to name hosts instead of addresses.
    """
    scan = Scan()
    for source in _sources(evidence):
        scan.feed(source)
    clock = parse_time(now) if isinstance(now, str) else now
    return conclude(scan, clock, addresses)


def _sources(evidence: str | bytes | Source | Iterable[object]) -> Iterable[Source]:
    if isinstance(evidence, Source):
        yield evidence
        return
    if isinstance(evidence, (str, bytes)):
        yield Source("log", evidence)
        return
    items = iter(evidence)
    first = next(items, None)
    if isinstance(first, Source):
        yield first
        yield from items  # type: ignore[misc]
    elif first is not None:
        yield Source("log", _chain(first, items))


def _chain(first: object, rest: Iterable[object]) -> Iterable[str | bytes]:
    yield first  # type: ignore[misc]
    yield from rest  # type: ignore[misc]


def conclude(scan: Scan, now: datetime | None = None, addresses: Mapping[str, str] | None = None) -> Verdict:
    """Judge a finished scan."""
    scan.finish()
    findings = with_year(_collect(scan), scan.year or (now.year if now else None))
    findings = [finding for finding in findings if _counts(finding, scan)]
    findings = _drop_after_the_end(findings, scan)
    if not any(CLASSES[finding.diagnosis].alarm for finding in findings):
        silence = _silence(scan, now)
        if silence is not None:
            findings.append(silence)
    if not findings:
        states = tuple(sorted(scan.attempt.collectors.items()))
        return Verdict("healthy", first_action=CLASSES["healthy"].first_action, collectors=states)
    ordered = sorted(findings, key=_order)
    root = _nearest(ordered)
    return _verdict(root, [root, *(finding for finding in ordered if finding is not root)], scan, addresses or {})


def _nearest(ordered: list[Finding]) -> Finding:
    """The first finding, or a deeper one of the same report: an error number explains "write failed" before it."""
    first = ordered[0]
    report = [
        finding
        for finding in ordered
        if finding.source == first.source
        and 0 <= finding.position - first.position <= REPORT_LINES
        and finding.ranks == first.ranks
        and finding.printed_by == first.printed_by
        and _tier(finding) == _tier(first)
        and not finding.kernel
    ]
    return min([first, *report], key=lambda finding: finding.depth)


def _collect(scan: Scan) -> list[Finding]:
    found: list[Finding] = []
    for signature in SIGNATURES:
        if signature.diagnosis.startswith("fact:") or signature.name in _DEFERRED:
            continue
        for hit in scan.store.of(signature.name):
            finding = scan.store.with_rank(to_finding(hit))
            if finding.diagnosis == "mem.cuda_oom":
                finding = replace(finding, phase=scan.oom_phase.get(hit.line.position))
            found.append(finding)
    found = [_by_coordinator(finding, scan) for finding in found if not _ignored(finding, scan)]
    found.extend(joined(scan.store, scan.life))
    for scene in (
        scan.transport,
        scan.links,
        scan.rates,
        scan.failures,
        scan.peers,
        scan.series,
        scan.timers,
        scan.attempt,
    ):
        found.extend(scene.findings())
    found.extend(_flight(scan))
    return found


def _by_coordinator(finding: Finding, scan: Scan) -> Finding:
    """Name the ranks whose failures a distributed checkpoint's coordinator gathered, instead of the one that prints."""
    for hit in scan.store.of("fact:gathered_failures"):
        below = finding.position - hit.line.position
        if finding.source != hit.line.source or not 0 <= below <= REPORT_LINES or finding.ranks != {hit.line.rank}:
            continue  # what names nobody, such as a missing file that all share, stays so
        ranks = frozenset(int(number) for number in hit.groups["failed"].split(","))
        return replace(finding, ranks=ranks, hosts=finding.hosts if hit.line.rank in ranks else frozenset())
    return finding


def _ignored(finding: Finding, scan: Scan) -> bool:
    """An exception that Python itself ignores, in a destructor at exit, or a warning that other lines disprove."""
    if finding.diagnosis == "net.gdr_inactive":
        return scan.transport.all_use_gdr()
    if finding.diagnosis == "launch.dns_failure":
        return any(mark.last > finding.position for mark in scan.store.of("fact:communicates"))
    if finding.diagnosis == "gpu.nvswitch_fatal" and _SWITCH_SERVICE.search(finding.text):
        return finding.printed_by in {hit.line.host for hit in scan.store.of("fact:no_switches")}
    if finding.diagnosis != "app.exception":
        return False
    marks = scan.store.of("fact:ignored_exception")
    return any(m.line.source == finding.source and 0 < finding.position - m.last <= 30 for m in marks)


def _flight(scan: Scan) -> Iterator[Finding]:
    """What the flight-recorder dumps of the ranks say together."""
    if len(scan.dumps) < 2:
        return
    world = scan.attempt.world()
    report = analyse(scan.dumps, len(world) if world == set(range(len(world))) and world else None)
    if report.diagnosis_class != "healthy":
        yield Finding(report.diagnosis_class, f"flight recorder: {report.text}", frozenset(report.culprits), depth=39)


def _counts(finding: Finding, scan: Scan) -> bool:
    """Only events inside the job's window count, and only what later steps do not disprove."""
    life, when = scan.life, finding.time
    if finding.kernel and when is not None and when.year != YEARLESS:
        start = _at(life.start, scan)
        first = _at(life.first_app, scan)
        if start is not None and when < start - BEFORE_START:
            return False
        if start is None and first is not None and when < first - BEFORE_FIRST_LINE:
            return False
        end = _at(life.end, scan)
        if end is not None and when > end:
            return False
    if CLASSES[finding.diagnosis].survivable:
        return True
    if scan.series.later_steps(finding.source, finding.position):
        return False
    return not (when is not None and when.year != YEARLESS and scan.series.steps_after(when))


def _at(moment: datetime | None, scan: Scan) -> datetime | None:
    if moment is None:
        return None
    return dated(moment, scan.year) if scan.year else (None if moment.year == YEARLESS else moment)


def _drop_after_the_end(findings: list[Finding], scan: Scan) -> list[Finding]:
    """What comes after a good end, or after Slurm ended the job, is teardown."""
    ends = scan.life.end_position
    kills = [f for f in findings if f.diagnosis in ("slurm.time_limit", "slurm.preempted", "launch.grace_exceeded")]
    cancelled = {hit.line.source: hit.line.position for hit in scan.store.of("fact:cancelled")}
    kept = []
    for finding in findings:
        after_end = finding.source in ends and finding.position > ends[finding.source] and finding.depth >= 30
        by_slurm = any(
            kill is not finding and kill.source == finding.source and kill.position < finding.position for kill in kills
        )
        by_hand = finding.source in cancelled and cancelled[finding.source] < finding.position
        teardown = finding.diagnosis.startswith(
            ("launch.child", "launch.sigkill", "net.peer", "net.flush", "app.", "launch.rdzv")
        )
        echo = finding.role == "cascade" and finding.source in ends and finding.position < ends[finding.source]
        if after_end or echo or (by_slurm and finding.depth >= 33) or (by_hand and teardown and finding.depth >= 45):
            continue
        kept.append(finding)
    return kept


def _silence(scan: Scan, now: datetime | None) -> Finding | None:
    """No step for longer than the print interval explains, outside a declared phase."""
    series, life = scan.series, scan.life
    if now is None or not series.stamps or life.end_position:
        return None
    last = series.stamps[-1]
    if last.year == YEARLESS:
        last = dated(last, scan.year or now.year)
    interval = series.interval() or (series.step_seconds() or 60.0) * 10
    limit = max(SILENCE_FLOOR_S, 2 * interval + 30.0)
    last_sample = series.samples[-1].line if series.samples else None
    position = last_sample.position if last_sample else 0
    quiet = [line for line in (life.saving, life.quiet) if line is not None and line.position > position]
    done = life.saved is not None and all(life.saved.position > line.position for line in quiet)
    if quiet and not done:
        limit = max(limit, PHASE_LIMIT_S)
    silent = (now - last).total_seconds()
    if silent <= limit:
        return None
    text = last_sample.full.strip()[:400] if last_sample else ""
    return Finding(
        "hang.no_progress", f"no step for {silent:.0f} s (limit {limit:.0f} s) after: {text}", depth=65, time=last
    )


def _order(finding: Finding) -> tuple[int, int, datetime, int]:
    """Causes before consequences, then the earliest; alarms before notes."""
    rank = finding.depth
    group = 0 if CLASSES[finding.diagnosis].alarm else 1
    tier = _tier(finding)
    if tier == 4:
        return (group, 100 + rank, finding.time or datetime.max, finding.position)
    return (group, tier, finding.time or datetime.max, finding.position * 1000 + rank)


def _tier(finding: Finding) -> int:
    return next(at for at, limit in enumerate((10, 17, 33, 37, 1000)) if finding.depth < limit)


def _verdict(root: Finding, ordered: list[Finding], scan: Scan, addresses: Mapping[str, str]) -> Verdict:
    same = [finding for finding in ordered if finding.diagnosis == root.diagnosis]
    ranks, hosts = _blame(root, same, ordered, scan)
    known = {**scan.transport.addresses, **scan.attempt.addresses, **addresses}
    hosts = {known.get(host, host) for host in hosts if not host.startswith("localhost")}
    ranks = ranks or _absent(root, ordered, scan)
    homes = {scan.store.host_of_rank.get(rank, "") for rank in ranks}
    if homes and not any(not home or is_address(home) for home in homes):
        # An address that nothing gives a name is where these ranks ran, as NCCL's RAS calls it.
        hosts = {host for host in hosts if not is_address(host)}
    hosts |= homes - {""}
    entry = CLASSES[root.diagnosis]
    severity = root.severity or entry.severity
    phase = next((finding.phase for finding in same if finding.phase), None)
    action = root.action or entry.first_action
    if root.diagnosis == "mem.cuda_oom" and phase in OOM_ADVICE:
        action = OOM_ADVICE[phase]
    culprits = [f"rank:{rank}" for rank in sorted(ranks)] + [f"host:{host}" for host in sorted(hosts)]
    shown = [root, *(finding for finding in ordered if finding is not root)]
    others = sorted({finding.diagnosis for finding in ordered} - {root.diagnosis})
    return Verdict(
        diagnosis_class=root.diagnosis,
        culprit=",".join(culprits) or "none",
        phase=phase,
        severity=severity,
        alarm=severity != "info",
        role=root.role if entry.alarm else "none",
        first_action=action,
        evidence=tuple(dict.fromkeys(_cite(finding, scan) for finding in shown[:12])),
        others=tuple(others),
        time=root.time,
        collectors=tuple(sorted(scan.attempt.collectors.items())),
    )


def _absent(root: Finding, ordered: list[Finding], scan: Scan) -> set[int]:
    """Where every reporter is a victim, the culprit is who did not report."""
    if root.diagnosis not in ("hang.collective_timeout", "hang.no_progress", "net.peer_closed"):
        return set()
    raised = {hit.line.rank for hit in scan.store.of("fact:gloo_timeout") if hit.line.rank is not None}
    killed = {rank for f in ordered if f.diagnosis == "launch.sigkill_unconfirmed" for rank in f.ranks}
    if killed - raised:
        return killed - raised
    ended = {entry.rank for entry in scan.failures.entries if entry.code in (-15, 143)}
    silent = scan.attempt.silent_ranks() - ended - raised
    world = scan.attempt.world()
    for candidates in (silent, scan.attempt.behind(), world - raised if raised else set()):
        if candidates and len(candidates) * 2 <= max(len(world), 2):
            return {rank for rank in candidates if rank is not None}
    return set()


def _cite(finding: Finding, scan: Scan) -> str:
    name = scan.name_of(finding.source, finding.position)
    return f"{name}:{finding.position}: {finding.text}"


def _blame(root: Finding, same: list[Finding], ordered: list[Finding], scan: Scan) -> tuple[set[int], set[str]]:
    """Whom the findings of the winning class name together."""
    ranks: set[int] = set()
    hosts: set[str] = set()
    if root.diagnosis in ("net.retry_exceeded", "net.peer_closed", "net.bootstrap_unreachable"):
        peers = {peer for peer in named_peers(same) if not is_virtual(peer)}
        if root.diagnosis == "net.retry_exceeded" and not peers:
            # UCX names the peer in a line of its own; where several are named, the printer is the common end.
            told = {hit.groups["peer"] for hit in scan.store.of("fact:ucx_peer")}
            peers = told if len(told) == 1 else set()
        hosts |= peers
        if not peers and not any(finding.peers for finding in same):
            hosts |= root.hosts
        ranks |= root.ranks
        return ranks, hosts
    if root.diagnosis == "net.local_protection":
        # A remote error is the answer to what the other end did: named is who reports the violation as its own.
        same = [finding for finding in same if not _REMOTE_ERROR.search(finding.text)] or same
    if root.diagnosis == "app.exception":
        same = [finding for finding in same if _gist(finding.text) == _gist(root.text)]
    if root.diagnosis in (
        "launch.child_failed",
        "launch.child_crash",
        "launch.sigkill_unconfirmed",
        "hang.collective_timeout",
    ):
        named = [finding for finding in same if finding.ranks]
        same = named[:1] or same
    for finding in same:
        ranks |= finding.ranks
        hosts |= finding.hosts
    if root.diagnosis in ("net.qp_connect_failed", "net.gid_config", "net.mr_reg_failed"):
        for hit in scan.store.of("fact:proxy_connect"):
            ranks.add(int(hit.groups["rank"]))
    if (root.diagnosis.startswith("container.") or root.diagnosis == "slurm.step_launch_failed") and not hosts:
        tasks = [finding for finding in ordered if finding.diagnosis == "launch.child_failed" and finding.hosts]
        hosts |= {host for finding in tasks for host in finding.hosts}
    for finding in ordered:
        if finding.diagnosis == _DEATHS.get(root.diagnosis) and (
            not hosts or finding.hosts & hosts or not finding.hosts
        ):
            ranks |= finding.ranks
            hosts |= finding.hosts
    return ranks, hosts


def _gist(text: str) -> str:
    tail = text.split("]:", 1)[-1]
    return "".join(character for character in tail if not character.isdigit())[-120:]


def as_json(verdict: Verdict) -> str:
    """The verdict as one JSON object."""
    return json.dumps(verdict.as_dict(), indent=2, sort_keys=False)
