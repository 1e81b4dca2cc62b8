"""Programs in Python that belong to no package: PATH for those that stand in for tools, and how one is loaded."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType


def path_with(*directories: Path | str) -> str:
    """Return PATH with directories in front, and behind them the interpreter that the tests' environment was made from.

    `python3` may else be the wrapper of a version manager, which takes five times as long as a stand-in itself, or that
    of an activated environment, whose packages a node does not have.
    """
    return os.pathsep.join([*map(str, directories), str(Path(sys.base_prefix) / "bin"), os.environ["PATH"]])


def load_program(path: Path) -> ModuleType:
    """Load a program that belongs to no package, as a module of its own name; nothing but its top level runs."""
    spec = importlib.util.spec_from_file_location(f"program_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up while it is still being made
    spec.loader.exec_module(module)
    return module
