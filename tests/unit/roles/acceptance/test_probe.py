"""The programs that run on nodes, run as they are: stages of two made-up nodes on this machine."""

import json
import os
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from rackweave.accept.figures import read_observations
from rackweave.accept.tool_output import write_bandwidth_gbps

from tests.support.programs import path_with

PROBE = Path(__file__).resolve().parents[4] / "roles/acceptance/files/probe.py"
# Stands in for ib_write_bw: a server that listens once, and a client that needs it and prints the real tool's table.
WRITE_BW = """#!/usr/bin/env python3
import socket, sys
words = sys.argv[1:]
port = int(words[words.index("-p") + 1])
if words[-1] != "node-b":
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port)); listener.listen(1); listener.accept()[0].recv(99)
    sys.exit(0)
try:
    socket.create_connection(("127.0.0.1", port), timeout=60).sendall(b"x")
except OSError:
    print("Couldn't connect to node-b"); sys.exit(1)
print(" #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]")
print(" 65536      373200           0.00               391.31            0.746364")
print("arguments:", *words)
"""


@pytest.fixture
def echo():
    """Return the address of an echo like that of the submit host."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            try:
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        while data := connection.recv(4096):
                            connection.sendall(data)
            except OSError:
                return

        threading.Thread(target=serve, daemon=True).start()
        yield list(listener.getsockname())


@pytest.fixture
def job(tmp_path, echo):
    """Return a function that starts a stage on a host."""
    (tmp_path / "results").mkdir()
    (tmp_path / "bin").mkdir()
    rail = {"device": "mlx5_0", "port": 1, "gpu": 0, "gid_index": 3, "traffic_class": 106}
    schedule = {
        "hosts": ["node-a", "node-b"],
        "rounds": [[["node-a", "node-b"]]],
        "python": sys.executable,
        "echo": echo,
        "storage": {"path": str(tmp_path), "bytes": 2**23},
        "cpu_s": 0.3,
        "bdfs": {"node-a": ["0000:ff:1f.7"]},
        "rails": {"node-a": [rail, {**rail, "device": "mlx5_1"}], "node-b": [rail, rail]},
        "dmabuf": True,
        "dcgm": {"level": 1, "timeout_s": 5},
    }

    def start(stage, host, **changed):
        part = tmp_path / "schedule.part"  # another stage may be reading it
        part.write_text(json.dumps({**schedule, **changed}))
        part.rename(tmp_path / "schedule.json")
        path = path_with(tmp_path / "bin")
        environment = {**os.environ, "SLURMD_NODENAME": host, "SLURM_JOB_ID": "7", "PATH": path}
        return subprocess.Popen([sys.executable, PROBE, tmp_path, stage], env=environment)

    start.directory = tmp_path
    return start


def result(job, name):
    return json.loads((job.directory / f"results/{name}.json").read_text())


def tool(job, name, text):
    path = job.directory / "bin" / name
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_a_node_tells_its_limits_work_and_round_trip(job):
    assert job("self", "node-a").wait() == 0
    found = result(job, "node.self.node-a")
    node = read_observations({"nodes": [found]}).nodes["node-a"]
    assert node.memlock_soft_bytes is not None
    assert node.cpu_work_bytes_per_second > 1e6
    assert 0 < node.round_trip.p50_s <= node.round_trip.p99_s <= node.round_trip.max_s
    assert node.links == {}
    assert "nvidia-smi is not on the node" in node.errors.get("nvlink", "nvidia-smi is not on the node")


def test_without_an_echo_the_rest_is_still_measured(job):
    assert job("self", "node-a", echo=None).wait() == 0
    found = result(job, "node.self.node-a")
    assert found["errors"]["round_trip"] == "the submit host answers no echo"
    assert found["cpu_work_bytes_per_second"] > 0


def test_each_node_reads_the_file_of_another(job):
    assert job("write", "node-a").wait() == job("write", "node-b").wait() == 0
    (job.directory / ".rackweave-acceptance-7-node-a").unlink()  # node-a reads node-b's
    assert job("read", "node-a").wait() == 0
    assert result(job, "node.write.node-b")["write"]["bytes"] == 2**23
    assert result(job, "node.read.node-a")["read"]["bytes"] == 2**23


def test_a_shared_directory_that_cannot_be_written_is_said_with_its_path(job):
    storage = {"path": str(job.directory / "away"), "bytes": 2**20}
    assert job("write", "node-a", storage=storage).wait() == 0
    found = result(job, "node.write.node-a")
    assert "write" not in found
    assert str(job.directory / "away") in found["errors"]["storage"]


def test_every_rail_is_written_with_gpu_memory_gid_and_traffic_class(job):
    tool(job, "ib_write_bw", WRITE_BW)
    server, client = job("rails", "node-b"), job("rails", "node-a")
    assert client.wait(300) == server.wait(300) == 0
    runs = result(job, "rails.node-a")["runs"]
    assert [(run["peer"], run["rail"], run["device"]) for run in runs] == [
        ("node-b", 0, "mlx5_0"),
        ("node-b", 1, "mlx5_1"),
    ]
    assert write_bandwidth_gbps(runs[1]["text"]) == 391.31
    assert "-x 3 --tclass 106 --use_cuda=0 --use_cuda_dmabuf node-b" in runs[0]["text"]
    assert result(job, "rails.node-b")["runs"] == []


HELP = """if "--help" in words:
    print("      --report_gbits Report Max/Average BW of test in Gbit/sec"); print("      --tclass=<value> ")
    sys.exit(1)
"""


def test_a_tool_without_cuda_writes_from_host_memory_and_says_so(job):
    """Distributions build perftest without CUDA: with --use_cuda it would end before it measured anything."""
    tool(job, "ib_write_bw", WRITE_BW.replace("port = int", f"{HELP}port = int", 1))
    server, client = job("rails", "node-b"), job("rails", "node-a")
    assert client.wait(300) == server.wait(300) == 0
    runs = result(job, "rails.node-a")["runs"]
    assert [run["memory"] for run in runs] == ["host", "host"]
    assert "use_cuda" not in runs[0]["text"]
    assert write_bandwidth_gbps(runs[0]["text"]) == 391.31


def test_a_missing_tool_leaves_a_sentence(job):
    assert job("dcgm", "node-a").wait() == 0
    assert result(job, "node.dcgm.node-a")["errors"] == {"dcgm": "dcgmi is not on the node"}
