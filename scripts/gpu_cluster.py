"""Everything that only several GPUs of one host can show, in one call, with one table last.

    python scripts/gpu_cluster.py --out DIR --gpus 8 [--only document,layouts,move,killed,stopped] [--seconds 1500]
    python scripts/gpu_cluster.py --out DIR --gpus 8 --device cpu       # tries itself: small models over gloo

Parts: the machine's node document; all layouts beside DDP and FSDP2 with an all-reduce sweep (scripts/gpu_layouts.py);
a checkpoint that moves to another layout; a killed and a stopped rank with what they leave and the verdict on it.
DIR keeps all outputs, logs of NCCL among them. A part that fails is said in the table; the others still run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "plugins" / "module_utils")]

from rackweave.cli.nvml import nvml_reader  # noqa: E402
from rackweave.cli.system import LocalSystem  # noqa: E402
from rackweave.hardware.collect import collect_node  # noqa: E402
from rackweave.hardware.document import document_text  # noqa: E402

from tests.support.attempts import LLAMA, events, losses, make_attempt, sizes, write_text  # noqa: E402

# A program that uses NVLink multicast can put a shared host's GPUs out of service.
SAFE = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
RAS_PORT = 28028
WIDE = {"hidden_size": 2048, "ffn_hidden_size": 5632, "num_attention_heads": 16, "num_query_groups": 8}
WIDE |= {"name": "move", "num_layers": 8, "head_dim": 128, "sequence_length": 2048}
MOVES = {2: ((2, 1, 1), (1, 2, 1)), 4: ((2, 2, 1), (2, 1, 2)), 8: ((2, 2, 2), (4, 1, 2))}
"""Layouts (TP, PP, DP) that a checkpoint is saved at and loaded at, by number of GPUs."""


@dataclass(frozen=True)
class Bench:
    """Where and on what all parts run."""

    out: Path
    gpus: int
    cuda: bool
    corpus: Path
    seconds: float
    global_batch: int

    def attempt(self, name: str, shape: tuple[int, int, int], **changes: Any) -> Path:
        """Write an attempt for a layout; `changes` go into train.json."""
        shared: dict[str, Any] = {"dtype": "bfloat16" if self.cuda else "float32"}
        shared |= {"backend": "nccl" if self.cuda else "gloo", "engine": "flat", "optimizer": {"learning_rate": 3e-4}}
        model = {**LLAMA, **WIDE} if self.cuda else {**LLAMA, "num_query_groups": 4}
        chosen = sizes(*shape, global_batch_size=16, zero_stage=1)
        return make_attempt(
            self.out / name / "attempt", self.corpus, model, chosen, socket.gethostname(), **{**shared, **changes}
        )


@dataclass(frozen=True)
class Job:
    """A torchrun job whose output goes to the attempt's torchrun.log."""

    attempt: Path
    process: subprocess.Popen[bytes]

    def pid(self, rank: int) -> int:
        """Return the process id of a rank."""
        return int(json.loads((self.attempt / "phase" / f"{rank}.json").read_text())["pid"])

    def wait_until(self, condition: Callable[[], bool], what: str, timeout_s: float) -> None:
        """Wait while the job lives; raise RuntimeError where it ends, or the time does."""
        end = time.monotonic() + timeout_s
        while not condition():
            if self.process.poll() is not None or time.monotonic() > end:
                tail = (self.attempt / "torchrun.log").read_text(errors="replace")[-600:]
                raise RuntimeError(f"waited in vain for {what}: {tail}")
            time.sleep(0.2)

    def wait_until_it_ends(self, timeout_s: float) -> None:
        """Wait until a rank has written how it ended, or torchrun has ended."""
        end = time.monotonic() + timeout_s
        while self.process.poll() is None and not list((self.attempt / "result").glob("*.json")):
            if time.monotonic() > end:
                raise RuntimeError(f"no rank had ended {timeout_s:g} s after another one was lost")
            time.sleep(0.2)


def start(bench: Bench, attempt: Path, **environment: str) -> Job:
    """Start a job of all GPUs."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(bench.gpus), "--master-port"]
    command += [str(_free_port()), "-m", "trainer", "--attempt", str(attempt)]
    log = (attempt / "torchrun.log").open("wb")
    process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=_environment(**environment))
    return Job(attempt, process)


def node_document(bench: Bench) -> list[str]:
    """Write what this machine is: NVML, NVLink, topology."""
    document = collect_node(LocalSystem(["/"]), "node-a", "measured", platform.python_version(), nvml_reader())
    (bench.out / "node-a.json").write_text(document_text(document), encoding="utf-8")
    if bench.cuda:
        topology = subprocess.run(["nvidia-smi", "topo", "-m"], capture_output=True, text=True, check=True)
        (bench.out / "topology.txt").write_text(topology.stdout, encoding="utf-8")
    return [f"{len(document.as_dict()['gpus'])} GPUs in node-a.json"]


def layouts(bench: Bench) -> list[str]:
    """Run all layouts and peers; the last lines are their table."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(bench.gpus), "--master-port"]
    command += [str(_free_port()), str(ROOT / "scripts" / "gpu_layouts.py"), "--out", str(bench.out / "layouts")]
    command += ["--seconds", str(bench.seconds), "--device", "cuda" if bench.cuda else "cpu"]
    # A 7B-like model: 32 layers; fewer on fewer GPUs, whose memory would not hold its states.
    command += (
        ["--layers", str(4 * bench.gpus), "--global-batch", str(bench.global_batch)]
        if bench.cuda
        else ["--tiny", "--global-batch", "8", "--steps", "1:2"]
    )
    info = _nccl_log(bench.out / "layouts")
    done = subprocess.run(command, capture_output=True, text=True, env=_environment(**info), check=False)
    (bench.out / "layouts.txt").write_text(done.stdout + done.stderr, encoding="utf-8")
    if done.returncode:
        raise RuntimeError(f"the layouts ended with {done.returncode}: {done.stdout[-6000:]}{done.stderr[-600:]}")
    return done.stdout.splitlines()


def move(bench: Bench) -> list[str]:
    """Save at one layout, go on at another; compare with a run that was never interrupted."""
    first, second = MOVES[bench.gpus]
    saving = {"checkpoint": {"directory": str(bench.out / "move-checkpoints"), "interval": 3, "mode": "async_thread"}}
    apart = {"checkpoint": {"directory": str(bench.out / "whole-checkpoints"), "interval": 0}}
    runs = {
        "move-save": bench.attempt("move-save", first, steps=7, **saving),
        "move-load": bench.attempt("move-load", second, steps=14, **saving),
        "move-whole": bench.attempt("move-whole", first, steps=14, **apart),
    }
    for name, attempt in runs.items():
        code = start(bench, attempt, **_nccl_log(attempt)).process.wait(timeout=600)
        if code:
            tail = (attempt / "torchrun.log").read_text(errors="replace")[-600:]
            raise RuntimeError(f"{name} ended with {code}: {tail}")
    moved, whole = losses(runs["move-save"]) + losses(runs["move-load"]), losses(runs["move-whole"])
    worst = max(abs(a - b) for a, b in zip(moved, whole))
    stalls = [event["seconds"] for event in events(runs["move-save"], "checkpoint") if event["state"] == "saved"]
    return [
        f"saved at TP, PP, DP = {first}, loaded at {second}: losses of 14 steps within {worst:.2g} of an uninterrupted "
        f"run's (bf16 noise: 0.02); calls of an asynchronous save {max(stalls):.3f} s at most"
    ]


def killed(bench: Bench) -> list[str]:
    """Kill the last rank in the middle of training."""
    return _lost_rank(bench, "killed", signal.SIGKILL)


def stopped(bench: Bench) -> list[str]:
    """Stop the last rank in the middle of training."""
    return _lost_rank(bench, "stopped", signal.SIGSTOP)


def _lost_rank(bench: Bench, name: str, number: signal.Signals) -> list[str]:
    shape, victim = MOVES[bench.gpus][0], bench.gpus - 1
    attempt = bench.attempt(name, shape, steps=1_000_000, timeouts={"collective_s": 20})
    job = start(bench, attempt, **_nccl_log(attempt), **_recorder(attempt))
    process = None
    try:
        job.wait_until(lambda: (attempt / "events.jsonl").exists() and len(losses(attempt)) >= 5, "five steps", 300)
        process = job.pid(victim)
        # Beside the attempt: counts that differ mean nothing while they grow, so this is no evidence of a hang.
        _keep_ras(bench, attempt.parent / "ras-healthy.txt")
        os.kill(process, number)
        began = time.monotonic()
        # torchrun ends the others of a killed rank soon, and RAS with them; a stopped one is only seen after a while.
        time.sleep(0.2 if number is signal.SIGKILL else 5)
        _keep_ras(bench, attempt / "ras.txt")
        # NCCL's watchdog gives the others 60 s to record theirs before it ends its process.
        job.wait_until_it_ends(200)
        ended = time.monotonic() - began
    finally:
        if process is not None and number is signal.SIGSTOP:
            with contextlib.suppress(ProcessLookupError):  # torchrun has killed it already
                os.kill(process, signal.SIGKILL)  # torchrun asks a stopped process in vain
        if process is None:
            job.process.terminate()
        code = job.process.wait(timeout=180)
    dumps = [path for path in (attempt / "flight").iterdir() if path.stat().st_size]
    return [
        f"rank {victim} {name}: first end after {ended:.0f} s, torchrun ended with {code}, {len(dumps)} flight "
        f"recordings, RAS: {(attempt / 'ras.txt').read_text().strip().splitlines()[0][:60]}",
        f"verdict: {_verdict(attempt)}",
    ]


def _verdict(attempt: Path) -> str:
    command = [sys.executable, "-m", "rackweave", "diagnose", "--json", str(attempt)]
    done = subprocess.run(command, capture_output=True, text=True, env=_environment(), check=False)
    (attempt.parent / "verdict.json").write_text(done.stdout, encoding="utf-8")
    if done.returncode:
        return f"diagnose ended with {done.returncode}: {done.stderr.strip()[-300:]}"
    verdict = json.loads(done.stdout)
    return f"{verdict['diagnosis_class']}, culprit {verdict['culprit']}, phase {verdict['phase']}"


def _environment(**more: str) -> dict[str, str]:
    paths = [str(ROOT), str(ROOT / "plugins" / "module_utils"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, **SAFE, "PYTHONPATH": os.pathsep.join(paths), "GLOO_SOCKET_IFNAME": "lo", **more}


def _nccl_log(where: Path) -> dict[str, str]:
    where.mkdir(parents=True, exist_ok=True)
    names = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,GRAPH,NET,ENV"}
    return {**names, "NCCL_DEBUG_FILE": str(where / "nccl.%h.%p.log")}


def _recorder(attempt: Path) -> dict[str, str]:
    """Return what makes NCCL's watchdog dump its last collectives, under the names of old and new torch, and RAS."""
    (attempt / "flight").mkdir()
    dump = str(attempt / "flight" / "nccl_trace_rank_")
    sizes_of_buffer = {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"}
    files = {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": dump, "TORCH_FR_DUMP_TEMP_FILE": dump}
    return {"TORCH_NCCL_DUMP_ON_TIMEOUT": "1", "NCCL_RAS_ENABLE": "1", **sizes_of_buffer, **files}


def _keep_ras(bench: Bench, path: Path) -> None:
    path.write_text(_ask_ras() if bench.cuda else "no NCCL on CPUs\n", encoding="utf-8")


def _ask_ras() -> str:
    """Return what NCCL's RAS service says of all ranks, or why it did not answer."""
    try:
        with socket.create_connection(("localhost", RAS_PORT), timeout=5) as connection:
            # Each leg of its question to a silent process takes it several time-outs of its own.
            connection.settimeout(60)
            connection.sendall(b"CLIENT PROTOCOL 2\nTIMEOUT 5\nVERBOSE STATUS\n")
            answer = b""
            while part := connection.recv(65536):
                answer += part
            return answer.decode(errors="replace")
    except OSError as error:
        return f"no answer: {error}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


PARTS: dict[str, Callable[[Bench], list[str]]] = {
    "document": node_document,
    "layouts": layouts,
    "move": move,
    "killed": killed,
    "stopped": stopped,
}


def main() -> int:
    """Run the parts; return 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--gpus", type=int, choices=sorted(MOVES), required=True)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--seconds", type=float, default=900.0, help="after which no further layout is begun")
    parser.add_argument("--global-batch", type=int, default=64, help="of the layouts, in sequences")
    values = parser.parse_args()
    unknown = sorted(set(values.only.split(",")) - set(PARTS))
    if unknown:
        parser.error(f"--only: {', '.join(unknown)} is none of {', '.join(PARTS)}")
    values.out.mkdir(parents=True, exist_ok=True)
    text = write_text(values.out / "text.txt", words=400_000 if values.device == "cuda" else 60_000)
    command = [sys.executable, "-m", "trainer.data", "--input", str(text), "--output", str(values.out / "corpus")]
    subprocess.run(command, env=_environment(), check=True, stdout=subprocess.DEVNULL)
    bench = Bench(
        values.out, values.gpus, values.device == "cuda", values.out / "corpus", values.seconds, values.global_batch
    )
    table = [] if bench.cuda else ["gloo on CPUs: nothing below says anything of NCCL, NVLink or a GPU"]
    failed = False
    for name in values.only.split(","):
        began = time.monotonic()
        try:
            lines = PARTS[name](bench)
        except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
            lines, failed = [f"FAILED: {error}"], True
        table += [f"== {name} ({time.monotonic() - began:.0f} s)", *lines]
        (values.out / "table.txt").write_text("\n".join(table) + "\n", encoding="utf-8")
    sys.stdout.write("\n".join(table) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
