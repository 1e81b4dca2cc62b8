"""Compare the trainer with plain PyTorch on one GPU: cases x programs in one process, one line each, rows.jsonl.

    python scripts/gpu_single.py --out DIR --run gpt-1.3b:8:peer,trainer --run gpt-1.3b:2:peer,trainer:1:none:4:3-47

A run is MODEL:ACCUMULATION:PROGRAM,PROGRAM[:ZERO[:RECOMPUTE[:MICRO_BATCH[:UNTIMED-TIMED]]]]. With --lock, processes
that share the GPU compile side by side and take turns in what is timed.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "plugins" / "module_utils")]

from trainer.bench.case import LEARNING_RATE, BenchCase, gpt_like, llama_like  # noqa: E402
from trainer.bench.local import start  # noqa: E402

MODELS = {
    "gpt-1.3b": (gpt_like("gpt-1.3b", 24, 2048, 2048), 4),
    "gpt-h2048-l12": (gpt_like("gpt-h2048-l12", 12, 2048, 2048), 4),
    "gpt-h2048-l6": (gpt_like("gpt-h2048-l6", 6, 2048, 2048), 4),
    "gpt-h2048-s8k": (gpt_like("gpt-h2048-s8k", 12, 2048, 8192), 1),
    "gpt-h1024": (gpt_like("gpt-h1024", 24, 1024, 1024, heads=16), 16),
    "gpt-h4096": (gpt_like("gpt-h4096", 8, 4096, 4096), 2),
    "gpt-h4096-l4": (gpt_like("gpt-h4096-l4", 4, 4096, 4096), 2),
    "llama-h4096": (llama_like("llama-h4096", 4, 4096, 14336, 32, 8, 4096, 128256), 2),
    "llama-h2048": (llama_like("llama-h2048", 16, 2048, 8192, 32, 8, 4096, 128256), 2),
    "tiny": (gpt_like("tiny", 2, 64, 32, vocab=256, heads=4), 2),
}


class Turn:
    """A lock between processes, entered as often as needed."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        self._file = self._path.open("w")
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        self._file.close()


def case_of(text: str) -> tuple[BenchCase, list[str], tuple[int, int]]:
    """Parse one --run."""
    model_name, accumulation, programs, *options = text.split(":")
    model, micro_batch = MODELS[model_name]
    defaults = ["1", "none", str(micro_batch), "3-6"]
    zero, recompute, samples, steps = options + defaults[len(options) :]
    if zero == "3":
        # DeepSpeed's ZeRO 3 cannot share a weight between two modules, and the peer is given the same model.
        model = replace(model, tied_embeddings=False)
    case = BenchCase(model_name, model, int(samples), int(accumulation), zero_stage=int(zero), recompute=recompute)
    untimed, timed = (int(part) for part in steps.split("-"))
    return case, programs.split(","), (untimed, timed)


def rows(arguments: argparse.Namespace) -> Iterator[str]:
    """Run everything asked for; yield a line for each program, also for one that failed."""
    plan = [
        (replace(case, learning_rate=arguments.learning_rate), *others) for case, *others in map(case_of, arguments.run)
    ]
    mesh = start(plan[0][0])
    from trainer.bench.compare import Span, run_program

    turn = Turn(arguments.lock) if arguments.lock else contextlib.nullcontext()
    for case, programs, (untimed, timed) in plan:
        for program in programs:
            began = time.time()
            span = Span(untimed, timed, f"{case.name}/{program}" in arguments.profile, turn)
            try:
                row = run_program(program, case, mesh, span, arguments.out)
                yield f"{row.line()}  ({time.time() - began:.0f} s)"
            except Exception:  # noqa: BLE001 - one failing program must not waste the machine
                yield f"{case.name} {program} failed: {traceback.format_exc()}"


def main() -> int:
    """Run; return 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--run", action="append", required=True)
    parser.add_argument("--profile", action="append", default=[], help="CASE/PROGRAM")
    parser.add_argument("--lock", type=Path)
    parser.add_argument("--learning-rate", type=float, default=LEARNING_RATE, help="after a warm-up of 40 steps")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    failed = 0
    for line in rows(arguments):
        failed += "failed:" in line
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
