"""Jobs of real ranks over NCCL on the GPUs of this machine."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from tests.support.attempts import write_text

ROOT = Path(__file__).resolve().parents[2]
EVIDENCE = os.environ.get("RACKWEAVE_GPU_EVIDENCE")
"""Directory that receives logs, events and flight recordings of the jobs; nothing is kept where it is not set."""
# Multicast over NVLink can put a shared host's GPUs out of service.
SAFE = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}


@pytest.fixture(scope="session")
def gpus() -> int:
    """Number of GPUs; the test is skipped where there are fewer than two."""
    count = torch.cuda.device_count()
    if count < 2:
        pytest.skip("needs two GPUs")
    return count


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared corpus with both splits."""
    from trainer.data.__main__ import main

    where = tmp_path_factory.mktemp("corpus")
    assert main(["--input", str(write_text(where / "text.txt")), "--output", str(where)]) == 0
    return where


@dataclass
class RunningJob:
    """A torchrun job of an attempt, with its output in the attempt's directory."""

    attempt: Path
    process: subprocess.Popen[bytes]
    name: str
    started: float = field(default_factory=time.monotonic)

    def wait(self, timeout_s: float) -> int:
        """Wait for the end; return torchrun's exit code."""
        return self.process.wait(timeout=timeout_s)

    def wait_until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        """Wait until a condition holds while the job lives."""
        end = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < end, f"{self.name}: waited {timeout_s} s in vain: {self.output()[-2000:]}"
            assert self.process.poll() is None, f"{self.name} ended early: {self.output()[-4000:]}"
            time.sleep(0.2)

    def output(self) -> str:
        """Return what the ranks wrote."""
        return (self.attempt / "torchrun.log").read_text(errors="replace")


@pytest.fixture
def start_job(tmp_path: Path) -> Iterator[Callable[..., RunningJob]]:
    """Start jobs; kill what is left of them at the end, and keep their evidence."""
    jobs: list[RunningJob] = []

    def start(attempt: Path, ranks: int, name: str, **environment: str) -> RunningJob:
        log = (attempt / "torchrun.log").open("wb")
        command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
        command += ["--master-addr", "127.0.0.1", "--master-port", str(_free_port()), "-m", "trainer", "--attempt"]
        paths = [str(ROOT), str(ROOT / "plugins" / "module_utils"), os.environ.get("PYTHONPATH", "")]
        variables = {
            **os.environ,
            **SAFE,
            "PYTHONPATH": os.pathsep.join(paths),
            "GLOO_SOCKET_IFNAME": "lo",
            **environment,
        }
        process = subprocess.Popen([*command, str(attempt)], stdout=log, stderr=subprocess.STDOUT, env=variables)
        jobs.append(RunningJob(attempt, process, name))
        return jobs[-1]

    yield start
    for job in jobs:
        job.process.kill()
        job.process.wait()
        _keep(job)


def _keep(job: RunningJob) -> None:
    if EVIDENCE:
        ignore = shutil.ignore_patterns("*.distcp", "checkpoints")
        shutil.copytree(job.attempt, Path(EVIDENCE) / job.name, dirs_exist_ok=True, ignore=ignore)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
