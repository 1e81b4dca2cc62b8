"""When memory runs out, a rank says where, how much it had, and which layout would fit; that one then does."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.attempts import MODEL, losses, make_attempt, sizes
from tests.support.launch import ForkServer

pytestmark = pytest.mark.multiprocess
BIG = {**MODEL, "num_layers": 2, "hidden_size": 256, "ffn_hidden_size": 8192, "head_dim": 64}
CAP = "tests.support.ranks:train_with_memory_cap"
PHASES = [
    "nccl_init",
    "model_build",
    "checkpoint_load",
    "optimizer_init",
    "forward",
    "backward",
    "optimizer_step",
    "save",
    "evaluate",
]


def oom_report(attempt: Path, rank: int) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((attempt / f"oom/{rank}.json").read_text())
    return content


def reason(attempt: Path, rank: int) -> str:
    return str(json.loads((attempt / f"result/{rank}.json").read_text())["reason"])


@pytest.fixture(scope="module")
def saved(launcher: ForkServer, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint directory with one step of the big model."""
    where = tmp_path_factory.mktemp("saved")
    attempt = make_attempt(
        where / "attempt", corpus, BIG, sizes(micro_batch_size=16, global_batch_size=16, zero_stage=1), steps=1
    )
    launcher.run(attempt, 1).assert_done()
    return where / "checkpoints"


@pytest.mark.parametrize("phase", PHASES)
def test_running_out_of_memory_is_reported_with_phase_sizes_and_advice(
    phase: str, launcher: ForkServer, corpus: Path, saved: Path, tmp_path: Path
) -> None:
    directory = saved if phase == "checkpoint_load" else tmp_path / "checkpoints"
    attempt = make_attempt(
        tmp_path / "attempt",
        corpus,
        BIG,
        sizes(micro_batch_size=16, global_batch_size=16, zero_stage=1),
        steps=2 if phase == "checkpoint_load" else 1,
        checkpoint={"directory": str(directory), "mode": "async_thread"},
        evaluation={"interval": 1 if phase == "evaluate" else 0, "batches": 1},
    )
    ended = launcher.call(CAP, attempt, 1, attempt=str(attempt), phase=phase)
    assert ended.codes == [64], ended.logs[0][-2000:]
    assert (attempt / "oom/0.json").exists(), ended.logs[0][-3000:]
    report = oom_report(attempt, 0)
    assert (report["phase"], report["rank"]) == (phase, 0)
    assert 0 < report["allocated_bytes"] <= report["limit_bytes"]
    assert f"out of memory in phase {phase} on rank 0" in reason(attempt, 0)
    assert report["planner"] in reason(attempt, 0)
    assert report["layout"] is not None or "no layout on up to" in report["planner"]
    if phase not in ("nccl_init", "model_build"):
        assert report["largest_tensors"][0]["bytes"] >= 256 * 8192 * 4


@pytest.mark.parametrize("engine", ["deepspeed", "flat"])
def test_the_advised_layout_fits_where_the_first_one_did_not(
    engine: str, launcher: ForkServer, corpus: Path, tmp_path: Path
) -> None:
    model, chosen = {**BIG, "num_layers": 4}, sizes(dp=2, micro_batch_size=8, global_batch_size=16)
    bare = make_attempt(tmp_path / "bare" / "attempt", corpus, model, chosen, engine=engine)
    launcher.call(CAP, bare, 2, attempt=str(bare), phase="model_build")
    limit_gib = oom_report(bare, 0)["program_bytes"] / 2**30 + 0.5
    cap = {"memory_limit_gib": limit_gib, "steps": 2, "checkpoint": {"mode": "async_thread"}, "engine": engine}
    first = make_attempt(tmp_path / "first" / "attempt", corpus, model, chosen, **cap)
    assert 64 in launcher.run(first, 2).codes
    report = next(oom_report(first, rank) for rank in (0, 1) if (first / f"oom/{rank}.json").exists())
    assert report["limit_bytes"] == int(limit_gib * 2**30)
    assert (report["allocated_bytes"] + report["requested_bytes"]) > 0.9 * report["limit_bytes"]
    assert report["layout"]["global_batch_size"] == 16
    advised = report["layout"]
    second = make_attempt(tmp_path / "second" / "attempt", corpus, model, advised, **cap)
    launcher.run(second, advised["world_size"]).assert_done()
    assert len(losses(second)) == 2
    assert report["layout_needs_bytes"] <= report["limit_bytes"]


# Layers of the model and MiB left when the phase begins: too few for it, enough for a layout of at most 16 ranks.
# Communicators (nccl_init) hold no model: where they do not fit, no layout does. The flat engine takes nothing before
# it is built (model_build), and 28 MiB that activations have left when it steps (optimizer_step).
LEFT = {
    ("deepspeed", "model_build"): (24, 390),
    ("deepspeed", "checkpoint_load"): (8, 64),
    ("deepspeed", "optimizer_init"): (16, 200),
    ("deepspeed", "forward"): (8, 24),
    ("deepspeed", "backward"): (8, 64),
    ("deepspeed", "optimizer_step"): (8, 32),
    ("deepspeed", "save"): (8, 12),
    ("deepspeed", "evaluate"): (16, 12),
    ("flat", "checkpoint_load"): (8, 64),
    ("flat", "optimizer_init"): (16, 700),
    ("flat", "forward"): (8, 24),
    ("flat", "backward"): (8, 16),
    ("flat", "save"): (8, 12),
    ("flat", "evaluate"): (16, 12),
}


@pytest.mark.long
@pytest.mark.parametrize(("engine", "phase"), LEFT)
def test_whatever_phase_ran_out_the_advised_layout_runs_in_the_same_memory(
    engine: str, phase: str, launcher: ForkServer, corpus: Path, tmp_path: Path
) -> None:
    layers, left = LEFT[engine, phase]
    # Of 16 samples a layer's tensors are too large for the C library to find room for them in what was freed before.
    samples = 16 if phase == "evaluate" else 8
    model, chosen = {**BIG, "num_layers": layers}, sizes(dp=2, micro_batch_size=samples, global_batch_size=2 * samples)
    shared: dict[str, Any] = {"checkpoint": {"mode": "async_thread" if phase == "save" else "sync"}, "engine": engine}
    shared["evaluation"] = {"interval": int(phase == "evaluate"), "batches": 1}
    if phase == "checkpoint_load":
        before = make_attempt(tmp_path / "before", corpus, model, chosen, steps=1, **shared)
        launcher.run(before, 2).assert_done()
    first = make_attempt(tmp_path / "first", corpus, model, chosen, steps=2, **shared)
    assert 64 in launcher.call(CAP, first, 2, attempt=str(first), phase=phase, data_mib=left).codes
    report = next(oom_report(first, rank) for rank in (0, 1) if (first / f"oom/{rank}.json").exists())
    assert report["phase"] == phase
    advised = report["layout"]
    assert advised is not None, report["planner"]
    assert advised["world_size"] <= 16, report["planner"]
    cap = {"memory_limit_gib": report["limit_bytes"] / 2**30}
    second = make_attempt(tmp_path / "second", corpus, model, advised, steps=2, **shared, **cap)
    launcher.run(second, advised["world_size"]).assert_done()
    assert len(losses(second)) == (1 if phase == "checkpoint_load" else 2)
    # A row of the table of docs/checkpoints.md, shown with `-rP`.
    own = report["program_bytes"]
    sizes_gib = f"{(report['limit_bytes'] - own) / 2**30:.2f} | {(report['layout_needs_bytes'] - own) / 2**30:.2f}"
    sys.stdout.write(f"| {engine} | {phase} | {sizes_gib} | {report['planner'].partition(' would fit')[0]} |\n")
