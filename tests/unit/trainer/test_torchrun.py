"""The way that users start a job, with nothing shared or forked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.attempts import MODEL, losses, make_attempt, sizes
from tests.support.launch import ROOT, ForkServer, free_port

pytestmark = pytest.mark.multiprocess


ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": f"{ROOT}:{ROOT / 'plugins/module_utils'}",
    "SLURMD_NODENAME": "node-a",
    "GLOO_SOCKET_IFNAME": "lo",
}


def torchrun(attempt: Path, ranks: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={ranks}"]
    command += [f"--master_port={free_port()}", "-m", "trainer", "--attempt", str(attempt)]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=False)


def test_a_job_under_torchrun_trains_and_ends_with_0(corpus: Path, tmp_path: Path) -> None:
    attempt = make_attempt(tmp_path / "attempt", corpus, MODEL, sizes(dp=2), steps=3)
    done = torchrun(attempt, 2)
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(losses(attempt)) == 3


def test_a_refused_job_says_one_sentence_once(corpus: Path, tmp_path: Path) -> None:
    attempt = make_attempt(tmp_path / "attempt", corpus, MODEL, sizes(dp=2))
    (attempt / "train.json").unlink()
    done = torchrun(attempt, 2)
    assert done.returncode != 0
    # torchrun may end one rank before it has written its own; each that is there says "stop".
    results = {int(path.stem): json.loads(path.read_text())["code"] for path in (attempt / "result").glob("*.json")}
    assert set(results.values()) == {64}
    # Rank 0 speaks before it writes its result; it may have been ended before either.
    assert done.stderr.count("train.json does not exist") in ((1,) if 0 in results else (0, 1))


def test_of_two_ranks_that_refuse_a_job_the_first_speaks(launcher: ForkServer, corpus: Path, tmp_path: Path) -> None:
    attempt = make_attempt(tmp_path / "attempt", corpus, MODEL, sizes(dp=2))
    (attempt / "train.json").unlink()
    ended = launcher.run(attempt, 2)
    assert ended.codes == [64, 64]
    assert [log.count("train.json does not exist") for log in ended.logs] == [1, 0]


def test_a_job_on_the_flat_engine_runs_where_deepspeed_cannot_be_imported(corpus: Path, tmp_path: Path) -> None:
    attempt = make_attempt(tmp_path / "attempt", corpus, MODEL, sizes(zero_stage=1), steps=1, engine="flat")
    program = "import sys; sys.modules['deepspeed'] = None; from trainer.__main__ import leave, main; leave(main())"
    own = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, "-c", program, "--attempt", str(attempt)],
        env={**ENVIRONMENT, **own, "MASTER_PORT": str(free_port())},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(losses(attempt)) == 1
