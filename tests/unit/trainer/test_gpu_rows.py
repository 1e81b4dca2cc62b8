"""What was measured on H200s stays near what the planner says of it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_predictions_of_rows_measured_after_the_fit_stay_within_six_percent_in_time_and_three_in_memory() -> None:
    rows = ROOT / "tests" / "fixtures" / "planner" / "h200-20261130"
    command = [sys.executable, str(ROOT / "scripts" / "gpu_predicted.py"), str(rows)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    count, step = re.findall(r"(\d+) rows, step time: ([0-9.]+) % before", output)[0]
    (memory,) = re.findall(r"memory: ([0-9.]+) % before", output)
    assert int(count) == 16
    assert float(step) < 6
    assert float(memory) < 3
