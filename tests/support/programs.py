"""PATH for tests whose stand-ins of tools are programs in Python."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def path_with(*directories: Path | str) -> str:
    """Return PATH with directories in front, and behind them the interpreter that runs the tests.

    `python3` may else be the wrapper of a version manager, which takes five times as long as a stand-in itself.
    """
    return os.pathsep.join([*map(str, directories), str(Path(sys.executable).parent), os.environ["PATH"]])
