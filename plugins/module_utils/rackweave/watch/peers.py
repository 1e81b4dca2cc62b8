"""Reports that name ranks in blocks: NCCL RAS (text and JSON), flight-recorder analysers, straggler reports."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from .evidence import MAX_TEXT, Finding
from .prefix import Line
from .ras_json import LITERALS as RAS_JSON_LITERALS
from .ras_json import RasReport
from .ras_text import LITERALS as RAS_TEXT_LITERALS
from .ras_text import RasText

_MISSING = re.compile(r"The missing ranks?: (?P<ranks>\d+(?:[,-] ?\d+)*)")
_TABLE_HEAD = re.compile(r"missing\w*\}? Ranks", re.IGNORECASE)
_TABLE_ROW = re.compile(r"^\s*\S+\s*\|.*\|\s*(?P<ranks>\d+(?:[, ]+\d+)*)\s*\|?\s*$")
_RTT = re.compile(r"MnRtt/Rnk: (?P<min>[\d.]+)ms/(?P<minrank>\d+) \| MxRtt/Rnk: (?P<max>[\d.]+)ms/(?P<rank>\d+)")
_ETPT = re.compile(r"MnEtpt/Rnk: (?P<min>[\d.]+)TF/(?P<rank>\d+) \| MxEtpt/Rnk: (?P<max>[\d.]+)TF/")
_SCORES_HEAD = re.compile(
    r"(?i)(?:relative|individual|GPU|section)\b.{0,40}\b(?:perf(?:ormance)?|relative)?\b.{0,20}scores?|"
    r"straggler report|GPU relative perf"
)
_SCORE = re.compile(r"['\"]?(?:rank ?)?(?P<rank>\d+)['\"]?\s*[:=]\s*(?P<score>[01]?\.\d+|1\.0*|0\.0*)\b")
_SCORE_LINE = re.compile(
    r"\bRank[ =:]+(?P<rank>\d+)\b(?:.{0,20}?Node[ =:]+(?P<node>[\w.-]+))?.{0,80}?\b[Ss]core[ "
    r"=:]+(?P<score>[01]?\.\d+)"
)

_REPORT = re.compile(
    r"MISMATCH|INCOMPLETE|DEAD|TIMEOUT|^\s*#\d+-\d+ \(|managed by process|managing GPU|launched up to operation|"
    r"not launched any operations|ha(?:ve|s) status|process information not found|Communicator ranks have|Job summary|"
    r"missing rank|Missing Ranks|Rtt/Rnk|[Ss]core|\{|traggler"
)

LITERALS = (
    *RAS_TEXT_LITERALS,
    "missing rank",
    "issing Ranks",
    "|",
    "MnRtt",
    "scores",
    "score",
    "{",
    "Score",
    "traggler report",
    "Errors",
    "Warnings",
    *RAS_JSON_LITERALS,
)

# Relative score below which the resiliency extension's documentation calls a rank a straggler.
SCORE_LIMIT = 0.75
# Slowest over fastest round trip above which a rank counts as a straggler.
RTT_LIMIT = 1.25


@dataclass
class PeerReports:
    """Follow such blocks; one state per source."""

    ras: RasText = field(default_factory=RasText)
    reports: dict[int, RasReport] = field(default_factory=dict)
    report_lines: dict[int, Line] = field(default_factory=dict)
    table: dict[int, int] = field(default_factory=dict)
    scores: dict[int, int] = field(default_factory=dict)
    missing: dict[int, Line] = field(default_factory=dict)
    missing_rows: Counter[int] = field(default_factory=Counter)
    slow: dict[int, Line] = field(default_factory=dict)
    slow_hosts: set[str] = field(default_factory=set)

    def feed(self, line: Line) -> bool:
        """Take one line of a report; True if lines like it can belong to one."""
        if '"' in line.text and self._ras_json(line):
            return True
        self._missing_ranks(line)
        self.ras.feed(line)
        self._missing_table(line)
        self._stragglers(line)
        return _REPORT.search(line.text) is not None or _TABLE_ROW.match(line.text) is not None

    def _ras_json(self, line: Line) -> bool:
        """Take a line of the JSON report; before one begins only its first line is of use."""
        report = self.reports.get(line.source)
        if report is None:
            if '"communicators"' not in line.text or len(self.reports) >= 4096:
                return False
            report = self.reports[line.source] = RasReport()
            self.report_lines[line.source] = line
        return report.feed(line.text)

    def _missing_ranks(self, line: Line) -> None:
        """Ranks that a report names as missing in one line below its heading."""
        missing = _MISSING.search(line.text)
        if missing and self.ras.is_incomplete(line.source):
            for number in re.findall(r"\d+", missing["ranks"])[:256]:
                self.ras.dead_ranks.setdefault(int(number), line)

    def _missing_table(self, line: Line) -> None:
        if _TABLE_HEAD.search(line.text) and "|" in line.text:
            self.table[line.source] = line.position
            return
        start = self.table.get(line.source)
        if start is None or line.position - start > 64:
            return
        row = _TABLE_ROW.match(line.text)
        if row:
            for number in re.findall(r"\d+", row["ranks"])[:256]:
                self.missing.setdefault(int(number), line)
                self.missing_rows[int(number)] += 1

    def _stragglers(self, line: Line) -> None:
        text = line.text
        rtt = _RTT.search(text)
        if rtt:
            if float(rtt["max"]) > RTT_LIMIT * max(float(rtt["min"]), 1e-9):
                self.slow.setdefault(int(rtt["rank"]), line)
            return
        if _SCORES_HEAD.search(text):
            self.scores[line.source] = line.position
        single = _SCORE_LINE.search(text)
        if single and float(single["score"]) < SCORE_LIMIT:
            self.slow.setdefault(int(single["rank"]), line)
            if single["node"]:
                self.slow_hosts.add(single["node"])
        start = self.scores.get(line.source)
        if start is None or line.position - start > 8 or "{" not in text:
            return
        for match in _SCORE.finditer(text[:65536]):
            if float(match["score"]) < SCORE_LIMIT:
                self.slow.setdefault(int(match["rank"]), line)

    def findings(self) -> Iterator[Finding]:
        """Named ranks, strongest statement first."""
        if self.missing:
            # A rank that is missing in several groups explains those missing in one of them.
            most = max(self.missing_rows.values())
            ranks = frozenset(rank for rank, rows in self.missing_rows.items() if rows == most)
            yield _finding("hang.desync", next(iter(self.missing.values())), 40, ranks)
        yield from self.ras.findings()
        for source, report in self.reports.items():
            yield from _of_report(report, self.report_lines[source])
        if self.slow:
            yield _finding(
                "perf.straggler", next(iter(self.slow.values())), 83, frozenset(self.slow), frozenset(self.slow_hosts)
            )


def _of_report(report: RasReport, line: Line) -> Iterator[Finding]:
    """A dead rank explains those that wait for it; a rank that answers without the communicator has left it."""
    report.close()
    if report.dead:
        yield _finding("hang.process_dead", line, 38, report.of_largest(report.dead), frozenset(report.dead_hosts))
    elif report.lagging or report.absent:
        ranks = report.of_largest(report.absent) or report.of_largest(report.lagging)
        hosts = frozenset() if report.absent else frozenset(report.lagging_hosts)
        yield _finding("hang.desync", line, 39, ranks, hosts, severity="error")


def _finding(
    diagnosis: str,
    line: Line,
    depth: int,
    ranks: frozenset[int] = frozenset(),
    hosts: frozenset[str] = frozenset(),
    severity: str = "",
) -> Finding:
    return Finding(
        diagnosis,
        line.full.strip()[:MAX_TEXT],
        ranks=ranks,
        hosts=hosts,
        depth=depth,
        time=line.time,
        position=line.position,
        source=line.source,
        severity=severity,
    )
