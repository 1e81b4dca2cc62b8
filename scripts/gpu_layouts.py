"""All layouts of 2, 4 or 8 GPUs in one run, beside DDP and FSDP2, and an all-reduce sweep; one table last.

torchrun --nproc-per-node N scripts/gpu_layouts.py --out DIR --seconds 240
torchrun --nproc-per-node N scripts/gpu_layouts.py --out DIR --tiny --device cpu     # tries itself, over gloo
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "plugins" / "module_utils")]
# A program that uses NVLink multicast can put a shared host's GPUs out of service.
os.environ.update(NCCL_NVLS_ENABLE="0", TORCH_SYMM_MEM_DISABLE_MULTICAST="1", NVSHMEM_DISABLE_NVLS="1")

import torch  # noqa: E402

from trainer.bench.case import BenchCase, gpt_like, llama_like  # noqa: E402
from trainer.bench.local import start  # noqa: E402

if TYPE_CHECKING:
    from trainer.bench.layouts import LayoutRow
    from trainer.mesh import Mesh


def parsed() -> argparse.Namespace:
    """Return the arguments; end where the device asked for is not the one that torch finds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--micro-batch", type=int, default=1)
    parser.add_argument("--global-batch", type=int, default=16)
    parser.add_argument("--steps", default="3:7")
    parser.add_argument("--tiny", action="store_true", help="a model for trying this script")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--apart", type=float, default=0.15, help="nats from which on losses count as wrong")
    parser.add_argument("--predict-for", default="", help="without a GPU: the product that is predicted for")
    parser.add_argument("--only", default="", help="names and ZeRO stages, like tensor,data3")
    arguments = parser.parse_args()
    if torch.cuda.is_available() != (arguments.device == "cuda"):
        parser.error(f"--device {arguments.device}, but torch.cuda.is_available() is {torch.cuda.is_available()}")
    return arguments


def sweep(arguments: argparse.Namespace, mesh: Mesh, gpu: str, tell: Callable[[str], None]) -> None:
    """Sweep all-reduce over message sizes; every rank calls this, rank 0 writes and tells."""
    from trainer.bench import allreduce
    from trainer.bench.predicted import predict_allreduce

    swept = allreduce.sweep(mesh.device, 200, allreduce.SIZES_BYTES[: None if arguments.device == "cuda" else 6])
    if mesh.rank == 0:
        (arguments.out / "allreduce.json").write_text(json.dumps(asdict(swept), indent=1), encoding="utf-8")
    tell(allreduce.table(swept))
    for size in swept.sizes:
        seconds = predict_allreduce(size.message_bytes, int(os.environ["WORLD_SIZE"]), gpu)
        if seconds is not None:
            off = 100 * (seconds / size.p50_s - 1)
            tell(f"{size.message_bytes:12d} planner's NVLink: {seconds * 1e6:11.1f} us ({off:+.0f} % of p50)")


def show(rows: list[LayoutRow], gpu: str, limit: float, tell: Callable[[str], None]) -> list[str]:
    """Tell the table; return the programs whose losses lie further than `limit` from the usual ones."""
    from trainer.bench.layouts import PEERS
    from trainer.bench.predicted import peak_flops_per_second, predict

    peers = [row.tokens_per_second for row in rows if row.program in PEERS]
    tell("\nratio to the best peer; largest difference of the first 10 losses from the median of all programs")
    # Of the median, not of one program: that one could be the one that is wrong.
    usual = [statistics.median(values) for values in zip(*(row.losses[:10] for row in rows))]
    peak, wrong = peak_flops_per_second(gpu), []
    for row in rows:
        apart = max(abs(a - b) for a, b in zip(row.losses[:10], usual))
        if apart > limit:
            wrong.append(row.program)
        ratio = f"{row.tokens_per_second / max(peers):.3f}" if peers else "-"
        expected = None if row.program in PEERS else predict(row.case, gpu)
        beside = "" if expected is None else f"  {expected.beside(row.step_time_s, row.max_allocated_gib)}"
        tell(f"{ratio:>6s} {apart:8.4f}{' !' if apart > limit else '  '}{row.line(peak)}{beside}")
    tell(f"\nlosses further than {limit} from the median: {', '.join(wrong) or 'none'}")
    return wrong


def main() -> int:
    """Run the layouts and the sweep; every rank runs this."""
    arguments = parsed()
    deadline = time.time() + arguments.seconds
    warmup, timed = (int(part) for part in arguments.steps.split(":"))
    model = llama_like("7b-like", arguments.layers, 4096, 11008, 32, 32, 4096, 32000)
    if arguments.tiny:
        model = llama_like("tiny", 8, 64, 128, 8, 8, 32, 256)
    world = int(os.environ["WORLD_SIZE"])
    if arguments.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    mesh = start(BenchCase("start", gpt_like("start", 2, 64, 32, heads=4), 1, 1, data_parallel_size=world))
    from trainer.bench.layouts import layouts_of, run_all

    arguments.out.mkdir(parents=True, exist_ok=True)

    def tell(text: str) -> None:
        if mesh.rank == 0:
            sys.stdout.write(text + "\n")
            sys.stdout.flush()

    gpu = torch.cuda.get_device_name() if arguments.device == "cuda" else arguments.predict_for
    if arguments.device == "cpu":
        tell("gloo on CPUs: nothing below says anything of NCCL, NVLink or a GPU")
    sweep(arguments, mesh, gpu, tell)
    chosen = arguments.only.split(",") if arguments.only else []
    everything = layouts_of(model, world, arguments.micro_batch, arguments.global_batch)
    cases = [
        item for item in everything if not chosen or item[0] in chosen or f"{item[0]}{item[1].zero_stage}" in chosen
    ]
    rows = run_all(iter(cases), arguments.out, (warmup, timed), tell, deadline)
    wrong = show(rows, gpu, arguments.apart, tell)
    tell(f"{len(rows)} of {len(cases)} programs ran; the others are named above with what stopped them")
    return int(bool(wrong) or len(rows) < len(cases))


if __name__ == "__main__":
    sys.exit(main())
