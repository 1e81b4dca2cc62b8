"""The flat engine computes what DeepSpeed's computes, in every layout, and continues its checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.attempts import LLAMA, MODEL, events, losses, make_attempt, sizes
from tests.support.launch import ForkServer

pytestmark = pytest.mark.multiprocess
TIED = {**MODEL, "tied_embeddings": True}

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "alone": (MODEL, sizes(zero_stage=1)),
    "alone-zero-3": (MODEL, sizes(zero_stage=3)),
    # With one micro-batch the logits lie among the gradients that the backward pass has not reached yet.
    "one-micro-batch": (MODEL, sizes(zero_stage=1, micro_batch_size=8)),
    "one-micro-batch-data-2-zero-3": (LLAMA, sizes(dp=2, zero_stage=3, micro_batch_size=4)),
    "tensor-2-sequence-parallel": (MODEL, sizes(tp=2, zero_stage=1)),
    "tensor-2": (LLAMA, sizes(tp=2, zero_stage=1, sequence_parallel=False)),
    "pipeline-2": (MODEL, sizes(pp=2)),
    "virtual-pipeline-2-data-2": (MODEL, sizes(pp=2, dp=2, virtual_pipeline_size=2)),
    "data-2-zero-0": (MODEL, sizes(dp=2, zero_stage=0)),
    "data-2-zero-1": (MODEL, sizes(dp=2)),
    "data-2-zero-2": (MODEL, sizes(dp=2, zero_stage=2)),
    "data-2-zero-3": (LLAMA, sizes(dp=2, zero_stage=3)),
    "pipeline-2-data-2-zero-2": (MODEL, sizes(pp=2, dp=2, zero_stage=2)),
    "tensor-2-data-2-zero-3": (LLAMA, sizes(tp=2, dp=2, zero_stage=3)),
    "recompute-full-data-2-zero-3": (LLAMA, sizes(dp=2, zero_stage=3, recompute="full")),
    "recompute-selective-tensor-2": (MODEL, sizes(tp=2, zero_stage=1, recompute="selective")),
    "eight-ranks-zero-1": (MODEL, sizes(2, 2, 2)),
    "tied-pipeline-2-data-2": (TIED, sizes(pp=2, dp=2)),
    "tied-tensor-2-zero-1": (TIED, sizes(tp=2, zero_stage=1)),
}


@pytest.fixture(scope="module")
def deepspeed(launcher: ForkServer, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return losses and gradient norms of one process with DeepSpeed's engine, per model and dtype."""
    known: dict[str, tuple[list[float], list[float]]] = {}

    def look_up(model: dict[str, Any], dtype: str = "float32") -> tuple[list[float], list[float]]:
        key = f"{model['name']}-{model['tied_embeddings']}-{dtype}"
        if key not in known:
            where = tmp_path_factory.mktemp(key) / "attempt"
            attempt = make_attempt(where, corpus, model, sizes(zero_stage=1), dtype=dtype, engine="deepspeed")
            launcher.run(attempt, 1).assert_done()
            known[key] = losses(attempt), [event["grad_norm"] for event in events(attempt, "step")]
        return known[key]

    return look_up


@pytest.mark.parametrize("case", CASES)
def test_ten_losses_and_norms_equal_those_of_deepspeed(
    case: str, launcher: ForkServer, corpus: Path, tmp_path: Path, deepspeed: Any
) -> None:
    model, chosen = CASES[case]
    attempt = make_attempt(tmp_path / "attempt", corpus, model, chosen, engine="flat")
    launcher.run(attempt, chosen["world_size"]).assert_done()
    expected_losses, expected_norms = deepspeed(model)
    assert losses(attempt) == pytest.approx(expected_losses, abs=1e-5)
    assert [event["grad_norm"] for event in events(attempt, "step")] == pytest.approx(expected_norms, rel=1e-4)


@pytest.mark.parametrize(
    ("dtype", "chosen"),
    [
        ("bfloat16", sizes(zero_stage=1)),
        ("bfloat16", sizes(dp=2, zero_stage=3)),
        ("float16", sizes(zero_stage=1)),
        ("float16", sizes(dp=2)),
    ],
)
def test_short_dtypes_stay_within_their_noise_of_fp32(
    dtype: str, chosen: dict[str, Any], launcher: ForkServer, corpus: Path, tmp_path: Path, deepspeed: Any
) -> None:
    attempt = make_attempt(tmp_path / "attempt", corpus, MODEL, chosen, dtype=dtype, engine="flat")
    launcher.run(attempt, chosen["world_size"]).assert_done()
    assert losses(attempt) == pytest.approx(deepspeed(MODEL)[0], abs=4e-3)


@pytest.mark.parametrize(
    ("dtype", "layouts"),
    [
        ("float32", [(sizes(dp=2, zero_stage=3), "flat"), (sizes(tp=2, zero_stage=1), "deepspeed"), (sizes(), "flat")]),
        ("bfloat16", [(sizes(dp=2), "flat"), (sizes(zero_stage=1), "deepspeed"), (sizes(tp=2, zero_stage=1), "flat")]),
    ],
)
def test_checkpoints_pass_between_both_engines(
    dtype: str, layouts: list[tuple[dict[str, Any], str]], launcher: ForkServer, corpus: Path, tmp_path: Path
) -> None:
    whole = make_attempt(tmp_path / "whole" / "attempt", corpus, LLAMA, sizes(zero_stage=1), dtype=dtype, steps=15)
    launcher.run(whole, 1).assert_done()
    found: list[float] = []
    for number, (chosen, engine) in enumerate(layouts, start=1):
        where = tmp_path / f"attempt{number}"
        attempt = make_attempt(where, corpus, LLAMA, chosen, dtype=dtype, engine=engine, steps=5 * number)
        launcher.run(attempt, chosen["world_size"]).assert_done()
        found += losses(attempt)
    assert found == pytest.approx(losses(whole), abs=1e-5 if dtype == "float32" else 3e-3)
