"""What a run leaves behind beside its checkpoints."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest

from tests.support.attempts import MODEL, events, make_attempt, sizes
from tests.support.launch import ForkServer, free_port
from trainer.config import read_job
from trainer.errors import StopError
from trainer.exporters import ProfilerWindow, Prometheus, open_exporters

pytestmark = pytest.mark.multiprocess


def test_every_record_has_the_keys_of_the_contract(launcher: ForkServer, corpus: Path, tmp_path: Path) -> None:
    telemetry = {"peak_flops_per_second": 1e12}
    evaluation = {"interval": 4, "batches": 2}
    attempt = make_attempt(
        tmp_path / "attempt", corpus, MODEL, sizes(zero_stage=1), steps=4, telemetry=telemetry, evaluation=evaluation
    )
    launcher.run(attempt, 1).assert_done()
    last = events(attempt, "step")[-1]
    assert set(last) >= {"step", "loss", "grad_norm", "lr", "tokens_per_second", "tokens_per_second_per_gpu", "mfu"}
    assert set(last) >= {"peak_memory_gib", "step_time_s", "time", "rank", "rank_seconds"}
    assert 0 < last["mfu"] < 1
    assert [event["step"] for event in events(attempt, "evaluation")] == [0, 4]
    assert [event["state"] for event in events(attempt, "checkpoint")] == ["saved", "published", "validated"]
    assert [event["phase"] for event in events(attempt, "phase")][:3] == ["nccl_init", "model_build", "optimizer_init"]
    assert events(attempt, "end")[0]["exit"] == "done"


def test_a_rank_records_its_environment_with_the_origin_of_each_value(
    launcher: ForkServer, corpus: Path, tmp_path: Path
) -> None:
    attempt = make_attempt(tmp_path / "attempt", corpus, MODEL, sizes(zero_stage=1), steps=1)
    (attempt / "nccl").mkdir()
    (attempt / "nccl/node-a.conf").write_text("NCCL_DEBUG=WARN\nNCCL_IB_TC=106\nNCCL_NET=IB\n")
    launcher.run(attempt, 1, NCCL_DEBUG="WARN", NCCL_IB_TC="0", NCCL_ALGO="Ring").assert_done()
    seen = json.loads((attempt / "placement/0.json").read_text())["environment"]
    assert seen["NCCL_DEBUG"] == {"value": "WARN", "origin": "host_file"}
    assert seen["NCCL_IB_TC"] == {"value": "0", "origin": "overridden", "planned": "106"}
    assert seen["NCCL_ALGO"] == {"value": "Ring", "origin": "environment"}
    assert seen["NCCL_NET"] == {"value": None, "origin": "missing", "planned": "IB"}


def test_tensorboard_and_a_profile_are_written_when_asked_for(
    launcher: ForkServer, corpus: Path, tmp_path: Path
) -> None:
    telemetry = {"tensorboard": True, "profile_steps": [2, 3]}
    attempt = make_attempt(tmp_path / "attempt", corpus, MODEL, sizes(zero_stage=1), steps=4, telemetry=telemetry)
    launcher.run(attempt, 1).assert_done()
    assert list((attempt / "tensorboard").glob("events.out.tfevents*"))
    assert json.loads((attempt / "profile/0.json").read_text())["traceEvents"]


@pytest.mark.parametrize(
    ("steps", "done", "traced"),
    [((1,), 0, [1]), ((2, 3), 0, [2, 3]), ((3,), 2, [3]), ((2,), 4, [])],
)
def test_the_profiler_runs_in_the_steps_that_were_asked_for(
    steps: tuple[int, ...], done: int, traced: list[int], tmp_path: Path
) -> None:
    window = ProfilerWindow(steps, tmp_path / "trace.json")
    window.begin(done)
    seen = []
    for step in range(done + 1, 6):
        if window.running:
            seen.append(step)
        window.step({"step": step})
    assert seen == traced


def test_prometheus_shows_the_last_step_while_the_job_runs(launcher: ForkServer, corpus: Path, tmp_path: Path) -> None:
    port = free_port()
    attempt = make_attempt(
        tmp_path / "attempt", corpus, MODEL, sizes(zero_stage=1), steps=5000, telemetry={"prometheus_port": port}
    )
    running = launcher.start(attempt, 1)
    try:
        text = ""
        while 'rackweave_loss{run="test"}' not in text:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                    text = answer.read().decode()
            except OSError:
                continue
        assert 'rackweave_step{run="test"}' in text
    finally:
        (attempt / "save-and-exit").touch()
        assert running.wait().codes == [77]


def addresses_of(port: int) -> set[str]:
    """Return the local addresses, in hexadecimal, of the sockets that listen on a port of this machine."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {row[1].split(":")[0] for row in rows if row[3] == "0A" and int(row[1].split(":")[1], 16) == port}


@pytest.mark.parametrize(
    ("telemetry", "listens"),
    [
        ({}, {"0100007F"}),
        ({"prometheus_address": "127.0.0.1"}, {"0100007F"}),
        ({"prometheus_address": "0.0.0.0"}, {"00000000"}),
    ],
)
def test_the_exporter_listens_on_the_address_it_was_given_and_else_on_the_loopback(
    telemetry: dict[str, str], listens: set[str], tmp_path: Path
) -> None:
    port = free_port()
    settings = {"prometheus_port": port, **telemetry}
    job = read_job(make_attempt(tmp_path / "attempt", Path("/nowhere"), MODEL, sizes(), telemetry=settings))
    (exporter,) = [one for one in open_exporters(job, 0) if isinstance(one, Prometheus)]
    try:
        assert addresses_of(port) == listens
    finally:
        exporter.close()


def test_an_address_of_another_host_is_refused_with_the_way_out() -> None:
    with pytest.raises(StopError, match=r"prometheus_address=192\.0\.2\.1: .*set training_job_prometheus_address"):
        Prometheus(free_port(), "test", "192.0.2.1")


@pytest.mark.parametrize(("dtype", "zero"), [("float16", 1), ("float16", 2), ("bfloat16", 2)])
def test_short_types_train(dtype: str, zero: int, launcher: ForkServer, corpus: Path, tmp_path: Path) -> None:
    attempt = make_attempt(tmp_path / "attempt", corpus, MODEL, sizes(dp=2, zero_stage=zero), steps=12, dtype=dtype)
    launcher.run(attempt, 2).assert_done()
    shown = [event["loss"] for event in events(attempt, "step")]
    assert shown[-1] < shown[0] - 0.3


def test_a_person_at_a_terminal_sees_a_line_that_is_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import sys

    from trainer.exporters import ProgressLine

    job = read_job(make_attempt(tmp_path / "attempt", Path("/nowhere"), MODEL, sizes(), steps=20))
    assert open_exporters(job, 0) == []
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    (line,) = open_exporters(job, 0)
    assert isinstance(line, ProgressLine)
    assert open_exporters(job, 1) == []
    line.step({"step": 5, "loss": 2.5, "tokens_per_second": 1000.0})
    line.step({"step": 6, "loss": None, "tokens_per_second": 1000.0})
    line.evaluation(6, 2.25)
    shown = capsys.readouterr().err
    assert shown.startswith("\r")
    assert "step 5/20  loss 2.5000  1000 tokens/s" in shown
    assert "step 6/20  loss no number" in shown
    assert "step 6  validation loss 2.2500" in shown
