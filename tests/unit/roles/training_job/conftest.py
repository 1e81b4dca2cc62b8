"""A run directory on disk and stand-ins for Slurm and torchrun, for tests of the launch scripts as they are shipped."""

import contextlib
import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from rackweave.provision.runtime import JobRuntime, runtime_conf
from rackweave.run.batch import BatchSettings, render_batch
from rackweave.run.files import NODE_SCRIPTS
from rackweave.run.plan_file import parse_plan

from tests.support.programs import path_with

ROOT = Path(__file__).parents[4]
SCRIPTS = ROOT / "roles" / "training_job" / "files"
STUBS = ROOT / "tests" / "fixtures" / "launch"
CONTRACTS = ROOT / "tests" / "fixtures" / "contracts"


@dataclass
class Job:
    """One start of a job of run `demo` under the stand-ins."""

    run_dir: Path
    settings: dict = field(default_factory=dict)
    env: dict = field(default_factory=dict)

    @property
    def attempt(self) -> Path:
        return self.run_dir / "attempts" / f"77.{self.env.get('SLURM_RESTART_COUNT', '0')}"

    def start(self) -> subprocess.Popen:
        plan_dir = self.run_dir / "plan"
        plan = parse_plan((plan_dir / "plan.json").read_text())
        values = {
            "run": "demo",
            "run_dir": str(self.run_dir),
            "venv": str(self.run_dir / "venv"),
            "command": ("python3", str(STUBS / "program.py"), "{attempt}"),
            "time_limit_s": 3600,
            "save_signal_s": 60,
            "stall_s": 600,
            "requeue_ok": False,
            "max_restarts": 2,
            "gpus_per_node": 2,
            **self.settings,
        }
        script = plan_dir / "job.sbatch"
        script.write_text(render_batch(BatchSettings(**values), plan, (SCRIPTS / "job_body.sh").read_text()))
        env = {
            "PATH": path_with(STUBS),
            "HOME": str(self.run_dir),
            "STUB_LOG": str(self.run_dir / "stub.log"),
            "SLURM_JOB_ID": "77",
            "SLURM_JOB_NODELIST": "node-a,node-b",
            **self.env,
        }
        return subprocess.Popen(
            ["bash", str(script)], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def run(self, timeout: float = 240) -> tuple[int, str]:
        """Return status and output; within less than the ten minutes after which a standstill ends a job unasked."""
        process = self.start()
        output, _ = process.communicate(timeout=timeout)
        return process.returncode, output

    def json(self, name: str) -> dict:
        return json.loads((self.attempt / name).read_text())

    def stub_lines(self, word: str) -> list[str]:
        log = self.run_dir / "stub.log"
        lines = log.read_text().splitlines() if log.exists() else []
        return [line.split(" ", 1)[1] for line in lines if line.startswith(word + " ")]

    def lasting_survivors(self, seconds: float = 20) -> list[int]:
        """Processes of this attempt that stay; one that was killed may need a moment to go on a busy machine."""
        deadline = time.monotonic() + seconds
        while (left := self.survivors()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return left

    def survivors(self) -> list[int]:
        """Processes that still carry this attempt in their environment."""
        mark = f"RACKWEAVE_ATTEMPT={self.attempt}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        found.append(int(entry.name))
                except OSError:
                    continue
        return found


@pytest.fixture
def job(tmp_path):
    run_dir = tmp_path / "runs" / "demo"
    plan_dir = run_dir / "plan"
    (plan_dir / "nccl").mkdir(parents=True)
    for name in ("plan.json", "train.json"):
        (plan_dir / name).write_text((CONTRACTS / name).read_text())
    for name in NODE_SCRIPTS:
        (plan_dir / name).write_text((SCRIPTS / name).read_text())
    (plan_dir / "runtime.conf").write_text(runtime_conf(JobRuntime("venv")))
    (plan_dir / "nccl" / "node-a.conf").write_text(
        "# of node-a\nGLOO_SOCKET_IFNAME=eth7\nNCCL_IB_HCA==mlx5_0:1,mlx5_1:1\n"
    )
    (plan_dir / "nccl" / "node-b.conf").write_text("GLOO_SOCKET_IFNAME=bond0\nNCCL_NOTE=two words; $HOME `id`\n")
    made = Job(run_dir)
    yield made
    deadline = time.monotonic() + 20
    while (left := made.survivors()) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
