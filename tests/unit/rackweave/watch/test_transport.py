"""The transport gate over INFO logs in the wording of NCCL 2.18 to 2.30, healthy and each kind of unhealthy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rackweave.watch.transport import gate

GPUS = 4
# What differs between the versions: version line, "no plugin" line, "chosen" line, end of a proved channel.
VERSIONS = {
    "2.18.3": ("NET/Plugin : No plugin found, using internal implementation", "Using network IB", "/GDRDMA"),
    "2.21.5": ("NET/Plugin: Using internal network plugin.", "Using network IB", "/GDRDMA"),
    "2.22.3": ("NET/Plugin: No plugin found (libnccl-net.so)", "Using network IB", "/GDRDMA"),
    "2.26.2": ("NET/Plugin: Could not find: libnccl-net.so.", "Using network IB", "/GDRDMA(PCI)"),
    "2.28.3": ("NET/Plugin: Could not find: libnccl-net.so.", "Assigned NET plugin IB to comm", "/GDRDMA(PCI)"),
    "2.30.7": ("NET/Plugin: Could not find: libnccl-net.so.", "Assigned NET plugin IB to comm", "/GDRDMA/Shared"),
}


def _log(version: str, plain: tuple[int, ...] = (), said: bool = True, net: str = "IB") -> str:
    """Two hosts of four GPUs; ranks of ``plain`` have channels without GPUDirect."""
    plugin, chosen, proof = VERSIONS[version]
    lines = []
    for node in range(2):
        host = f"h{node}"
        lines += [f"{host}:1:1 [0] NCCL INFO NCCL version {version}+cuda12.4", f"{host}:1:2 [0] NCCL INFO {plugin}",
                  f"{host}:1:2 [0] NCCL INFO NET/{net} : Using [0]mlx5_0:1/RoCE [RO]; OOB eth0:10.0.0.{node}<0>",
                  f"{host}:1:2 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.{node}<0>",
                  f"{host}:1:2 [0] NCCL INFO {chosen.replace('IB', net)}",
                  f"{host}:1:2 [0] NCCL INFO Channel 00/0 : {node * GPUS}[0] -> {node * GPUS + 1}[1] via P2P/CUMEM",
                  f"{host}:1:2 [0] NCCL INFO Connected all rings, use ring PXN 0 GDR 1"]  # fmt: skip
        for gpu in range(GPUS):
            rank, peer = node * GPUS + gpu, (1 - node) * GPUS + gpu
            end = "" if rank in plain else proof
            if rank in plain and said and version < "2.30":
                lines.append(
                    f"{host}:{gpu}:9 [{gpu}] NCCL INFO GPU Direct RDMA Disabled for GPU {gpu} "
                    f"/ HCA {gpu} (distance 7 > 5)"
                )
            lines += [f"{host}:{gpu}:9 [{gpu}] NCCL INFO Channel 00/0 : {peer}[{gpu}] -> {rank}[{gpu}] "
f"[receive] via NET/{net}/{gpu}{end}",
                      f"{host}:{gpu}:9 [{gpu}] NCCL INFO Channel 00/0 : {rank}[{gpu}] -> {peer}[{gpu}] "
f"[send] via NET/{net}/{gpu}{end}"]  # fmt: skip
    return "\n".join(lines)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("net", ["IB", "IBext_v8", "AWS Libfabric"])
def test_gdr_on_every_gpu_passes(version: str, net: str) -> None:
    report = gate(_log(version, net=net), expected_ranks=range(8))
    assert (report.passed, report.state, report.ranks_proved) == (True, "rdma_gdr", tuple(range(8)))


@pytest.mark.parametrize("version", VERSIONS)
def test_some_gpus_without_gdr_stop_the_job_and_name_the_host(version: str) -> None:
    report = gate(_log(version, plain=(5, 6)), expected_ranks=range(8))
    assert (report.passed, report.state, report.hosts) == (False, "gdr_partial", ("h1",))


@pytest.mark.parametrize("version", VERSIONS)
def test_no_gdr_at_all_stops_the_job(version: str) -> None:
    report = gate(_log(version, plain=tuple(range(8))), expected_ranks=range(8))
    assert (report.passed, report.state) == (False, "gdr_inactive")


@pytest.mark.parametrize("version", VERSIONS)
def test_sockets_stop_the_job(version: str) -> None:
    log = _log(version)
    for word in ("NET/IB/", "network IB", "plugin IB"):
        log = log.replace(word, word.replace("IB", "Socket"))
    for end in ("/GDRDMA(PCI)", "/GDRDMA/Shared", "/GDRDMA"):
        log = log.replace(end, "")
    report = gate(log, expected_ranks=range(8))
    assert (report.passed, report.state) == (False, "socket_fallback")


def test_a_forced_transport_without_devices_stops_the_job() -> None:
    log = "h0:1:2 [0] NCCL INFO NCCL_NET set by environment to IB.\nh0:1:2 [0] NCCL INFO NET/IB : No device found.\n"
    report = gate(log)
    assert (report.passed, report.state, report.hosts) == (False, "ib_init_failed", ("h0",))


def test_a_gpu_without_any_channel_line_is_not_proved() -> None:
    log = "\n".join(line for line in _log("2.22.3").split("\n") if "[3]" not in line)
    report = gate(log, expected_ranks=range(8))
    assert (report.passed, report.state) == (False, "unproved")
    assert "3, 7" in report.reason


def test_channels_within_one_host_prove_nothing_and_need_no_proof() -> None:
    texts = ("NET/IB : No device found.", "Using network Socket", "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM")
    log = "".join(f"h0:1:2 [0] NCCL INFO {text}\n" for text in texts)
    assert gate(log).state == "single_node"
    assert not gate(log, expected_ranks=[0, 1]).passed


def test_no_output_at_all_does_not_pass() -> None:
    assert gate("").state == "unproved"


LOGS = Path(__file__).parents[3] / "fixtures" / "watch" / "transport.jsonl"


@pytest.mark.parametrize(
    "case", [json.loads(line) for line in LOGS.read_text(encoding="utf-8").splitlines()], ids=lambda case: case["name"]
)
def test_logs_of_plugins_and_versions_are_judged(case: dict[str, object]) -> None:
    report = gate(case["log"], case["ranks"])  # type: ignore[arg-type]
    assert report.state == case["state"]
    assert report.passed == (case["state"] in ("rdma_gdr", "nvlink_domain", "single_node"))
    if case["hosts"] is not None:
        assert list(report.hosts) == case["hosts"]
