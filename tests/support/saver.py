"""A process that saves checkpoints without a trainer: what the torture test kills. No Megatron, so it starts fast."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from trainer.checkpoint.directory import CheckpointDirectory
from trainer.checkpoint.publish import Publisher, Snapshot, Writers
from trainer.checkpoint.rectangles import Rectangle, Shards
from trainer.checkpoint.storage import hash_file
from trainer.checkpoint.verify import seal

ROOT = Path(__file__).resolve().parents[2]
SHAPE = (64, 48)
NAMES = ("master.a", "exp_avg.a", "master.b")


def value(name: str, step: int) -> torch.Tensor:
    """Return the content that a tensor has at a step."""
    generator = torch.Generator().manual_seed(step * 100 + NAMES.index(name))
    return torch.randn(SHAPE, generator=generator)


def snapshot(step: int) -> Snapshot:
    """Return the whole state of a step."""
    shards = {}
    for name in NAMES:
        shards[name] = Shards(SHAPE)
        shards[name].rectangles.append(Rectangle((0, 0), value(name, step)))
    return Snapshot(step, shards, {"step": step, "run": "torture"}, {}, bytes=len(NAMES) * SHAPE[0] * SHAPE[1] * 4)


def save_steps(
    where: Path, steps: range, observe: Callable[[str], None], keep: int = 2, record: Path | None = None
) -> None:
    """Publish steps one after the other; `record` gets a line for each that was published and validated."""
    directory = CheckpointDirectory(where, "torture")
    directory.claim()
    try:
        directory.remove_leftovers()
        publisher = Publisher(directory, Writers(), keep, observe, lambda *_, **__: None)
        for step in steps:
            publisher.publish(snapshot(step))
            if record is not None:
                _append(record, step)
    finally:
        directory.release()


def save_as_if_by(ranks: int, where: Path) -> Path:
    """Save one step, and change the checkpoint to one that many ranks wrote: each with a file and a manifest."""
    save_steps(where, range(1, 2), lambda name: None)
    path = where / "step_1"
    manifest = json.loads((path / "manifest/0.json").read_text())
    for rank in range(ranks):
        shard = path / f"__{rank}_1.distcp"
        shard.write_bytes(bytes([rank % 256]) * 1000)
        files = {shard.name: hash_file(shard), **(manifest["files"] if rank == 0 else {})}
        content = {**manifest, "rank": rank, "world_size": ranks, "files": files}
        (path / f"manifest/{rank}.json").write_text(json.dumps(content))
    seal(path)
    return path


def _append(record: Path, step: int) -> None:
    with record.open("a") as file:
        file.write(f"{step}\n")
        file.flush()
        os.fsync(file.fileno())


class Saver:
    """A warm process that forks one that saves, and says how that ended: the import of torch is paid once."""

    def __init__(self) -> None:
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'plugins/module_utils'}"}
        command = [sys.executable, "-m", "tests.support.saver"]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            text=True,
        )

    def start(self, where: Path, steps: range, die_at: str = "", record: Path | None = None) -> int:
        """Start a process that saves steps and kills itself when it reaches a publish step; return its id."""
        assert self._process.stdin is not None
        request = {"where": str(where), "first": steps.start, "stop": steps.stop, "die_at": die_at}
        self._process.stdin.write(json.dumps({**request, "record": str(record) if record else None}) + "\n")
        self._process.stdin.flush()
        return int(self._answer())

    def wait(self) -> int:
        """Return the exit code of the process, negative for a signal."""
        return int(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def close(self) -> None:
        """End the warm process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=120)


def _child(request: dict[str, Any]) -> None:
    def observe(name: str) -> None:
        if name == request["die_at"]:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.002)

    record = Path(request["record"]) if request["record"] else None
    save_steps(Path(request["where"]), range(request["first"], request["stop"]), observe, record=record)


def _serve() -> None:
    torch.set_num_threads(1)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _child(json.loads(line))
            os._exit(0)
        sys.stdout.write(f"{child}\n")
        sys.stdout.flush()
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _serve()
