"""Optimizer states that live on the host or in a file change nothing but where they live."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.attempts import LLAMA, events, losses, make_attempt, sizes
from tests.support.launch import ForkServer
from trainer.errors import StopError
from trainer.flat_adamw import AdamWConstants
from trainer.flat_offload import Home
from trainer.flat_optimizer import FlatGroups, FlatOptimizer, FlatOptions, FlatParameter


def stepped(dtype: torch.dtype, home: Home) -> tuple[list[torch.Tensor], FlatOptimizer]:
    """Return the weights of a small net after three steps with fixed gradients."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(33, 17), torch.nn.LayerNorm(17), torch.nn.Linear(17, 5)).to(dtype)
    parameters = [FlatParameter(name, p, p.ndim > 1, True) for name, p in net.named_parameters()]
    optimizer = FlatOptimizer(parameters, FlatGroups(None, None), FlatOptions(AdamWConstants(), 1.0, home=home))
    for _ in range(3):
        for parameter in net.parameters():
            optimizer.main_grads[parameter].copy_(torch.randn(parameter.shape))
        optimizer.step(1e-2)
    return [p.detach().clone() for p in net.parameters()], optimizer


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["cpu", "nvme"])
def test_steps_in_pieces_are_those_of_the_device_bit_for_bit(dtype: torch.dtype, kind: str, tmp_path: Path) -> None:
    expected, resident = stepped(dtype, Home())
    found, away = stepped(dtype, Home(kind, tmp_path / "states", "job.rank0", piece_elements=100))
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, expected))
    assert torch.equal(away.state.exp_avg_sq, resident.state.exp_avg_sq)
    assert torch.equal(away.state.master(), resident.state.master())
    # Mapped files have no name, so a process that is killed leaves nothing.
    assert kind == "cpu" or list((tmp_path / "states").iterdir()) == []


def test_a_place_that_cannot_hold_the_states_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for directory, numel in ((tmp_path / "file", 10), (tmp_path, 1 << 60)):
        with pytest.raises(StopError, match=r"offload=nvme needs .* GiB for exp_avg in"):
            Home("nvme", directory, "job").zeros("exp_avg", numel, torch.float32, torch.device("cpu"))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


OFFLOADED: dict[str, tuple[dict[str, Any], str]] = {
    "deepspeed-zero-2-cpu": (sizes(dp=2, zero_stage=2, offload="cpu"), "deepspeed"),
    "flat-zero-3-nvme": (sizes(dp=2, zero_stage=3, offload="nvme"), "flat"),
    "flat-tensor-2-cpu": (sizes(tp=2, zero_stage=1, offload="cpu"), "flat"),
}


@pytest.fixture(scope="module")
def resident(launcher: ForkServer, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """Losses of a run that offloads nothing."""
    attempt = make_attempt(
        tmp_path_factory.mktemp("resident") / "attempt", corpus, LLAMA, sizes(dp=2), steps=6, dtype="bfloat16"
    )
    launcher.run(attempt, 2).assert_done()
    return losses(attempt)


@pytest.mark.multiprocess
@pytest.mark.parametrize("case", OFFLOADED)
def test_a_job_with_states_away_trains_alike_and_continues(
    case: str, launcher: ForkServer, corpus: Path, tmp_path: Path, resident: list[float]
) -> None:
    chosen, engine = OFFLOADED[case]
    settings = {"dtype": "bfloat16", "engine": engine, "offload_directory": str(tmp_path / "states")}
    first = make_attempt(tmp_path / "attempt1", corpus, LLAMA, chosen, steps=3, **settings)
    launcher.run(first, 2).assert_done()
    second = make_attempt(tmp_path / "attempt2", corpus, LLAMA, chosen, steps=6, **settings)
    launcher.run(second, 2).assert_done()
    assert losses(first) + losses(second) == pytest.approx(resident, abs=4e-3)
    assert events(second, "checkpoint")[0]["state"] == "chosen"
