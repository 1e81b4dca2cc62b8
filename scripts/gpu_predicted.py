"""Predicted beside measured, for what the other scripts measured on GPUs, before and after `rackweave calibrate`.

    python scripts/gpu_predicted.py DIR [DIR ...]

Reads every rows.jsonl (scripts/gpu_single.py) and layouts.jsonl (scripts/gpu_layouts.py) below the directories.
"After" is each row under the factor of the others, so that it says something about rows not yet measured.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "plugins" / "module_utils")]

from rackweave.cli.calibrate import summary  # noqa: E402
from rackweave.plan.calibration import Measurement, calibrate  # noqa: E402

from trainer.bench.case import BenchCase  # noqa: E402
from trainer.bench.predicted import predict  # noqa: E402
from trainer.config import ModelConfig  # noqa: E402

PROGRAMS = {"trainer", "flat-fused-compiled", "data", "tensor", "pipeline", "virtual-pipeline", "tensor+pipeline"}
PROGRAMS |= {"tensor+data", "3d"}
"""What the planner's model of the flat engine speaks of; peers and slower forms are left out."""


def cases(directory: Path) -> Iterator[tuple[str, BenchCase, float, float | None, str]]:
    """Yield program, case, seconds of a step, GiB allocated and GPU of each measured row."""
    for path in sorted([*directory.rglob("rows.jsonl"), *directory.rglob("layouts.jsonl")]):
        for line in path.read_text(encoding="utf-8").splitlines():
            row: dict[str, Any] = json.loads(line)
            if row["program"] not in PROGRAMS:
                continue
            known = {field.name for field in fields(BenchCase)}
            values = {name: value for name, value in row["case"].items() if name in known}
            case = BenchCase(**{**values, "model": ModelConfig(**values["model"])})
            allocated = row.get("max_allocated_gib", row.get("measurement", {}).get("max_allocated_gib"))
            yield row["program"], case, row["step_time_s"], allocated, row["versions"]["gpu"]


def compare(directories: list[Path]) -> Iterator[str]:
    """Yield the lines of the table, then the errors before and after calibration."""
    found = []
    for directory in directories:
        for program, case, seconds, allocated, gpu in cases(directory):
            expected = predict(case, gpu)
            if expected is None:
                continue
            found.append(Measurement(gpu, expected.step_time_s, seconds, expected.allocated_gib, allocated))
            sizes = f"tp{case.tensor_parallel_size} pp{case.pipeline_parallel_size} dp{case.data_parallel_size}"
            batch = f"z{case.zero_stage} mb{case.micro_batch_size} ga{case.num_microbatches} {case.recompute}"
            yield (
                f"{case.name:14s} {program:20s} {sizes} {batch:22s} {seconds * 1e3:8.1f} ms "
                f"{'' if allocated is None else f'{allocated:6.2f} GiB'}  {expected.beside(seconds, allocated)}"
            )
    if len(found) < 2:
        yield f"{len(found)} rows: nothing to calibrate"
        return
    result = summary(found, calibrate(found))
    before, after = result["before_percent"], result["after_percent"]
    yield f"{len(found)} rows, step time: {before:.1f} % before, {after:.1f} % after"
    yield f"memory: {_memory_error(found, False):.1f} % before, {_memory_error(found, True):.1f} % after"


def _memory_error(found: list[Measurement], after: bool) -> float:
    """Return the mean error in percent; `after`: each row under the factor of the others."""
    held = [item for item in found if item.measured_gib and item.predicted_gib]
    total = 0.0
    for item in held:
        others = [other for other in held if other is not item]
        factor = calibrate(others).memory_factors.get(item.cluster, 1.0) if after else 1.0
        total += abs((item.predicted_gib or 0.0) * factor / (item.measured_gib or 1.0) - 1)
    return 100 * total / len(held)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directories", nargs="+", type=Path)
    for line in compare(parser.parse_args().directories):
        sys.stdout.write(line + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
