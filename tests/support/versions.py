"""What the installed DeepSpeed can do, read from its files: importing it would load torch's compiler first."""

from __future__ import annotations

import importlib.util
from pathlib import Path


def sums_tied_gradients() -> bool:
    """Return whether this DeepSpeed leaves gradients alone until its step; older ones refuse tied embeddings here."""
    found = importlib.util.find_spec("deepspeed")
    assert found is not None
    assert found.origin is not None
    return "MANAGED_GRADIENT_ACCUMULATION" in (Path(found.origin).parent / "runtime/constants.py").read_text()
