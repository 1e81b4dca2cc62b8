"""The bench compares equals: same samples, same start, same losses as plain PyTorch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.attempts import make_attempt, sizes
from trainer.bench.__main__ import main as bench
from trainer.bench.allreduce import bus_bandwidth
from trainer.bench.case import BenchCase, gpt_like, llama_like
from trainer.bench.peer import PeerGpt, peer_name
from trainer.bench.synthetic import Batches, SyntheticTokens

ROOT = Path(__file__).resolve().parents[3]


def run(command: list[str], **variables: str) -> str:
    paths = os.pathsep.join((str(ROOT), str(ROOT / "plugins" / "module_utils")))
    environment = {**os.environ, "PYTHONPATH": paths, "GLOO_SOCKET_IFNAME": "lo", **variables}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.multiprocess
def test_fifty_losses_follow_those_of_plain_pytorch(tmp_path: Path) -> None:
    script = [sys.executable, "-W", "ignore", str(ROOT / "scripts" / "gpu_single.py"), "--out", str(tmp_path)]
    run([*script, "--run", "tiny:2:trainer,peer-eager:1:none:2:1-49"])
    ours, theirs = (json.loads(line)["measurement"]["losses"] for line in (tmp_path / "rows.jsonl").open())
    assert len(ours) == 50
    assert ours[-1] < ours[0] - 0.3
    assert ours == pytest.approx(theirs, abs=5e-3)


@pytest.mark.multiprocess
def test_the_bench_measures_a_planned_layout_and_all_reduce(tmp_path: Path) -> None:
    chosen = sizes(pp=2, offload="nvme")
    settings = {"engine": "flat", "offload_directory": str(tmp_path), "telemetry": {"peak_flops_per_second": 1e12}}
    attempt = make_attempt(tmp_path / "attempt", tmp_path, None, chosen, **settings)
    launcher = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    bench = [*launcher, "-m", "trainer.bench", "--out", str(tmp_path)]
    shown = run([*bench, "steps", "--attempt", str(attempt), "--untimed", "1", "--timed", "2"])
    assert "pp2" in shown
    assert "offload nvme: " in shown
    assert "of the tokens/s without it, MFU " in shown
    steps = json.loads((tmp_path / "steps.json").read_text())
    assert len(steps["losses"]) == 3
    assert steps["losses"] == pytest.approx(steps["resident"]["losses"], abs=1e-6)
    assert 0 < steps["mfu"] < 1
    assert steps["tokens_per_second"] == pytest.approx(8 * 64 / steps["step_time_s"])
    assert "bus GB/s" in run([*bench, "allreduce", "--calls", "10"])
    swept = json.loads((tmp_path / "allreduce.json").read_text())
    assert all(size["p50_s"] <= size["p99_s"] <= size["max_s"] for size in swept["sizes"])


REFUSED = {
    "--timed 0 must be at least 1": ["--timed", "0"],
    "--untimed -1 must be at least 0": ["--untimed", "-1"],
    "--calls 0 must be at least 1": ["allreduce", "--calls", "0"],
    "File exists": ["--out", "file"],
    "--attempt is missing": ["steps"],
    "the attempt directory nowhere does not exist": ["--attempt", "nowhere"],
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_a_request_that_makes_no_sense_is_said_once_by_rank_0(
    sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    for rank, times in ((0, 1), (1, 0)):
        for name, value in {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}.items():
            monkeypatch.setenv(name, str(value))
        caplog.clear()
        assert bench(REFUSED[sentence]) == 64
        assert sum(sentence in message for message in caplog.messages) == times


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_see_the_samples_that_one_rank_sees(ranks: int) -> None:
    model = gpt_like("tiny", 1, 64, 16, vocab=100, heads=4)
    alone = BenchCase("alone", model, micro_batch_size=2, num_microbatches=8)
    spread = replace(alone, num_microbatches=8 // ranks, data_parallel_size=ranks)
    source, cpu = SyntheticTokens(100, 16), torch.device("cpu")

    def samples(case: BenchCase, dp_rank: int) -> list[Any]:
        batches = Batches(source, case, dp_rank, cpu)
        rows = [row for index in range(case.num_microbatches) for row in batches.micro_batch(3, index)[0]]
        return [tuple(row.tolist()) for row in rows]

    together = [row for dp_rank in range(ranks) for row in samples(spread, dp_rank)]
    assert sorted(together) == sorted(samples(alone, 0))


def test_labels_are_the_next_tokens_and_half_of_them_follow_a_rule() -> None:
    tokens, labels = SyntheticTokens(1000, 64).batch(5, 3)
    assert torch.equal(tokens[:, 1:], labels[:, :-1])
    assert torch.equal(labels[:, ::2], (tokens[:, ::2] * 31 + 7) % 1000)


def test_bus_bandwidth_is_that_of_a_ring() -> None:
    assert bus_bandwidth(8_000, 2.0, 2) == pytest.approx(4_000)
    assert bus_bandwidth(8_000, 2.0, 8) == pytest.approx(7_000)


def test_every_parameter_of_the_trainer_has_its_twin_in_the_peer() -> None:
    model = llama_like("tiny", 2, 64, 128, 4, 2, 16, 100)
    names = [name for name, _ in PeerGpt(model).named_parameters()]
    trainer_names = [
        "embedding.word_embeddings.weight",
        "decoder.layers.1.mlp.linear_fc2.weight",
        "output_layer.weight",
    ]
    assert set(map(peer_name, trainer_names)) <= set(names)
