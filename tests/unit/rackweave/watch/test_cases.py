"""Scores over the labelled cases: given ones, and own variants composed before the matcher was run on them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
from rackweave.watch.verdict import Verdict, diagnose

FIXTURES = Path(__file__).parents[3] / "fixtures" / "watch"
FILES = ("log-signatures.jsonl", "composed.jsonl")


def _cases(name: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in (FIXTURES / name).read_text(encoding="utf-8").splitlines()]


ALL = [case for name in FILES for case in _cases(name)]


def _verdict(case: dict[str, str], log: str | None = None) -> Verdict:
    return _diagnosed(log if log is not None else case["log"], case.get("now"))


@cache
def _diagnosed(log: str, now: str | None) -> Verdict:
    """Several claims are made of one verdict."""
    return diagnose(log, now)


def _culprits(text: str) -> set[str]:
    return set(text.split(","))


@pytest.mark.parametrize("name", FILES)
def test_class_family_culprit_and_phase_reach_the_required_shares(name: str) -> None:
    cases = _cases(name)
    verdicts = [_verdict(case) for case in cases]
    pairs = list(zip(cases, verdicts))
    exact = sum(v.diagnosis_class == c["diagnosis_class"] for c, v in pairs) / len(pairs)
    family = sum(v.family == c["diagnosis_class"].split(".")[0] for c, v in pairs) / len(pairs)
    culprit = sum(_culprits(v.culprit) == _culprits(c["culprit"]) for c, v in pairs) / len(pairs)
    assert exact >= 0.95
    assert family >= 0.98
    assert culprit >= 0.95
    assert [c["id"] for c, v in pairs if c.get("phase") and v.phase != c["phase"]] == []


@pytest.mark.parametrize("case", [c for c in ALL if not c["alarm"]], ids=lambda case: case["id"])
def test_no_healthy_case_raises_an_alarm(case: dict[str, str]) -> None:
    verdict = _verdict(case)
    assert not verdict.alarm, verdict.evidence


@pytest.mark.parametrize("case", [c for c in ALL if "severity" in c], ids=lambda case: case["id"])
def test_severity_follows_the_label_within_one_degree(case: dict[str, str]) -> None:
    degrees = ["info", "warn", "error", "fatal"]
    assert abs(degrees.index(_verdict(case).severity) - degrees.index(case["severity"])) <= 1


def _with_crlf(log: str) -> str:
    return log.replace("\n", "\r\n")


def _coloured(log: str) -> str:
    return "\n".join(f"\x1b[31m{line}\x1b[0m" for line in log.split("\n"))


def _amid_noise(log: str) -> str:
    noise = "loading shard 3 of 128\n" * 20
    return noise + log + "\n" + noise


@pytest.mark.parametrize("change", [_with_crlf, _coloured, _amid_noise], ids=lambda change: change.__name__)
def test_form_does_not_change_the_class(change) -> None:  # type: ignore[no-untyped-def]
    different = [c["id"] for c in ALL if _verdict(c, change(c["log"])).diagnosis_class != _verdict(c).diagnosis_class]
    assert different == []
