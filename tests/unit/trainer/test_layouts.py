"""Every layout computes what one process computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.attempts import LLAMA, MODEL, events, losses, make_attempt, sizes
from tests.support.launch import ForkServer
from tests.support.versions import sums_tied_gradients

pytestmark = pytest.mark.multiprocess
TIED = {**MODEL, "tied_embeddings": True}

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "tensor-2-sequence-parallel": (MODEL, sizes(tp=2, zero_stage=1)),
    "tensor-2": (MODEL, sizes(tp=2, zero_stage=1, sequence_parallel=False)),
    "pipeline-2": (MODEL, sizes(pp=2)),
    "virtual-pipeline-2-data-2": (MODEL, sizes(pp=2, dp=2, virtual_pipeline_size=2)),
    "data-2-zero-1": (MODEL, sizes(dp=2)),
    "data-2-zero-2": (MODEL, sizes(dp=2, zero_stage=2)),
    "data-2-zero-3": (MODEL, sizes(dp=2, zero_stage=3)),
    "tensor-2-data-2-zero-2": (MODEL, sizes(tp=2, dp=2, zero_stage=2)),
    "tensor-2-data-2-zero-3": (MODEL, sizes(tp=2, dp=2, zero_stage=3)),
    "recompute-full-data-2-zero-3": (MODEL, sizes(dp=2, zero_stage=3, recompute="full")),
    "recompute-selective-tensor-2": (MODEL, sizes(tp=2, zero_stage=1, recompute="selective")),
    "eight-ranks-zero-1": (MODEL, sizes(2, 2, 2)),
    "llama-tensor-2-pipeline-2": (LLAMA, sizes(tp=2, pp=2)),
    "llama-data-2-zero-3": (LLAMA, sizes(dp=2, zero_stage=3)),
    "tied-pipeline-2-data-2": (TIED, sizes(pp=2, dp=2)),
    "tied-tensor-2-zero-1": (TIED, sizes(tp=2, zero_stage=1)),
}


@pytest.fixture(scope="module")
def alone(launcher: ForkServer, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the losses and gradient norms of one process, per model."""
    known: dict[str, tuple[list[float], list[float]]] = {}

    def look_up(model: dict[str, Any]) -> tuple[list[float], list[float]]:
        key = f"{model['name']}-{model['tied_embeddings']}"
        if key not in known:
            attempt = make_attempt(tmp_path_factory.mktemp(key) / "attempt", corpus, model, sizes(zero_stage=1))
            launcher.run(attempt, 1).assert_done()
            known[key] = losses(attempt), [event["grad_norm"] for event in events(attempt, "step")]
        return known[key]

    return look_up


@pytest.mark.parametrize("case", CASES)
def test_ten_losses_equal_those_of_one_process(
    case: str, launcher: ForkServer, corpus: Path, tmp_path: Path, alone: Any
) -> None:
    model, chosen = CASES[case]
    attempt = make_attempt(tmp_path / "attempt", corpus, model, chosen)
    ended = launcher.run(attempt, chosen["world_size"])
    if case.startswith("tied-pipeline") and not sums_tied_gradients():
        assert set(ended.codes) == {64}
        assert "managed_gradient_accumulation" in ended.logs[0]
        return
    ended.assert_done()
    expected_losses, expected_norms = alone(model)
    assert losses(attempt) == pytest.approx(expected_losses, abs=1e-5)
    assert [event["grad_norm"] for event in events(attempt, "step")] == pytest.approx(expected_norms, rel=1e-4)
