"""A checkpoint continues in any layout as if nothing had happened."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.attempts import LLAMA, MODEL, events, losses, make_attempt, sizes
from tests.support.launch import ForkServer
from tests.support.versions import sums_tied_gradients

pytestmark = pytest.mark.multiprocess
TIED = {**MODEL, "tied_embeddings": True}


def continue_run(
    launcher: ForkServer,
    where: Path,
    corpus: Path,
    model: dict[str, Any],
    layouts: list[dict[str, Any]],
    **changes: Any,
) -> list[float]:
    """Train five steps in each layout, one after the other from the same directory; return all losses."""
    found: list[float] = []
    for number, chosen in enumerate(layouts, start=1):
        attempt = make_attempt(where / f"attempt{number}", corpus, model, chosen, steps=5 * number, **changes)
        launcher.run(attempt, chosen["world_size"]).assert_done()
        found += losses(attempt)
    return found


Whole = Callable[..., "list[float]"]


@pytest.fixture(scope="module")
def whole(launcher: ForkServer, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """Return the losses of 15 uninterrupted steps, each kind of run made once."""
    known: dict[str, list[float]] = {}

    def run(model: dict[str, Any], chosen: dict[str, Any], **changes: Any) -> list[float]:
        key = json.dumps([model, chosen, changes])
        if key not in known:
            attempt = make_attempt(
                tmp_path_factory.mktemp("whole") / "attempt", corpus, model, chosen, steps=15, **changes
            )
            launcher.run(attempt, chosen["world_size"]).assert_done()
            known[key] = losses(attempt)
        return known[key]

    return run


MOVES: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "eight-to-one-to-eight": (MODEL, [sizes(2, 2, 2), sizes(zero_stage=1), sizes(4, 1, 2)]),
    "zero-3-and-pipeline": (MODEL, [sizes(dp=2, zero_stage=3), sizes(pp=2, dp=2), sizes(dp=2, zero_stage=2)]),
    "swiglu-over-tensor-sizes": (LLAMA, [sizes(tp=2, pp=2), sizes(dp=2, zero_stage=3), sizes(tp=2, zero_stage=1)]),
    "tied-and-virtual": (TIED, [sizes(pp=2, dp=2, virtual_pipeline_size=2), sizes(zero_stage=1), sizes(pp=2)]),
    "eight-to-pipeline-and-zero-3": (MODEL, [sizes(2, 2, 2), sizes(pp=2, dp=2), sizes(dp=2, zero_stage=3)]),
    "flat-buffer": (LLAMA, [sizes(tp=2), sizes(dp=2), sizes()]),
}


LONG = {"eight-to-pipeline-and-zero-3": pytest.mark.long}


@pytest.mark.parametrize("move", [pytest.param(name, marks=LONG.get(name, ())) for name in MOVES])
def test_losses_go_on_as_without_interruption_when_the_layout_changes(
    move: str, launcher: ForkServer, corpus: Path, tmp_path: Path, whole: Whole
) -> None:
    model, layouts = MOVES[move]
    if model is TIED and not sums_tied_gradients():
        pytest.skip("this DeepSpeed cannot sum the gradients of tied embeddings over a pipeline; the trainer refuses")
    found = continue_run(launcher, tmp_path, corpus, model, layouts)
    assert found == pytest.approx(whole(model, sizes(zero_stage=1)), abs=1e-5)


def test_bfloat16_goes_on_within_its_precision_in_another_layout(
    launcher: ForkServer, corpus: Path, tmp_path: Path
) -> None:
    saving = {"directory": str(tmp_path / "checkpoints"), "interval": 5, "keep": 2, "mode": "sync"}
    first = make_attempt(
        tmp_path / "whole", corpus, MODEL, sizes(2, 2, 2), steps=10, dtype="bfloat16", checkpoint=saving
    )
    launcher.run(first, 8).assert_done()
    shutil.rmtree(tmp_path / "checkpoints/step_10")
    for name, other in {"one": sizes(zero_stage=1), "zero-3": sizes(dp=2, zero_stage=3)}.items():
        shutil.copytree(tmp_path / "checkpoints", tmp_path / name / "checkpoints")
        resumed = make_attempt(tmp_path / name / "attempt", corpus, MODEL, other, steps=10, dtype="bfloat16")
        launcher.run(resumed, other["world_size"]).assert_done()
        # From the same weights on; two layouts that differ from step 0 on drift apart by their roundings.
        assert losses(resumed) == pytest.approx(losses(first)[5:], abs=1e-3)


def test_resume_at_the_same_layout_is_bitwise_with_dropout(
    launcher: ForkServer, corpus: Path, tmp_path: Path, whole: Whole
) -> None:
    chosen, dropout = sizes(tp=2, dp=2), {"hidden": 0.1, "attention": 0.1}
    found = continue_run(launcher, tmp_path, corpus, MODEL, [chosen, chosen], dropout=dropout)
    assert found == whole(MODEL, chosen, dropout=dropout)[:10]


@pytest.mark.parametrize("mode", ["sync", "async_thread", "async_process"])
def test_a_killed_run_goes_on_bitwise_from_its_last_checkpoint(
    mode: str, launcher: ForkServer, corpus: Path, tmp_path: Path, whole: Whole
) -> None:
    saving = {"directory": str(tmp_path / "checkpoints"), "interval": 4, "keep": 2, "mode": mode}
    cut_short = make_attempt(tmp_path / "attempt1", corpus, MODEL, sizes(dp=2), steps=9, checkpoint=saving)
    launcher.run(cut_short, 2).assert_done()
    # What a kill between step 8 and the save of step 9 leaves behind.
    (tmp_path / "checkpoints/step_9").rename(tmp_path / "checkpoints/step_9.tmp")
    (tmp_path / "checkpoints/step_9.tmp/.metadata").unlink()
    resumed = make_attempt(tmp_path / "attempt2", corpus, MODEL, sizes(dp=2), steps=12, checkpoint=saving)
    launcher.run(resumed, 2).assert_done()
    assert losses(cut_short)[:8] + losses(resumed) == whole(MODEL, sizes(dp=2))[:12]


def test_the_newest_whole_checkpoint_is_chosen_and_the_damaged_one_named(
    launcher: ForkServer, corpus: Path, tmp_path: Path
) -> None:
    saving = {"directory": str(tmp_path / "checkpoints"), "interval": 4, "keep": 3, "mode": "sync"}
    first = make_attempt(tmp_path / "attempt1", corpus, MODEL, sizes(dp=2), steps=10, checkpoint=saving)
    launcher.run(first, 2).assert_done()
    shard = tmp_path / "checkpoints/step_10/__1_0.distcp"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    second = make_attempt(tmp_path / "attempt2", corpus, MODEL, sizes(dp=2), steps=11, checkpoint=saving)
    launcher.run(second, 2).assert_done()
    chosen = events(second, "checkpoint")[0]
    assert (chosen["state"], chosen["step"]) == ("chosen", 8)
    assert "__1_0.distcp has other bytes than were written" in chosen["refused"][0]


def test_with_no_whole_checkpoint_left_nothing_is_trained_from_random_weights(
    launcher: ForkServer, corpus: Path, tmp_path: Path
) -> None:
    first = make_attempt(tmp_path / "attempt1", corpus, MODEL, sizes(zero_stage=1), steps=2)
    launcher.run(first, 1).assert_done()
    (tmp_path / "checkpoints/step_2/__0_0.distcp").unlink()
    second = make_attempt(tmp_path / "attempt2", corpus, MODEL, sizes(zero_stage=1), steps=4)
    ended = launcher.run(second, 1)
    assert ended.codes == [64]
    assert "no checkpoint in" in json.loads((second / "result/0.json").read_text())["reason"]


def test_a_checkpoint_of_another_model_is_refused_by_the_quantity_that_differs(
    launcher: ForkServer, corpus: Path, tmp_path: Path
) -> None:
    first = make_attempt(tmp_path / "attempt1", corpus, MODEL, sizes(zero_stage=1), steps=1)
    launcher.run(first, 1).assert_done()
    other = {**MODEL, "ffn_hidden_size": 128}
    second = make_attempt(tmp_path / "attempt2", corpus, other, sizes(zero_stage=1), steps=4)
    assert launcher.run(second, 1).codes == [64]
    reason = json.loads((second / "result/0.json").read_text())["reason"]
    assert "ffn_hidden_size=256 there, 128 in the plan" in reason
    assert not [event for event in events(second, "phase") if event["phase"] == "model_build"]
