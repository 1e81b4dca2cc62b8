"""Random generators of a rank as JSON, for a bitwise resume at the same layout."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import torch


def capture(device: torch.device) -> dict[str, Any]:
    """Return the states of torch's generators and of Megatron's tracker on this rank."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    from megatron.core.tensor_parallel import get_cuda_rng_tracker

    tracked = get_cuda_rng_tracker().get_states()
    return {
        "generators": {name: _encode(state) for name, state in states.items()},
        "tracker": {name: _encode(state) for name, state in tracked.items()},
    }


def restore(saved: Mapping[str, Any], device: torch.device) -> None:
    """Set the generators of this rank to captured states."""
    from megatron.core.tensor_parallel import get_cuda_rng_tracker

    torch.set_rng_state(_decode(saved["generators"]["cpu"]))
    if device.type == "cuda" and "cuda" in saved["generators"]:
        torch.cuda.set_rng_state(_decode(saved["generators"]["cuda"]), device)
    get_cuda_rng_tracker().set_states({name: _decode(text) for name, text in saved["tracker"].items()})


def _encode(state: torch.Tensor) -> str:
    return base64.b64encode(state.cpu().numpy().tobytes()).decode("ascii")


def _decode(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
