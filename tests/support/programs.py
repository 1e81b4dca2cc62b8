"""PATH for tests whose stand-ins of tools are programs in Python."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def path_with(*directories: Path | str) -> str:
    """Return PATH with directories in front, and behind them the interpreter that the tests' environment was made from.

    `python3` may else be the wrapper of a version manager, which takes five times as long as a stand-in itself, or that
    of an activated environment, whose packages a node does not have.
    """
    return os.pathsep.join([*map(str, directories), str(Path(sys.base_prefix) / "bin"), os.environ["PATH"]])
