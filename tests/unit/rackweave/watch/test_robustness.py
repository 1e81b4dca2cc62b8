"""Whatever is fed, there is an answer: torn, interleaved, binary, endless; memory does not grow with the input."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rackweave.errors import ParseError
from rackweave.watch.classes import CLASSES
from rackweave.watch.flight import analyse, read_dump
from rackweave.watch.prefix import take_apart
from rackweave.watch.progress import Watchdog
from rackweave.watch.scanner import Source
from rackweave.watch.text import MAX_LINE_BYTES, clean, split_lines
from rackweave.watch.transport import gate
from rackweave.watch.verdict import diagnose

FIXTURES = Path(__file__).parents[3] / "fixtures" / "watch"
CASES = (FIXTURES / "log-signatures.jsonl").read_text(encoding="utf-8").splitlines()
LOGS = [json.loads(line)["log"] for line in CASES]
LINES = [line for log in LOGS for line in log.split("\n")]

BITS = ["\x1b[31m", "\r", "\x00", "[rank", "{", "|", "NVRM: Xid ("]
pieces = st.one_of(st.sampled_from(LINES), st.text(max_size=80), st.sampled_from(BITS))


@given(st.binary(max_size=4096))
@settings(max_examples=150)
def test_any_bytes_give_an_answer(data: bytes) -> None:
    assert diagnose(data).diagnosis_class in CLASSES


@given(st.lists(pieces, max_size=30), st.sampled_from(["\n", "\r\n", "\r", ""]))
@settings(max_examples=200)
def test_any_mixture_of_known_lines_gives_an_answer(parts: list[str], end: str) -> None:
    verdict = diagnose(end.join(parts), now="2026-08-02T07:41:00")
    assert verdict.diagnosis_class in CLASSES
    json.dumps(verdict.as_dict())


@given(st.sampled_from(LOGS), st.data())
@settings(max_examples=200)
def test_a_log_cut_anywhere_gives_an_answer(log: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(log)))
    stop = data.draw(st.integers(start, len(log)))
    assert diagnose(log[start:stop]).diagnosis_class in CLASSES


@given(st.text(max_size=300))
@settings(max_examples=200)
def test_taking_a_line_apart_loses_nothing_but_its_front(text: str) -> None:
    line = take_apart(text)
    assert line.full.endswith(line.text)


@given(st.binary(max_size=2000), st.integers(1, 50))
@settings(max_examples=100)
def test_lines_do_not_depend_on_how_the_bytes_were_cut(data: bytes, size: int) -> None:
    data = data.replace(b"\r", b"")
    chunks = [data[at : at + size] for at in range(0, len(data), size)]
    assert list(split_lines(chunks)) == list(split_lines([data]))


@given(st.binary(max_size=2000))
@settings(max_examples=150)
def test_any_dump_is_read_or_refused(data: bytes) -> None:
    for head in (b"", b"\x80\x02", b"{"):
        try:
            analyse({0: read_dump(head + data), 1: {"entries": []}})
        except ParseError as error:
            assert str(error)  # noqa: PT017


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
KEYS = "time kind rank step loss grad_norm phase micro_batch step_time_s rank_seconds host exit reason"
keys = st.sampled_from(KEYS.split())
records = st.dictionaries(keys, json_values | st.sampled_from(["step", "phase", "end", "save"]), max_size=8)


@given(st.lists(records, max_size=10))
@settings(max_examples=200)
def test_any_records_are_taken_by_watchdog_and_diagnosis(items: list[dict[str, object]]) -> None:
    dog = Watchdog()
    for item in items:
        dog.feed(item)
    dog.check(1e9)
    text = "".join(json.dumps(item) + "\n" for item in items)
    sources = [Source("events.jsonl", text, kind="events")]
    sources += [Source("result/0.json", json.dumps(item), None, 0, "result") for item in items]
    assert diagnose(sources).diagnosis_class in CLASSES


@given(st.lists(pieces, max_size=20))
@settings(max_examples=100)
def test_the_gate_never_passes_on_noise(parts: list[str]) -> None:
    report = gate("\n".join(parts), expected_ranks=range(64))
    assert not report.passed


def _endless(megabytes: int, piece: bytes) -> Iterator[bytes]:
    for _ in range(megabytes):
        yield piece * ((1 << 20) // len(piece))


PIECES = {"letters": b"x", "words": b"Error ", "binary": b"\x00\xff", "brackets": b"{[(", "mixed": b"ab c1 "}


@pytest.mark.parametrize("piece", PIECES.values(), ids=PIECES)
def test_an_endless_line_needs_bounded_memory(piece: bytes) -> None:
    tracemalloc.start()
    diagnose(_endless(16, piece))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 64 << 20


def test_a_fault_at_the_cut_of_an_endless_line_is_still_found() -> None:
    fault = b"NVRM: Xid (PCI:0000:91:00): 79, pid=1, GPU has fallen off the bus."
    for offset in range(MAX_LINE_BYTES - 100, MAX_LINE_BYTES + 10, 7):
        assert diagnose(b"." * offset + b" " + fault).diagnosis_class == "gpu.fallen_off_bus"


def test_millions_of_different_faults_keep_memory_bounded() -> None:
    def storm() -> Iterator[bytes]:
        for number in range(60_000):
            front = b"host%d:1:2 [0] transport/net_ib.cc:1 NCCL WARN NET/IB : Got completion from peer " % number
            peer = b"10.%d.%d.%d<1>" % (number >> 16 & 255, number >> 8 & 255, number & 255)
            yield front + peer + b" with error 12, opcode 0\n"

    tracemalloc.start()
    verdict = diagnose(storm())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert verdict.diagnosis_class == "net.retry_exceeded"
    assert peak < 96 << 20


def test_colours_and_control_characters_disappear() -> None:
    assert clean(b"\x1b[1;31mRuntime\x1b[0mError\x00: x\x07") == "RuntimeError: x"
