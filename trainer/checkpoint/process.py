"""Publishing in a process of its own, one beside each rank: hashing and writing then never hold the trainer's GIL.

It is spawned, not forked (a forked process must not follow CUDA), reads the staged state from shared memory, and has
its own gloo group, found through the store of the job. It ends with its rank, however that ends.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Callable

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch._C._distributed_c10d import PrefixStore, TCPStore

from ..errors import RetryError
from .directory import CheckpointDirectory, Published
from .publish import Publisher, Snapshot, Writers
from .rectangles import Shards

ORPHAN_CHECK_S = 1.0
GOODBYE_S = 10.0


@dataclass(frozen=True)
class Saver:
    """What a publishing process must know; `address` and `port` are those of the job's store."""

    directory: Path
    run: str
    keep: int
    rank: int
    world_size: int
    address: str
    port: int
    patience_s: float


class ProcessPublisher:
    """Has the interface of Publisher; the work is done elsewhere."""

    def __init__(self, saver: Saver, event: Callable[..., None]) -> None:
        self._saver, self._event = saver, event
        self._known: Mapping[str, Shards] | None = None
        self.started_from: frozenset[int] = frozenset()
        context = torch.multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, saver, os.getpid()), name="checkpoint", daemon=True)
        self._process.start()
        other.close()

    def publish(self, snapshot: Snapshot) -> Published:
        """Publish one snapshot; its tensors must lie in shared memory, and be the same ones each time.

        Raises:
            RetryError: as Publisher does, or if the process is gone.
        """
        fresh = snapshot.shards if self._known is not snapshot.shards else None
        facts = (snapshot.step, snapshot.state, snapshot.random_state, snapshot.bytes, self.started_from)
        try:
            self._pipe.send((fresh, facts))
            self._known = snapshot.shards
            return self._follow(snapshot.step)
        except (EOFError, BrokenPipeError, ConnectionError) as error:
            self._process.join(GOODBYE_S)
            raise RetryError(
                f"checkpoint of step {snapshot.step} was not written: the publishing process of rank "
                f"{self._saver.rank} ended with {self._process.exitcode}"
            ) from error

    def problem(self) -> str | None:
        """Return what became of the process, or None while it lives; it is never started again."""
        if self._process.is_alive():
            return None
        return f"the publishing process of rank {self._saver.rank} ended with {self._process.exitcode}"

    def close(self) -> None:
        """End the process."""
        self._pipe.close()
        self._process.join(GOODBYE_S)

    def _follow(self, step: int) -> Published:
        while True:
            kind, content = self._pipe.recv()
            if kind == "event":
                self._event("checkpoint", **content)
            elif kind == "failed":
                raise RetryError(content)
            else:
                return Published(step, Path(content))


def _serve(pipe: Connection, saver: Saver, parent: int) -> None:
    """Publish what comes through the pipe until it closes, or `parent`, the rank, ends (maybe before this begins)."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    for number in (signal.SIGUSR1, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    torch.set_num_threads(1)

    def event(_kind: str, **content: Any) -> None:
        pipe.send(("event", content))

    directory = CheckpointDirectory(saver.directory, saver.run)
    publisher = Publisher(directory, _writers(saver), saver.keep, lambda step: None, event)
    shards: Mapping[str, Shards] = {}
    while True:
        try:
            fresh, (step, state, random_state, size, publisher.started_from) = pipe.recv()
        except EOFError:
            break
        shards = shards if fresh is None else fresh
        try:
            published = publisher.publish(Snapshot(step, shards, state, random_state, size))
            pipe.send(("done", str(published.path)))
        except RetryError as error:
            pipe.send(("failed", str(error)))
    # Peers may be gone: nothing is waited for.
    os._exit(0)


def _writers(saver: Saver) -> Writers:
    patience = timedelta(seconds=saver.patience_s)
    store = TCPStore(saver.address, saver.port, is_master=False, timeout=patience)
    dist.init_process_group(
        "gloo",
        store=PrefixStore("checkpoint-processes", store),
        rank=saver.rank,
        world_size=saver.world_size,
        timeout=patience,
    )
    return Writers(saver.rank, saver.world_size, dist.group.WORLD)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(ORPHAN_CHECK_S)
    os._exit(1)
