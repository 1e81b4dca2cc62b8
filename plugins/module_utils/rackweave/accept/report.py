"""The acceptance report (schema ``rackweave.acceptance/1``): verdicts by host and pair, and the table that is shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .bars import UNITS

SCHEMA = "rackweave.acceptance/1"
PASS, FAIL, NOT_HERE, PENDING = "pass", "fail", "not possible here", "pending"
# States rather than speeds: measured again they say the same.
SETTLED = frozenset({"memlock", "bare-metal", "pcie-links", "nvlink-lanes", "dcgm-diagnostic"})


@dataclass(frozen=True)
class TestResult:
    """One test of one host or pair. `value` and `bar` are in `unit`; `detail` holds figures behind the value."""

    name: str
    verdict: str
    value: float | None = None
    bar: float | None = None
    source: str = ""
    reason: str = ""
    detail: Mapping[str, float | int | str | bool] = field(default_factory=dict)

    def as_dict(self) -> dict[str, object]:
        """Return plain values; figures are rounded to what they are worth, so that a report reads well."""
        return {
            "name": self.name,
            "verdict": self.verdict,
            "value": _rounded(self.value),
            "unit": UNITS[self.name],
            "bar": _rounded(self.bar),
            "source": self.source,
            "reason": self.reason,
            "detail": {key: _rounded(value) for key, value in self.detail.items()},
        }


@dataclass(frozen=True)
class HostResult:
    """All tests of one host; `pending` says why it was not tested at all."""

    host: str
    tests: tuple[TestResult, ...] = ()
    pending: str = ""

    @property
    def verdict(self) -> str:
        if self.pending:
            return PENDING
        return FAIL if any(test.verdict == FAIL for test in self.tests) else PASS

    @property
    def doubtful(self) -> bool:
        """Whether a figure failed that a second measurement may show to be good."""
        return any(test.verdict == FAIL and test.name not in SETTLED for test in self.tests)

    @property
    def complete(self) -> bool:
        """Whether nothing is left to test: a pass that need not be repeated."""
        return self.verdict == PASS and not any(test.verdict == PENDING for test in self.tests)


@dataclass(frozen=True)
class PairResult:
    """Tests between two hosts."""

    hosts: tuple[str, str]
    tests: tuple[TestResult, ...]

    @property
    def verdict(self) -> str:
        return FAIL if any(test.verdict == FAIL for test in self.tests) else PASS


@dataclass(frozen=True)
class AcceptanceReport:
    """One acceptance run, or several merged."""

    hosts: tuple[HostResult, ...]
    pairs: tuple[PairResult, ...] = ()
    totals: tuple[TestResult, ...] = ()


def better(first: AcceptanceReport, second: AcceptanceReport) -> AcceptanceReport:
    """Return the verdicts of two measurements of the same hosts: a figure counts as failed only if it failed twice."""
    again = {result.host: result for result in second.hosts}
    hosts = tuple(_better_host(result, again.get(result.host)) for result in first.hosts)
    pairs = {frozenset(pair.hosts): pair for pair in second.pairs}
    kept = tuple(pair if pair.verdict == PASS else pairs.get(frozenset(pair.hosts), pair) for pair in first.pairs)
    return AcceptanceReport(hosts, kept, first.totals)


def _better_host(first: HostResult, second: HostResult | None) -> HostResult:
    if second is None or second.pending:
        return first
    later = {test.name: test for test in second.tests}
    tests = tuple(later.get(test.name, test) if test.verdict == FAIL else test for test in first.tests)
    return HostResult(first.host, tests, first.pending)


def report_document(
    report: AcceptanceReport, time: str, inputs: Mapping[str, str], earlier: Mapping[str, object], keep: Sequence[str]
) -> dict[str, object]:
    """Return the report as JSON values.

    Args:
        report: this run.
        time: ISO 8601, when it was measured; every host carries the time of its own figures.
        inputs: host to digest of what the verdict rests on; a later run with the same digest need not measure again.
        earlier: an earlier report; what it says of hosts in `keep` that this run did not test stays.
        keep: hosts that exist.
    """
    before = earlier.get("hosts")
    hosts: dict[str, object] = {
        str(host): entry
        for host, entry in (before.items() if isinstance(before, Mapping) else ())
        if host in keep and isinstance(entry, Mapping)
    }
    for result in report.hosts:
        if result.pending and _waits_already(hosts.get(result.host), result.pending):
            continue  # nothing new is known, so nothing is written anew
        hosts[result.host] = {
            "verdict": result.verdict,
            "complete": result.complete,
            "time": time,
            "inputs": inputs.get(result.host, ""),
            "reason": result.pending,
            "tests": [test.as_dict() for test in result.tests],
        }
    pairs = _merged_pairs(report, earlier, keep)
    totals = [test.as_dict() for test in report.totals] or earlier.get("totals") or []
    return {
        "schema": SCHEMA,
        "time": time if any(not result.pending for result in report.hosts) else earlier.get("time", time),
        "verdict": overall(hosts),
        "hosts": {host: hosts[host] for host in keep if host in hosts},
        "pairs": pairs,
        "totals": totals,
    }


def _merged_pairs(report: AcceptanceReport, earlier: Mapping[str, object], keep: Sequence[str]) -> list[object]:
    measured = {result.host for result in report.hosts if not result.pending}
    before = earlier.get("pairs")
    kept = [
        pair
        for pair in (before if isinstance(before, list) else [])
        if isinstance(pair, Mapping)
        and set(pair.get("hosts", ())) <= set(keep)
        and not set(pair.get("hosts", ())) & measured
    ]
    found = [
        {"hosts": list(pair.hosts), "verdict": pair.verdict, "tests": [test.as_dict() for test in pair.tests]}
        for pair in report.pairs
    ]
    return [*kept, *found]


def overall(hosts: Mapping[str, object]) -> str:
    """Return the verdict over hosts: one failure fails, one pending leaves it pending."""
    verdicts = {_verdict_of(entry) for entry in hosts.values()}
    return FAIL if FAIL in verdicts else PENDING if PENDING in verdicts or not verdicts else PASS


def _verdict_of(entry: object) -> object:
    return entry.get("verdict") if isinstance(entry, Mapping) else None


def _waits_already(entry: object, reason: str) -> bool:
    return isinstance(entry, Mapping) and entry.get("verdict") == PENDING and entry.get("reason") == reason


def table(document: Mapping[str, object]) -> list[str]:
    """Return a report as lines: every test of every host, pairs, the totals, and one sentence for each failure."""
    hosts = document["hosts"]
    rows = [("where", "test", "value", "bar", "verdict", "")]
    entries: list[tuple[str, Mapping[str, object]]] = []
    for host, entry in hosts.items() if isinstance(hosts, Mapping) else ():
        if entry["verdict"] == PENDING:
            rows.append((host, "", "", "", PENDING, str(entry["reason"])))
        entries += [(host, test) for test in entry["tests"]]
    for pair in _list(document.get("pairs")):
        entries += [(" ".join(map(str, _items(pair["hosts"]))), test) for test in _list(pair["tests"])]
    entries += [("all", test) for test in _list(document.get("totals"))]
    rows += [_row(where, test) for where, test in entries]
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, (*widths, 0))).rstrip() for row in rows]
    failed = [
        f"{where}: {test['name']} failed: {test['reason'] or 'its bar'}"
        for where, test in entries
        if test["verdict"] == FAIL
    ]
    return [*lines, *(["", *failed] if failed else []), "", f"verdict: {document['verdict']}"]


def _list(value: object) -> list[Mapping[str, object]]:
    return value if isinstance(value, list) else []


def _items(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _row(where: str, test: Mapping[str, object]) -> tuple[str, str, str, str, str, str]:
    unit = f" {test['unit']}" if test["unit"] else ""
    value, bar = _figure(test["value"], unit), _figure(test["bar"], "")
    detail = test.get("detail")
    notes = (
        [f"{key} {value:g}" for key, value in detail.items() if isinstance(value, (int, float))]
        if isinstance(detail, Mapping)
        else []
    )
    note = "; ".join(part for part in (", ".join(notes), str(test["reason"] or test["source"])) if part)
    return where, str(test["name"]), value, bar, str(test["verdict"]), note


def _figure(value: object, unit: str) -> str:
    """Return a figure with its unit; -1 is how limits say that there is none."""
    if not isinstance(value, (int, float)):
        return "-"
    return "unlimited" if value == -1 else f"{value:g}{unit}"


def _rounded(value: float | int | str | bool | None) -> float | int | str | bool | None:
    return float(f"{value:.4g}") if isinstance(value, float) else value
