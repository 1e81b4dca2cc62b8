"""The tables: every entry finds its own example, and every class of the list can be concluded."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from rackweave.watch.classes import CLASSES
from rackweave.watch.prefix import take_apart
from rackweave.watch.signature import Signature, quoted
from rackweave.watch.signatures import SIGNATURES

FIXTURES = Path(__file__).parents[3] / "fixtures" / "watch"


@pytest.mark.parametrize("signature", SIGNATURES, ids=lambda signature: signature.name)
def test_a_signature_finds_its_own_example(signature: Signature) -> None:
    shape = re.sub(r"\d", "", signature.example).lower()
    assert any(literal in shape for literal in signature.needs)
    line = take_apart(signature.example)
    assert signature.search(line.full if signature.whole else line.text) is not None


@pytest.mark.parametrize("signature", SIGNATURES, ids=lambda signature: signature.name)
def test_the_fast_filter_of_a_signature_holds_no_digit(signature: Signature) -> None:
    assert not any(re.search(r"\d", literal) for literal in signature.needs)


def test_names_are_unique_and_classes_are_of_the_list() -> None:
    names = [signature.name for signature in SIGNATURES]
    assert len(names) == len(set(names))
    assert {s.diagnosis for s in SIGNATURES if not s.diagnosis.startswith("fact:")} <= set(CLASSES)


def test_the_list_has_84_classes_and_each_has_three_cases() -> None:
    seen: dict[str, int] = {}
    for name in ("log-signatures.jsonl", "composed.jsonl"):
        for line in (FIXTURES / name).read_text(encoding="utf-8").splitlines():
            diagnosis = json.loads(line)["diagnosis_class"]
            seen[diagnosis] = seen.get(diagnosis, 0) + 1
    assert len(CLASSES) == 84
    assert {name for name in CLASSES if seen.get(name, 0) < 3} == set()


@pytest.mark.parametrize(
    "line",
    [
        "# NVRM: Xid (PCI:0000:91:00): 79, GPU has fallen off the bus.",
        '+ echo "CUDA out of memory. Tried to allocate 2.00 GiB"',
        "grep 'Out of memory: Killed process' /var/log/messages",
        "hint: RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB",
    ],
)
def test_a_quoted_error_is_not_a_report(line: str) -> None:
    at = max(line.find("NVRM"), line.find("CUDA"), line.find("Out of"))
    assert quoted(line, at)


@pytest.mark.parametrize(
    ("line", "host", "rank", "text"),
    [
        ("node03:4940:4960 [0] NCCL INFO x", "node03", None, "NCCL INFO x"),
        (
            "[2026-03-13 22:26:02] gpu-b:1:2 [5] misc/socket.cc:1 NCCL WARN y",
            "gpu-b",
            None,
            "misc/socket.cc:1 NCCL WARN y",
        ),
        ("Aug  2 02:03:11 n7 kernel: [ 12.345678] NVRM: z", "n7", None, "NVRM: z"),
        ("2026-08-02T02:03:11.123456+00:00 n7 kernel: NVRM: z", "n7", None, "NVRM: z"),
        ("12: [rank3]: RuntimeError: q", None, 3, "RuntimeError: q"),
        ("node01: [rank3]: RuntimeError: q", "node01", 3, "RuntimeError: q"),
        ("[1,5]<stderr>:RuntimeError: q", None, 5, "RuntimeError: q"),
        (
            '{"log":"[rank2]: ValueError: v\\n","stream":"stderr","time":"2026-01-01T00:00:00Z"}',
            None,
            2,
            "ValueError: v",
        ),
        (
            "RuntimeError: world_size (60) is not divisible by 16",
            None,
            None,
            "RuntimeError: world_size (60) is not divisible by 16",
        ),
        ("mlx5_0: something", None, None, "mlx5_0: something"),
    ],
)
def test_prefixes_tell_who_printed_a_line(line: str, host: str | None, rank: int | None, text: str) -> None:
    taken = take_apart(line)
    assert (taken.host, taken.rank, taken.text) == (host, rank, text)
