"""Starts trainer processes for tests without importing torch anew for each of them.

A server process imports everything once and forks the ranks of a job (CPU only; torchrun stays the way that users start
a job, and one test uses it). Forking is safe because nothing has run before: no thread, no tensor.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Ended:
    """How a job ended: exit codes by rank (negative: killed by that signal) and the ranks' own output."""

    codes: list[int]
    logs: list[str]

    def assert_done(self) -> None:
        """Fail the test with the first rank's output unless all ranks ended with 0."""
        for rank, code in enumerate(self.codes):
            assert code == 0, f"rank {rank} ended with {code}:\n{self.logs[rank][-4000:]}"


class Running:
    """A job in progress."""

    def __init__(self, server: ForkServer, pids: list[int], attempt: Path) -> None:
        self._server, self.pids, self._attempt = server, pids, attempt

    def wait(self, timeout_s: float = 300.0, grace_s: float = 60.0, lost: Sequence[int] = ()) -> Ended:
        """Wait for all ranks; the others get `grace_s` after the first failure, as under torchrun.

        Ranks that are `lost` (stopped by the test) are killed as soon as all others have ended.
        """
        request = {"do": "wait", "timeout_s": timeout_s, "grace_s": grace_s, "lost": list(lost)}
        codes = self._server.ask(request)["codes"]
        logs = [(self._attempt / "logs" / f"{rank}.log").read_text() for rank in range(len(codes))]
        return Ended(codes, logs)

    def signal(self, rank: int, number: signal.Signals) -> None:
        """Send a signal to one rank."""
        os.kill(self.pids[rank], number)


class ForkServer:
    """Client side of the server process."""

    def __init__(self) -> None:
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'plugins/module_utils'}"}
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )

    def start(self, attempt: Path, world_size: int, **environment: str) -> Running:
        """Start the ranks of an attempt on this host."""
        (attempt / "logs").mkdir(exist_ok=True)
        request = {"do": "start", "attempt": str(attempt), "world_size": world_size, "environment": environment}
        return Running(self, self.ask(request)["pids"], attempt)

    def call(self, function: str, where: Path, world_size: int, **arguments: Any) -> Ended:
        """Call `module:function` on several ranks, with torchrun's environment; `where` takes the ranks' output."""
        (where / "logs").mkdir(exist_ok=True)
        request = {"do": "start", "attempt": str(where), "world_size": world_size, "environment": {}}
        request |= {"function": function, "arguments": arguments}
        return Running(self, self.ask(request)["pids"], where).wait()

    def run(self, attempt: Path, world_size: int, **environment: str) -> Ended:
        """Start the ranks of an attempt and wait for them."""
        return self.start(attempt, world_size, **environment).wait()

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send one request and return its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        """End the server."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=120)


def free_port() -> int:
    """Return a port that is free, and stays so: it is none of those that the kernel gives to connections."""
    for port in random.SystemRandom().sample(range(20000, 30000), 1000):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError("no port from 20000 to 30000 is free")


def _fork(request: dict[str, Any]) -> list[int]:
    port, size = free_port(), request["world_size"]
    pids = []
    for rank in range(size):
        pid = os.fork()
        if pid == 0:
            _child(request, rank, size, port)
        pids.append(pid)
    return pids


def _child(request: dict[str, Any], rank: int, size: int, port: int) -> None:
    log = os.open(f"{request['attempt']}/logs/{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(size),
        LOCAL_WORLD_SIZE=str(size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        SLURMD_NODENAME="node-a",
        GLOO_SOCKET_IFNAME="lo",
        TORCHELASTIC_ERROR_FILE=f"{request['attempt']}/logs/{rank}.error.json",
    )
    os.environ.update(request["environment"])
    code = 1
    try:
        code = _work(request)
    except Exception:
        traceback.print_exc()
        raise
    finally:
        sys.stderr.flush()
        os._exit(code)


def _work(request: dict[str, Any]) -> int:
    if "function" in request:
        module, _, name = request["function"].partition(":")
        getattr(importlib.import_module(module), name)(**request["arguments"])
        return 0
    from trainer.__main__ import main

    return main(["--attempt", request["attempt"]])


def _wait(pids: list[int], timeout_s: float, grace_s: float, lost: list[int]) -> list[int]:
    awaited = {pid for rank, pid in enumerate(pids) if rank not in lost}
    codes: dict[int, int] = {}
    deadline = time.monotonic() + timeout_s
    failed = False
    while len(codes) < len(pids):
        for pid in pids:
            if pid not in codes:
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    codes[pid] = os.waitstatus_to_exitcode(status)
        if not failed and any(codes.values()):
            failed, deadline = True, min(deadline, time.monotonic() + grace_s)
        if time.monotonic() > deadline or awaited <= set(codes):
            for pid in set(pids) - set(codes):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    return [codes[pid] for pid in pids]


def _serve() -> None:
    # Some libraries print while they are imported; only answers may go to the client.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    from trainer.platform import prepare_platform

    prepare_platform(cuda=False)
    # The compiler too: some paths load it on their first call, a second of every rank.
    import deepspeed  # noqa: F401
    import torch._dynamo  # noqa: F401

    import trainer.deepspeed_engine
    import trainer.flat_engine
    import trainer.job  # noqa: F401

    pids: list[int] = []
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "start":
            pids = _fork(request)
            answer: dict[str, Any] = {"pids": pids}
        else:
            answer = {"codes": _wait(pids, request["timeout_s"], request["grace_s"], request["lost"])}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    _serve()
