"""Whole jobs over NCCL: a checkpoint moves between layouts, a dead rank and a stopped rank leave evidence."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.attempts import LLAMA, events, losses, make_attempt, sizes

pytestmark = pytest.mark.gpu
MODEL: dict[str, Any] = {
    **LLAMA,
    "name": "small-llama",
    "num_layers": 4,
    "hidden_size": 1024,
    "ffn_hidden_size": 2816,
    "num_attention_heads": 8,
    "num_query_groups": 4,
    "head_dim": 128,
    "sequence_length": 1024,
}
# Of the NCCL of this build: dumps of the last collectives when a time-out strikes, and the RAS service.
FLIGHT = {"TORCH_NCCL_DUMP_ON_TIMEOUT": "1", "TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"}
RAS_PORT = 28028


def attempt_of(where: Path, corpus: Path, chosen: dict[str, Any], **changes: Any) -> Path:
    given = {"dtype": "bfloat16", "backend": "nccl", "engine": "flat", "optimizer": {"learning_rate": 3e-4}, **changes}
    return make_attempt(where, corpus, MODEL, chosen, host=socket.gethostname(), **given)


def test_losses_go_on_when_a_checkpoint_moves_from_tensor_to_pipeline_parallelism(
    gpus: int, corpus: Path, tmp_path: Path, start_job: Callable[..., Any]
) -> None:
    saving = {"checkpoint": {"directory": str(tmp_path / "checkpoints"), "interval": 2, "mode": "async_thread"}}
    first = attempt_of(tmp_path / "first", corpus, sizes(tp=2, zero_stage=1), steps=5, **saving)
    info = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,GRAPH,NET,ENV", "NCCL_DEBUG_FILE": f"{first}/nccl.%p.log"}
    assert start_job(first, 2, "healthy-tensor", **info).wait(300) == 0
    second = attempt_of(tmp_path / "second", corpus, sizes(pp=2), steps=10, **saving)
    info["NCCL_DEBUG_FILE"] = f"{second}/nccl.%p.log"
    assert start_job(second, 2, "healthy-pipeline", **info).wait(300) == 0
    other = {"checkpoint": {"directory": str(tmp_path / "other"), "interval": 0}}
    whole = attempt_of(tmp_path / "whole", corpus, sizes(dp=2), steps=10, **other)
    info["NCCL_DEBUG_FILE"] = f"{whole}/nccl.%p.log"
    assert start_job(whole, 2, "healthy-data", **info).wait(300) == 0
    assert losses(first) + losses(second) == pytest.approx(losses(whole), abs=0.02)


def test_a_killed_rank_ends_the_job_and_the_survivor_says_why(
    gpus: int, corpus: Path, tmp_path: Path, start_job: Callable[..., Any]
) -> None:
    attempt = attempt_of(tmp_path / "attempt", corpus, sizes(dp=2), steps=100_000, timeouts={"collective_s": 20})
    job = start_job(attempt, 2, "killed-rank", **_recorder(attempt))
    job.wait_until(lambda: _steps(attempt) >= 5, 240)
    os.kill(_pid(attempt, 1), signal.SIGKILL)
    assert job.wait(90) != 0
    assert (attempt / "result" / "0.json").exists()


def test_a_stopped_rank_times_out_and_leaves_a_flight_recording(
    gpus: int, corpus: Path, tmp_path: Path, start_job: Callable[..., Any]
) -> None:
    attempt = attempt_of(tmp_path / "attempt", corpus, sizes(dp=2), steps=100_000, timeouts={"collective_s": 15})
    job = start_job(attempt, 2, "stopped-rank", **_recorder(attempt))
    job.wait_until(lambda: _steps(attempt) >= 5, 240)
    stopped = _pid(attempt, 1)
    os.kill(stopped, signal.SIGSTOP)
    try:
        job.wait_until(lambda: _steps_stand_still(attempt), 60)
        (attempt / "ras.txt").write_text(_ask_ras(), encoding="utf-8")
        job.wait_until(lambda: (attempt / "result" / "0.json").exists() or _recordings(attempt) != [], 90)
    finally:
        os.kill(stopped, signal.SIGCONT)
    assert job.wait(90) != 0
    assert _recordings(attempt)


def _recorder(attempt: Path) -> dict[str, str]:
    (attempt / "flight").mkdir()
    dump = str(attempt / "flight" / "nccl_trace_rank_")
    files = {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": dump, "TORCH_FR_DUMP_TEMP_FILE": dump}
    return {
        **FLIGHT,
        **files,
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_FILE": f"{attempt}/nccl.%p.log",
        "NCCL_RAS_ENABLE": "1",
    }


def _recordings(attempt: Path) -> list[Path]:
    return [path for path in (attempt / "flight").iterdir() if path.stat().st_size]


def _steps(attempt: Path) -> int:
    return len(events(attempt, "step")) if (attempt / "events.jsonl").exists() else 0


def _steps_stand_still(attempt: Path) -> bool:
    import time

    before = _steps(attempt)
    time.sleep(3.0)
    return _steps(attempt) == before


def _pid(attempt: Path, rank: int) -> int:
    return int(json.loads((attempt / "phase" / f"{rank}.json").read_text())["pid"])


def _ask_ras() -> str:
    """Return what NCCL's RAS service says of all ranks, or why it did not answer."""
    try:
        with socket.create_connection(("localhost", RAS_PORT), timeout=5) as connection:
            connection.settimeout(15)
            connection.sendall(b"CLIENT PROTOCOL 2\nTIMEOUT 5\nVERBOSE STATUS\n")
            answer = b""
            while part := connection.recv(65536):
                answer += part
            return answer.decode(errors="replace")
    except OSError as error:
        return f"no answer: {error}"
