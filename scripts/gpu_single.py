"""Compare the trainer with plain PyTorch on one GPU: cases x programs in one process, one line each, rows.jsonl.

python scripts/gpu_single.py --out DIR --run gpt-1.3b:8:peer,trainer --run gpt-1.3b:1:peer,trainer --steps 3:8
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "plugins" / "module_utils")]

from trainer.bench.case import BenchCase, gpt_like, llama_like  # noqa: E402
from trainer.bench.local import start  # noqa: E402

MODELS = {
    "gpt-1.3b": (gpt_like("gpt-1.3b", 24, 2048, 2048), 4),
    "gpt-h4096": (gpt_like("gpt-h4096", 8, 4096, 4096), 2),
    "llama-1b": (llama_like("llama-1b", 16, 2048, 8192, 32, 8, 4096, 128256), 2),
    "tiny": (gpt_like("tiny", 2, 64, 32, vocab=256, heads=4), 2),
}


def cases(text: str) -> tuple[BenchCase, list[str]]:
    """Parse MODEL:ACCUMULATION:PROGRAM,PROGRAM[:ZERO[:RECOMPUTE[:MICRO_BATCH]]]."""
    model_name, accumulation, programs, *options = text.split(":")
    model, micro_batch = MODELS[model_name]
    zero, recompute, samples = (options + ["1", "none", str(micro_batch)][len(options) :])[:3]
    if zero == "3":
        # DeepSpeed's ZeRO 3 cannot share a weight between two modules, and the peer is given the same model.
        model = replace(model, tied_embeddings=False)
    case = BenchCase(model_name, model, int(samples), int(accumulation), zero_stage=int(zero), recompute=recompute)
    return case, programs.split(",")


def main() -> int:
    """Run everything asked for; a program that fails is reported, and the next one runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--run", action="append", required=True)
    parser.add_argument("--steps", default="3:8")
    parser.add_argument("--profile", default="")
    arguments = parser.parse_args()
    warmup, timed = (int(part) for part in arguments.steps.split(":"))
    plan = [cases(text) for text in arguments.run]
    mesh = start(plan[0][0])
    from trainer.bench.compare import Span, run_program

    arguments.out.mkdir(parents=True, exist_ok=True)
    failed = 0
    for case, programs in plan:
        for program in programs:
            began = time.time()
            try:
                row = run_program(
                    program, case, mesh, Span(warmup, timed, program in arguments.profile.split(",")), arguments.out
                )
            except Exception:  # noqa: BLE001 - one failing program must not waste the machine
                traceback.print_exc()
                failed += 1
                continue
            sys.stdout.write(f"{row.line()}  ({time.time() - began:.0f} s)\n")
            sys.stdout.flush()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
