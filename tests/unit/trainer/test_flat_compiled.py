"""A compiled flat engine computes what the plain one does, collectives included."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.attempts import LLAMA, MODEL, make_attempt, sizes
from tests.support.launch import ForkServer

pytestmark = pytest.mark.multiprocess
GRADIENTS = "tests.support.flat_gradients:write_flat_gradients"


def gradients(
    launcher: ForkServer, where: Path, model: dict[str, Any], split: bool, compiled: bool
) -> list[dict[str, torch.Tensor]]:
    """Return each of two tensor-parallel ranks' gradients and losses."""
    short = {**model, "num_layers": 1, "sequence_length": 16}
    chosen = sizes(tp=2, zero_stage=1, sequence_parallel=split)
    attempt = make_attempt(where / "attempt", where / "no-corpus", short, chosen, engine="flat")
    launcher.call(GRADIENTS, where, 2, attempt=str(attempt), out=str(where), compiled=compiled).assert_done()
    return [torch.load(where / f"{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("model", [MODEL, LLAMA], ids=["layernorm-bias", "rmsnorm-gated"])
def test_compiled_sequence_parallelism_finds_every_gradient_of_the_plain_one(
    model: dict[str, Any], launcher: ForkServer, tmp_path: Path
) -> None:
    plain = gradients(launcher, tmp_path / "plain", model, split=True, compiled=False)
    whole = gradients(launcher, tmp_path / "whole", model, split=False, compiled=False)
    compiled = gradients(launcher, tmp_path / "compiled", model, split=True, compiled=True)
    for expected, other, found in zip(plain, whole, compiled):
        assert found.keys() == expected.keys() == other.keys()
        for name, value in expected.items():
            assert value.abs().max() > 1e-4, f"{name}: a gradient of zero would prove nothing"
            torch.testing.assert_close(other[name], value, atol=1e-5, rtol=1e-4, msg=name)
            torch.testing.assert_close(found[name], value, atol=1e-5, rtol=1e-4, msg=name)


def test_launches_of_compiled_layers_leave_pythons_lock_to_the_watchdog() -> None:
    from torch._inductor import config

    from trainer.flat_engine import _launch_without_interpreter_lock

    with config.patch(use_static_cuda_launcher=True):
        _launch_without_interpreter_lock()
        assert not config.use_static_cuda_launcher
