"""The verdict before a launch: all findings, those waived by name and date, and whether the launch is blocked."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..errors import FabricError
from ..hardware.node import NodeDocument
from ..hardware.rows import Row
from .findings import BLOCK, SEVERITIES, Finding, ordered
from .fleet import Node, check_node, compare_fleet
from .request import EnvironmentRequest, NodeEnvironment
from .roce_consistency import check_roce
from .within import check_evenness


@dataclass(frozen=True)
class Waiver:
    """Somebody's decision to launch in spite of a finding; `host` None means any host."""

    kind: str
    host: str | None
    by: str
    until: datetime.date
    reason: str


@dataclass(frozen=True)
class GateVerdict:
    """What the gate found: `waived` pairs a finding with its waiver; `expired` are waivers past their date."""

    findings: tuple[Finding, ...]
    waived: tuple[tuple[Finding, Waiver], ...] = ()
    expired: tuple[Waiver, ...] = ()
    hosts: tuple[str, ...] = field(default=())

    @property
    def blocked(self) -> bool:
        return any(finding.severity == BLOCK for finding in self.findings)

    @property
    def blocked_hosts(self) -> tuple[str, ...]:
        return tuple(sorted({finding.host for finding in self.findings if finding.severity == BLOCK}))

    def as_dict(self) -> dict[str, object]:
        return {
            "blocked": self.blocked,
            "hosts": list(self.hosts),
            "blocked_hosts": list(self.blocked_hosts),
            "findings": [finding.as_dict() for finding in self.findings],
            "waived": [
                {**finding.as_dict(), "by": waiver.by, "until": waiver.until.isoformat(), "why": waiver.reason}
                for finding, waiver in self.waived
            ],
            "expired_waivers": [_waiver_text(waiver) for waiver in self.expired],
        }


def read_waivers(values: object) -> tuple[Waiver, ...]:
    """Read waivers from the inventory: ``[{kind, host, by, until, reason}]``.

    Raises:
        FabricError: for an unknown kind, a missing name, or a date that is none.
    """
    row = Row({"waivers": values}, "fabric_waivers", FabricError)
    return row.rows("waivers", _waiver)


def _waiver(row: Row) -> Waiver:
    kind = row.required("kind", row.text("kind"))
    if kind not in SEVERITIES:
        raise FabricError(f"{row.where}: kind={kind!r} is none of {', '.join(sorted(SEVERITIES))}")
    given = row.get("until")  # YAML turns an unquoted date into one
    until = given.isoformat() if isinstance(given, datetime.date) else row.required("until", row.text("until"))
    try:
        date = datetime.date.fromisoformat(until)
    except ValueError as error:
        raise FabricError(f"{row.where}: until={until!r} is no date like 2027-01-31") from error
    by, reason = row.required("by", row.text("by")), row.required("reason", row.text("reason"))
    if not by.strip() or not reason.strip():
        raise FabricError(f"{row.where}: by and reason must say who waives {kind} and why")
    return Waiver(kind, row.text("host"), by, date, reason)


def judge_fleet(
    documents: Sequence[NodeDocument],
    environments: dict[str, NodeEnvironment],
    request: EnvironmentRequest,
    waivers: Sequence[Waiver] = (),
    today: datetime.date | None = None,
    more: Sequence[Finding] = (),
) -> GateVerdict:
    """Return the verdict on the hosts of a job.

    Args:
        today: the day the waivers are judged on; needed where there are waivers.
        more: findings of checks that see more than documents (inside the job, by origin).

    Raises:
        FabricError: if two documents are of one host, or waivers come without a day.
    """
    hosts = [document.host for document in documents]
    if len(set(hosts)) != len(hosts):
        twice = sorted({host for host in hosts if hosts.count(host) > 1})
        raise FabricError(f"more than one document of {', '.join(twice)}")
    nodes = [Node(document, environments[document.host].rails) for document in documents]
    findings = [*more, *(compare_fleet(nodes) if len(nodes) > 1 else [])]
    told = {(finding.kind, finding.host) for finding in findings}
    for node in nodes:
        # What the comparison of nodes names already would only be said twice.
        uneven = check_evenness(node.document, node.rails)
        findings.extend(finding for finding in uneven if (finding.kind, finding.host) not in told)
        environment = environments[node.host]
        findings.extend(check_node(node))
        findings.extend(environment.findings)
        text = environment.variables.get("NCCL_IB_TC")
        traffic_class = int(text) if text is not None and text.isdigit() else None
        findings.extend(check_roce(node.document, node.rails, request.fabric, traffic_class))
    return apply_waivers(ordered(findings), waivers, today, tuple(hosts))


def apply_waivers(
    findings: tuple[Finding, ...], waivers: Sequence[Waiver], today: datetime.date | None, hosts: tuple[str, ...]
) -> GateVerdict:
    """Return the verdict on findings, those left out that somebody answers for on this day.

    Raises:
        FabricError: if waivers come without a day.
    """
    if not waivers:
        return GateVerdict(findings, hosts=hosts)
    if today is None:
        raise FabricError("waivers have dates; the day on which they are judged is missing")
    valid = [waiver for waiver in waivers if waiver.until >= today]
    waived = {finding: waiver for finding in findings for waiver in valid if _covers(waiver, finding)}
    open_findings = tuple(finding for finding in findings if finding not in waived)
    expired = tuple(waiver for waiver in waivers if waiver.until < today)
    return GateVerdict(open_findings, tuple(waived.items()), expired, hosts)


def _covers(waiver: Waiver, finding: Finding) -> bool:
    return waiver.kind == finding.kind and waiver.host in (None, finding.host)


def _waiver_text(waiver: Waiver) -> str:
    return f"{waiver.kind} on {waiver.host or 'any host'}, by {waiver.by}, expired {waiver.until.isoformat()}"
