"""Attempt directories: logs of real torchrun + gloo runs over two launchers, and the trainer's own files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rackweave.cli import main
from rackweave.watch.attempt import role_of
from rackweave.watch.scanner import Source
from rackweave.watch.verdict import diagnose

FIXTURES = Path(__file__).parents[3] / "fixtures" / "watch"


@pytest.fixture
def answer(capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, object]]:
    def run(*words: str) -> dict[str, object]:
        assert main(["diagnose", *words, "--json"]) == 0
        loaded = json.loads(capsys.readouterr().out)
        assert isinstance(loaded, dict)
        return loaded

    return run


@pytest.mark.parametrize(
    ("fault", "diagnosis", "culprit"),
    [
        ("kill", "launch.sigkill_unconfirmed", "rank:3,host:gpu02"),
        ("stop", "hang.collective_timeout", "rank:2,host:gpu02"),
        ("raise", "app.exception", "rank:1,host:gpu01"),
        ("nccl-killed", "launch.sigkill_unconfirmed", "rank:1,host:gpu01"),
        # The stopped rank leaves nothing; NCCL's watchdog and its recording on the other one tell.
        ("nccl-stopped", "hang.collective_timeout", "rank:1,host:gpu01"),
        # NCCL's RAS cannot tell a stopped process from a dead one, and here also lists ranks that never were.
        ("nccl-stopped-ras", "hang.process_dead", "rank:1,host:gpu01"),
        ("nccl-healthy", "healthy", "none"),
    ],
)
def test_the_injected_rank_of_a_real_run_is_named_not_the_victims(
    answer: Callable[..., dict[str, object]], fault: str, diagnosis: str, culprit: str
) -> None:
    verdict = answer(str(FIXTURES / "attempts" / fault))
    assert (verdict["diagnosis_class"], verdict["culprit"]) == (diagnosis, culprit)


@pytest.mark.parametrize(
    ("case", "culprit"), [("missing", "rank:2"), ("dead", "rank:1"), ("desync", "rank:3"), ("healthy", "none")]
)
def test_dumps_in_a_directory_are_part_of_the_evidence(
    answer: Callable[..., dict[str, object]], case: str, culprit: str
) -> None:
    assert answer(str(FIXTURES / "flight" / case))["culprit"] == culprit


def test_the_rank_without_a_result_file_is_the_culprit_of_a_hang() -> None:
    log = (
        "[rank0]: RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 30000ms for recv operation"
    )
    sources = [Source("logs/h1/0/stderr.log", log, "h1", 0)]
    sources += [
        Source(f"placement/{rank}.json", json.dumps({"rank": rank, "host": f"h{rank // 2}"}), None, rank, "placement")
        for rank in range(4)
    ]
    for rank in (0, 1, 2):
        result = json.dumps({"rank": rank, "exit": "retry", "reason": "time-out"})
        sources.append(Source(f"result/{rank}.json", result, None, rank, "result"))
    verdict = diagnose(sources)
    assert (verdict.diagnosis_class, verdict.culprit) == ("hang.collective_timeout", "rank:3,host:h1")


def test_the_reason_in_a_result_file_is_read_by_the_tables() -> None:
    reason = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
    record = {"rank": 1, "host": "h0", "exit": "stop", "reason": reason}
    phase = {"time": "2026-01-01T00:00:00", "kind": "phase", "rank": 1, "phase": "backward"}
    sources = [
        Source("events.jsonl", json.dumps(phase) + "\n", kind="events"),
        Source("result/1.json", json.dumps(record), None, 1, "result"),
    ]
    verdict = diagnose(sources)
    assert (verdict.diagnosis_class, verdict.culprit, verdict.phase) == ("mem.cuda_oom", "rank:1,host:h0", "backward")


def test_an_address_becomes_a_host_where_it_is_known() -> None:
    log = "[rank1]: RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.9]:48845. This is"
    assert diagnose(log, addresses={"10.0.0.9": "gpu09"}).culprit == "host:gpu09"


def test_events_of_a_running_job_are_healthy_until_they_stop() -> None:
    steps = [
        {"time": f"2026-01-01T10:00:{second:02d}", "kind": "step", "rank": 0, "step": second, "loss": 2.0}
        for second in range(50)
    ]
    events = "".join(json.dumps(step) + "\n" for step in steps)
    source = Source("events.jsonl", events, kind="events")
    assert diagnose([source], now="2026-01-01T10:01:30").diagnosis_class == "healthy"
    assert diagnose([source], now="2026-01-01T10:05:00").diagnosis_class == "hang.no_progress"


@pytest.mark.parametrize(
    ("path", "kind", "host", "rank"),
    [
        ("logs/gpu01/3/stderr.log", "log", "gpu01", 3),
        ("logs/gpu01/launch.log", "log", "gpu01", None),
        ("events.jsonl", "events", None, None),
        ("result/7.json", "result", None, 7),
        ("plan.json", "skip", None, None),
        ("nccl/gpu01.conf", "skip", None, None),
        ("evidence/gpu02/dmesg.txt", "log", "gpu02", None),
        ("evidence/gpu02/fr_trace_rank_5", "flight", "gpu02", 5),
    ],
)
def test_files_of_an_attempt_are_told_apart_by_their_path(
    path: str, kind: str, host: str | None, rank: int | None
) -> None:
    role = role_of(path)
    assert (role.kind, role.host, role.rank) == (kind, host, rank)


def test_a_missing_file_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", "no/such/file.log"]) == 2
    assert "no such file" in capsys.readouterr().err


def test_a_bad_clock_is_one_sentence(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("x\n", encoding="utf-8")
    assert main(["diagnose", str(log), "--now", "yesterday"]) == 2
    assert "ISO 8601" in capsys.readouterr().err
