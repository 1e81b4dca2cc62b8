"""Evidence on a node: every collector keeps its limit and speaks for itself."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory in front of PATH for stand-ins of tools that this machine lacks."""
    directory = tmp_path / "bin"
    directory.mkdir()
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")
    return directory


def _tool(directory: Path, name: str, script: str) -> None:
    path = directory / name
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)


def test_a_tool_that_hangs_is_stopped_at_its_limit_and_the_others_go_on(run_module, tools) -> None:
    _tool(tools, "ncclras", "trap '' TERM; sleep 240")
    _tool(
        tools, "dmesg", "echo '[Sun Aug  2 02:03:11 2026] NVRM: Xid (PCI:0000:91:00): 79, GPU has fallen off the bus.'"
    )
    began = time.monotonic()
    result = run_module("job_evidence", only=["ncclras", "dmesg"], counter_seconds=0)
    assert time.monotonic() - began < 120
    assert {name: state["state"] for name, state in result["collectors"].items()} == {
        "ncclras": "timeout", "dmesg": "ok", "dumps": "absent"}  # fmt: skip
    assert "Xid" in result["texts"]["dmesg"]


def test_an_absent_and_a_failing_tool_say_so(run_module, tools) -> None:
    _tool(tools, "nvidia-smi", "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18")
    result = run_module("job_evidence", only=["gpus", "slurm_job"], counter_seconds=0)
    assert result["collectors"]["gpus"]["state"] == "failed"
    assert result["collectors"]["slurm_job"]["state"] == "absent"


def test_a_stopped_rank_is_seen(run_module) -> None:
    rank = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "trainer"])
    try:
        rank.send_signal(signal.SIGSTOP)
        os.waitpid(rank.pid, os.WUNTRACED)  # until it has stopped
        result = run_module("job_evidence", processes=[rank.pid], only=["processes"], counter_seconds=0)
    finally:
        rank.kill()
        rank.wait()
    assert result["stopped"] == {str(rank.pid): "T"}


def test_written_evidence_is_read_by_the_diagnosis_and_never_overwritten(run_module, tools, tmp_path) -> None:
    from rackweave.cli import main

    _tool(
        tools, "dmesg", "echo '[Sun Aug  2 02:03:11 2026] NVRM: Xid (PCI:0000:91:00): 79, GPU has fallen off the bus.'"
    )
    attempt = tmp_path / "attempt"
    dest = str(attempt / "evidence" / "gpu07")
    first = run_module("job_evidence", only=["dmesg"], counter_seconds=0, dest=dest)
    second = run_module("job_evidence", only=["dmesg"], counter_seconds=0, dest=dest)
    assert first["changed"]
    assert not set(first["files"]) & set(second["files"])
    assert main(["diagnose", str(attempt), "--exit-code"]) == 1


def test_check_mode_collects_but_writes_nothing(run_module, tools, tmp_path) -> None:
    _tool(tools, "dmesg", "echo x")
    result = run_module("job_evidence", True, only=["dmesg"], counter_seconds=0, dest=str(tmp_path / "e" / "h"))
    assert (result["changed"], result["texts"]["dmesg"], (tmp_path / "e").exists()) == (False, "x", False)


def test_an_unknown_collector_is_refused_by_name(run_module) -> None:
    assert "known are" in run_module("job_evidence", only=["everything"])["msg"]


def test_counters_tell_sockets_from_rdma(run_module, tmp_path) -> None:
    port = tmp_path / "class/infiniband/mlx5_0/ports/1/counters"
    port.mkdir(parents=True)
    (port / "port_xmit_data").write_text("100", encoding="ascii")
    result = run_module("job_evidence", only=["counters"], counter_seconds=0.01, sysfs=str(tmp_path))
    assert json.loads(result["texts"]["counters"])["on_sockets"] is False


def test_peers_that_do_not_answer_are_said_by_name(run_module, tools, monkeypatch) -> None:
    def connect(address: tuple[str, int], timeout: float) -> None:
        raise ConnectionRefusedError if address[0] == "gpu01" else TimeoutError

    monkeypatch.setattr(socket, "create_connection", connect)
    _tool(tools, "ping", 'for last; do :; done; [ "$last" = gpu03 ]')
    peers = ["gpu01", "gpu02", "gpu03"]
    result = run_module("job_evidence", only=["peers"], peers=peers, counter_seconds=0)
    lines = result["texts"]["peers"].splitlines()
    assert [line.split(" (")[0] for line in lines] == [
        "peer gpu01 answers",
        "peer gpu02 does not answer",
        "peer gpu03 answers",
    ]
    assert result["collectors"]["peers"]["detail"] == "1 of 3 do not answer"


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that other users reach too; pytest's own is the caller's alone, and so may be what it lies in."""
    with tempfile.TemporaryDirectory(dir="/tmp") as path:
        os.chmod(path, 0o777)
        yield Path(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can write as someone else")
def test_what_is_written_belongs_to_the_owner_of_the_job(run_module, tools, open_directory) -> None:
    _tool(tools, "dmesg", "echo x")
    dest = str(open_directory / "e")
    result = run_module("job_evidence", only=["dmesg"], counter_seconds=0, dest=dest, owner="nobody")
    assert result["files"]
    assert {Path(name).owner() for name in result["files"]} == {"nobody"}
    assert os.geteuid() == 0
