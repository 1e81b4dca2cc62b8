"""Measure checkpoints on one GPU: what training notices of an asynchronous save, how fast it is, and a real OOM.

    python scripts/gpu_checkpoint.py --out DIR [--layers 16] [--only save|oom] [--mode async_thread] [--engine flat]
    python scripts/gpu_checkpoint.py --out DIR --cpu      # tries the script itself, with small models over gloo

Each part is a job of its own, as torchrun would start it. Prints one table; DIR keeps the attempts.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "plugins" / "module_utils")]

from tests.support.attempts import MODEL, make_attempt, sizes, write_text  # noqa: E402

GIB = 2**30
INTERVAL, STEPS = 50, 160
AFTER = 12
"""Steps after a save in which training may be slowed by its copies and writes, beside the stall itself."""
WIDE = {"hidden_size": 2048, "ffn_hidden_size": 8192, "num_attention_heads": 16, "num_query_groups": 16}
SMALL = {"hidden_size": 1024, "ffn_hidden_size": 4096, "num_attention_heads": 8, "num_query_groups": 8}
COMMON = {"head_dim": 128, "vocab_size": 50304, "sequence_length": 1024}


def search_path() -> str:
    """Return PYTHONPATH with this tree before what the caller has there."""
    return os.pathsep.join([str(ROOT), str(ROOT / "plugins/module_utils"), os.environ.get("PYTHONPATH", "")])


def run(attempt: Path) -> int:
    """Run one rank; return its exit code."""
    environment = {
        **os.environ,
        "PYTHONPATH": search_path(),
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29611",
        "SLURMD_NODENAME": "node-a",
    }
    with (attempt / "log.txt").open("wb") as log:
        command = [sys.executable, "-m", "trainer", "--attempt", str(attempt)]
        return subprocess.run(command, env=environment, stdout=log, stderr=log, timeout=300, check=False).returncode


def events(attempt: Path) -> list[dict[str, Any]]:
    """Return the events of an attempt."""
    return [json.loads(line) for line in (attempt / "events.jsonl").read_text().splitlines()]


def tail(attempt: Path) -> str:
    """Return the end of an attempt's output."""
    return (attempt / "log.txt").read_text(errors="replace")[-2500:]


def kind(cpu: bool, engine: str) -> dict[str, Any]:
    """Return what all jobs share."""
    shared = {"dtype": "float32", "backend": "gloo"} if cpu else {"dtype": "bfloat16", "backend": "nccl"}
    return {**shared, "engine": engine}


def measure_saves(out: Path, corpus: Path, arguments: argparse.Namespace, shared: dict[str, Any]) -> list[str]:
    """Train with a save every INTERVAL steps; return rows of the table."""
    layers, mode, last = arguments.layers, arguments.mode, arguments.steps
    cpu = shared["backend"] == "gloo"
    model = MODEL if cpu else {**MODEL, **WIDE, **COMMON, "num_layers": layers, "name": "checkpoint"}
    samples = 2 if cpu else 8
    chosen = sizes(micro_batch_size=samples, global_batch_size=samples * arguments.accumulation, zero_stage=1)
    attempt = make_attempt(
        out / "save" / "attempt", corpus, model, chosen, steps=last,
        checkpoint={"interval": INTERVAL, "mode": mode},
        **shared,
    )  # fmt: skip
    began = time.monotonic()
    code = run(attempt)
    if code:
        return [f"save: the job ended with {code}: {tail(attempt)}"]
    found = events(attempt)
    times = {event["step"]: event["step_time_s"] for event in found if event["kind"] == "step"}
    saves = [event for event in found if event["kind"] == "checkpoint"]
    usual = statistics.median(list(times.values())[10:])
    size = sum(file.stat().st_size for file in out.glob("save/checkpoints/step_*/*.distcp")) / len(
        list(out.glob("save/checkpoints/step_*"))
    )
    rows = [
        f"state {size / GIB:.2f} GiB, {mode}, usual step {1000 * usual:.1f} ms, job {time.monotonic() - began:.0f} s"
    ]
    published = {event["step"]: event["seconds"] for event in saves if event["state"] == "published"}
    validated = {event["step"]: event["seconds"] for event in saves if event["state"] == "validated"}
    for event in (event for event in saves if event["state"] == "saved" and event["step"] < last):
        step = event["step"]
        slower = sum(times[later] - usual for later in range(step + 1, step + 1 + AFTER) if later in times)
        stall = event["seconds"] + max(0.0, slower)
        speed = size / published[step] / 1e9
        rows.append(
            f"save at step {step}: call {event['seconds']:.3f} s, with slower steps after it {stall:.3f} s (< 0.5), "
            f"{100 * stall / (INTERVAL * usual):.2f} % of {INTERVAL} steps (< 1); published after "
            f"{published[step]:.2f} s ({speed:.2f} GB/s), validated after {validated[step]:.2f} s"
        )
    plain = plain_write(out, int(size))
    best = size / min(published.values())
    rows.append(
        f"plain write of one file of that size {plain / 1e9:.2f} GB/s; best save {100 * best / plain:.0f} % (>= 70)"
    )
    return rows


def plain_write(out: Path, size: int) -> float:
    """Return bytes per second of writing one large file, with fsync: the best of two."""
    block = os.urandom(1 << 26)
    rates = []
    for _ in range(2):
        path = out / "plain"
        began = time.monotonic()
        with path.open("wb", buffering=0) as file:
            for _ in range(max(1, size // len(block))):
                file.write(block)
            os.fsync(file.fileno())
        rates.append(max(1, size // len(block)) * len(block) / (time.monotonic() - began))
        path.unlink()
    return max(rates)


def measure_oom(out: Path, corpus: Path, shared: dict[str, Any]) -> list[str]:
    """Ask for far too large a micro-batch; run what is advised instead."""
    cpu = shared["backend"] == "gloo"
    model = {**MODEL, "ffn_hidden_size": 8192} if cpu else {**MODEL, **SMALL, **COMMON, "num_layers": 24, "name": "oom"}
    settings = {**shared, "steps": 3, "checkpoint": {"mode": "sync"}, **({"memory_limit_gib": 1.6} if cpu else {})}
    samples = 64 if cpu else 512
    chosen = sizes(micro_batch_size=samples, global_batch_size=samples, zero_stage=1)
    first = make_attempt(out / "oom" / "attempt", corpus, model, chosen, **settings)
    name_gpu(first, cpu)
    code = run(first)
    if not (first / "oom/0.json").exists():
        return [f"oom: no report, the job ended with {code}: {tail(first)}"]
    report = json.loads((first / "oom/0.json").read_text())
    rows = [
        f"oom: code {code}, phase {report['phase']}, rank {report['rank']}, {report['allocated_bytes'] / GIB:.1f} GiB "
        f"allocated, {(report['reserved_bytes'] or 0) / GIB:.1f} reserved, limit {report['limit_bytes'] / GIB:.1f}, "
        f"largest {report['largest_tensors'][0]['shape']}",
        f"oom: advice: {report['planner']}",
    ]
    if report["layout"] is None or report["layout"]["world_size"] != 1:
        return [*rows, "oom: the advice needs more GPUs than there are here"]
    second = make_attempt(out / "advised" / "attempt", corpus, model, report["layout"], **settings)
    name_gpu(second, cpu)
    code = run(second)
    peak = max((event["peak_memory_gib"] for event in events(second) if event["kind"] == "step"), default=0.0)
    return [*rows, f"advised layout: code {code}, peak {peak:.1f} GiB" + ("" if code == 0 else tail(second))]


def name_gpu(attempt: Path, cpu: bool) -> None:
    """Write the real product into the plan, so that the planner knows what it advises on."""
    if cpu:
        return
    import torch

    plan = json.loads((attempt / "plan.json").read_text())
    plan["cluster"]["hosts"][0]["gpu"] = torch.cuda.get_device_name(0)
    (attempt / "plan.json").write_text(json.dumps(plan))


def main() -> int:
    """Run; return 1 if a job ended otherwise than it should."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--layers", type=int, default=16, help="of hidden size 2048; 16 make 12 GiB of state")
    parser.add_argument("--only", choices=("save", "oom"))
    parser.add_argument("--mode", default="async_thread", choices=("async_thread", "async_process"))
    parser.add_argument("--engine", default="flat", choices=("deepspeed", "flat"))
    parser.add_argument("--accumulation", type=int, default=1, help="micro-batches a step, for longer steps")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--cpu", action="store_true", help="small models over gloo")
    values = parser.parse_args()
    shutil.rmtree(values.out / "work", ignore_errors=True)
    work = values.out / "work"
    work.mkdir(parents=True)
    text = write_text(work / "text.txt", words=400_000)
    command = [sys.executable, "-m", "trainer.data", "--input", str(text), "--output", str(work)]
    environment = {**os.environ, "PYTHONPATH": search_path()}
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    shared = kind(values.cpu, values.engine)
    rows = [f"engine {values.engine}"]
    rows += [] if values.only == "oom" else measure_saves(work, work, values, shared)
    rows += [] if values.only == "save" else measure_oom(work, work, shared)
    for pattern in ("save/checkpoints", "oom/checkpoints", "advised/checkpoints"):
        shutil.rmtree(work / pattern, ignore_errors=True)
    sys.stdout.write("\n".join(rows) + "\n")
    (values.out / "table.txt").write_text("\n".join(rows) + "\n")
    return int(any(" ended with " in row for row in rows))


if __name__ == "__main__":
    sys.exit(main())
