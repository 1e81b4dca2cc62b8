"""Random damage to plan.json, train.json and ds_config.json: what the trainer does not take, it refuses in a sentence.

python scripts/fuzz_job.py [--count 2000] [--seed 1]

Each damaged attempt is given to a forked trainer on one CPU rank. It must end with exit code 64, one sentence and no
traceback before any model is built, or reach the model; of those that reach it every tenth is trained for a step.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import os
import random
import re
import resource
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "plugins" / "module_utils")]

REACHED_MODEL = 200
MEMORY_BYTES = 6 << 30
PATIENCE_S = 60.0
NUMBERS = [-1, 0, 1, 2, 3, 5, 7, 64, 2**31, 2**63, 10**30, 0.5, -0.5, 1e308, 1e-320, float("nan"), float("inf")]
TEXTS = ["", "x", " ", "\x00", "a\x00b", "ü\ud800", "../x", "/dev/null", "/dev/full", "/proc/self/mem", "a" * 5000, "1"]
OTHERS = [None, True, False, [], {}, [[]], [None], {"a": 1}, [1, "x"]]
RAW = ["truncate", "flip", "nul", "bom", "latin", "deep", "digits", "twice", "empty", "list", "directory"]


@dataclass(frozen=True)
class Outcome:
    """How one damaged attempt ended."""

    code: int
    said: list[str]
    trained: bool


def places(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value."""
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from places(value, (*path, key))


def change(content: Any, chance: random.Random) -> str:
    """Change one value in place; return what was done."""
    path = chance.choice(list(places(content)))
    holder = content
    for key in path[:-1]:
        holder = holder[key]
    old, how = holder[path[-1]], chance.choice(["number", "text", "other", "near", "near", "delete", "unknown"])
    if how == "delete":
        del holder[path[-1]]
        return f"{path} deleted"
    if how == "unknown" and isinstance(holder, dict):
        holder["unknown"] = chance.choice(OTHERS)
        return f"{path[:-1]} has an unknown key"
    if how == "near" and isinstance(old, (int, float)) and not isinstance(old, bool):
        new: Any = chance.choice([old + 1, old - 1, -old, old * 2, old * 1000, float(old), str(old), [old]])
    else:
        new = chance.choice({"number": NUMBERS, "text": TEXTS}.get(how, OTHERS))
    holder[path[-1]] = copy.deepcopy(new)
    return f"{path}: {old!r:.40} became {new!r:.40}"


def damage_text(file: Path, chance: random.Random) -> str:
    """Damage the bytes of a file; return what was done."""
    how, data = chance.choice(RAW), bytearray(file.read_bytes())
    where = chance.randrange(len(data))
    if how == "flip":
        data[where] ^= 1 << chance.randrange(8)
    digits = b"9" * 5000
    replaced = {
        "truncate": data[:where],
        "flip": data,
        "nul": data[:where] + b"\x00" + data[where:],
        "bom": b"\xef\xbb\xbf" + data,
        "latin": data[:where] + b"\xe4" + data[where:],
        "deep": b"[" * 100_000,
        "digits": data.replace(b"1234", digits).replace(b'"global_batch_size": 8', b'"global_batch_size": ' + digits),
        "twice": data + data,
        "empty": b"",
        "list": b"[" + data + b"]",
    }
    if how == "directory":
        file.unlink()
        file.mkdir()
    else:
        file.write_bytes(bytes(replaced[how]))
    return f"{file.name}: {how}"


def damage(attempt: Path, chance: random.Random) -> str:
    """Damage one of the three files of an attempt once or twice; return what was done."""
    file = attempt / chance.choice(["plan.json", "train.json", "train.json", "ds_config.json"])
    if chance.random() < 0.1:
        return damage_text(file, chance)
    content = json.loads(file.read_text())
    done = [change(content, chance) for _ in range(chance.choice([1, 1, 1, 2]))]
    file.write_text(json.dumps(content))
    return f"{file.name}: {'; '.join(done)}"


def run(attempt: Path, train: bool) -> Outcome:
    """Run one rank on an attempt in a fork; stop it where the model would be built unless it is to be trained."""
    log, pid = attempt / "log", os.fork()
    if pid == 0:
        _child(attempt, log, train)
    deadline = time.monotonic() + PATIENCE_S
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            break
        if time.monotonic() > deadline:
            os.kill(pid, 9)
        time.sleep(0.005)
    return Outcome(os.waitstatus_to_exitcode(status), log.read_text(errors="replace").splitlines(), train)


def _child(attempt: Path, log: Path, train: bool) -> None:
    import trainer.job
    from trainer.__main__ import main

    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.chdir(attempt)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    if not train:
        trainer.job.outline_stages = lambda *_: os._exit(REACHED_MODEL)  # type: ignore[assignment]
    from tests.support.launch import free_port

    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_WORLD_SIZE="1", MASTER_ADDR="127.0.0.1")
    os.environ.update(MASTER_PORT=str(free_port()), SLURMD_NODENAME="node-a", GLOO_SOCKET_IFNAME="lo")
    code = 1
    with contextlib.suppress(SystemExit):
        try:
            code = main(["--attempt", str(attempt)])
        finally:
            sys.stderr.flush()
            os._exit(code)


def fault_of(outcome: Outcome) -> str | None:
    """Return what is wrong with an outcome, or None."""
    text = "\n".join(outcome.said)
    if "Traceback" in text:
        return "a traceback"
    if outcome.code in (0, REACHED_MODEL):
        return None
    if outcome.code != 64:
        return f"exit code {outcome.code}"
    sentences = [line for line in outcome.said if re.match(r"trainer: |(.* trainer: )?stop: ", line)]
    return None if len(sentences) == 1 else f"{len(sentences)} sentences"


def make(where: Path, corpus: Path, chance: random.Random) -> Path:
    """Write an attempt that is right, of one of several kinds."""
    from tests.support.attempts import LLAMA, MODEL, make_attempt, sizes

    extra: dict[str, Any] = {
        "guard": {"policy": "skip", "spike_factor": 3.0, "window": 50, "limit": 5},
        "engine": chance.choice(["deepspeed", "flat"]),
        "memory_limit_gib": None,
        "offload_directory": str(where / "local"),
    }
    if chance.random() < 0.3:
        extra["lora"] = {"rank": 8, "alpha": 16.0, "targets": ["linear_qkv", "linear_proj"]}
    attempt = make_attempt(
        where / "attempt", corpus, chance.choice([MODEL, LLAMA]), sizes(zero_stage=1), steps=1, **extra
    )
    settings = {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}
    settings |= {"zero_optimization": {"stage": 1, "overlap_comm": False, "reduce_bucket_size": 1000000}}
    settings |= {"gradient_clipping": 1.0, "bf16": {"enabled": False}}
    (attempt / "ds_config.json").write_text(json.dumps(settings))
    return attempt


def main() -> int:
    """Damage, run and judge; return 1 if any outcome is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    wanted = parser.parse_args()
    from trainer.platform import prepare_platform

    prepare_platform(cuda=False)
    import deepspeed  # noqa: F401

    import trainer.deepspeed_engine
    import trainer.flat_engine
    import trainer.job  # noqa: F401
    from tests.support.attempts import write_text
    from trainer.data.__main__ import main as prepare_data

    base = Path(tempfile.mkdtemp(prefix="fuzz-job-"))
    prepare_data(["--input", str(write_text(base / "text.txt")), "--output", str(base / "corpus")])
    chance, ends, faults = random.Random(wanted.seed), Counter[str](), 0
    for number in range(wanted.count):
        where = base / str(number)
        attempt = make(where, base / "corpus", chance)
        what = damage(attempt, chance)
        outcome = run(attempt, train=number % 10 == 0)
        kind = {0: "trained", REACHED_MODEL: "reached the model", 64: "refused"}.get(outcome.code, "other")
        ends[kind] += 1
        fault = fault_of(outcome)
        if fault is not None:
            faults += 1
            last = [line for line in outcome.said if line.strip()][-1:]
            sys.stdout.write(f"#{number} {fault}: {what}\n    {last}\n")
            sys.stdout.flush()
        shutil.rmtree(where, ignore_errors=True)
    shutil.rmtree(base)
    sys.stdout.write(f"{wanted.count} damaged attempts: {dict(ends)}; {faults} faults\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
