"""Measure what keeping optimizer states off the GPU costs: the same job with and without, on one GPU.

    python scripts/gpu_offload.py --out DIR --run gpt-1.3b:8:cpu,nvme [--steps 2:4]
    python scripts/gpu_offload.py --out DIR --run tiny:2:cpu,nvme          # tries itself, where there is no GPU

A run is MODEL:ACCUMULATION:KIND,KIND with a model of scripts/gpu_single.py. The file of `nvme` lies in DIR, 12 bytes
for each parameter.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "plugins" / "module_utils"), str(ROOT / "scripts")]

import torch  # noqa: E402
from gpu_single import case_of  # noqa: E402

from trainer.bench.local import start  # noqa: E402


def rows(arguments: argparse.Namespace) -> Iterator[str]:
    """Run each job as it is and with its states elsewhere; yield their lines."""
    from trainer.bench.layouts import offload_cost, try_layout
    from trainer.bench.predicted import peak_flops_per_second

    peak = peak_flops_per_second(torch.cuda.get_device_name()) if torch.cuda.is_available() else None
    untimed, timed = (int(part) for part in arguments.steps.split(":"))
    for text in arguments.run:
        case, kinds, _ = case_of(text)
        resident, problem = try_layout("resident", case, arguments.out, (untimed, timed))
        if resident is None:
            yield f"{case.name} resident: {problem}"
            continue
        for kind in kinds:
            moved = replace(case, offload=kind, offload_directory=str(arguments.out / "states"))
            row, problem = try_layout(kind, moved, arguments.out, (untimed, timed))
            if row is None:
                yield f"{case.name} {kind}: {problem}"
            else:
                yield f"{row.line(peak)}\n{offload_cost(row, resident, peak)}"


def main() -> int:
    """Run; return 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--run", action="append", required=True)
    parser.add_argument("--steps", default="3:6", help="untimed and timed")
    arguments = parser.parse_args()
    (arguments.out / "states").mkdir(parents=True, exist_ok=True)
    start(case_of(arguments.run[0])[0])
    failed = 0
    for line in rows(arguments):
        failed += "failed:" in line
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
