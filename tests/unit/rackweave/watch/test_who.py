"""Whom a line names: records, headings, tags in front of a host, numbers within a host."""

from __future__ import annotations

import json

import pytest
from rackweave.watch.prefix import lines_of, take_apart
from rackweave.watch.sections import Sections
from rackweave.watch.verdict import diagnose

XID = "NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus."


@pytest.mark.parametrize(
    ("line", "host"),
    [
        ("health-check: node07: all is well", "node07"),
        ("node07 gpud[771]: all is well", "node07"),
        ("slurmstepd-node07: error: pyxis: no", "node07"),
        ("[node07] + torchrun", "node07"),
        ("node-07 | ERROR | gpu-monitor | bad", "node-07"),
        ("2026-01-01 10:00:00 node-07 carrier lost", "node-07"),
        ("anything: [rank3]: text", "anything"),
        ("RuntimeError: node07: text", None),
        ("trainer-1  | text", None),
        ("step-7 loss 2.0", None),
    ],
)
def test_a_host_is_found_in_front_of_the_message(line: str, host: str | None) -> None:
    assert take_apart(line).host == host


def test_a_record_gives_every_line_of_its_message_its_rank_host_and_time() -> None:
    record = {"message": "Traceback\nValueError: no", "rank": 3, "kubernetes": {"host": "node07"},
              "time": "2026-01-01T00:00:00Z"}  # fmt: skip
    lines = lines_of(json.dumps(record))
    assert [(line.text, line.rank, line.host) for line in lines] == [
        ("Traceback", 3, "node07"),
        ("ValueError: no", 3, "node07"),
    ]
    assert all(line.time is not None for line in lines)


@pytest.mark.parametrize(
    "heading",
    [
        "==> node07/dmesg.log <==",
        "===== node07 =====",
        "node07 | CHANGED | rc=0 >>",
        "Message from syslogd@node07 at x",
    ],
)
def test_a_heading_names_the_host_of_what_follows(heading: str) -> None:
    assert diagnose(f"{heading}\n{XID}").culprit == "host:node07"


@pytest.mark.parametrize("heading", ["==> rank3.log <==", "---------- step 7 ----------", "==> slurm-4412.out <=="])
def test_a_heading_without_a_host_names_nobody(heading: str) -> None:
    sections = Sections()
    sections.feed(take_apart(heading))
    assert sections.hosts == {}


def test_a_number_within_a_host_becomes_a_rank_by_the_launchers_table() -> None:
    table = "  host      : node07\n  rank      : 11 (local_rank: 3)\n  exitcode  : 1 (pid: 5)\n"
    assert diagnose(f"[default3]:ValueError: no\n{table}").culprit == "rank:11,host:node07"


@pytest.mark.parametrize(
    ("line", "alarm"),
    [
        ("node07 kernel: mlx5_core 0000:5e:00.0 enp94s0np0: Link up at 200Gbps (was 400Gbps)", True),
        ("node07 kernel: mlx5_core 0000:5e:00.0 enp94s0np0: Link up at 400Gbps (was 200Gbps)", False),
        ("node07: mlx5_7 port 1 rate 400 Gb/sec, expected 400 Gb/sec", False),
    ],
)
def test_rates_that_a_line_tells_are_compared(line: str, alarm: bool) -> None:
    assert diagnose(line).alarm == alarm


def test_a_coordinator_that_prints_the_failure_of_another_rank_is_not_named() -> None:
    report = [
        "[rank0]: torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([6])",
        "[rank0]: Traceback (most recent call last): (RANK 6)",
        "[rank0]: OSError: [Errno 28] No space left on device",
    ]
    assert diagnose(report).culprit == "rank:6"
    assert diagnose(report[2:]).culprit == "rank:0"


def _waits(rank: int, local: int) -> str:
    return (
        f"[rank{rank}]:[E709 18:40:11.01 ProcessGroupNCCL.cpp:632] [Rank {local}] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=55, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600045 "
        "milliseconds before timing out."
    )


@pytest.mark.parametrize(
    ("waiting", "culprit"),
    [
        ({8: 0, 9: 1, 11: 3}, "rank:10"),
        ({1: 0, 5: 1, 13: 3, 17: 4}, "rank:9"),
        ({8: 0, 9: 1, 10: 2}, "none"),
        ({8: 0, 9: 1, 17: 3}, "none"),
    ],
)
def test_the_member_of_a_group_that_does_not_wait_is_waited_for(waiting: dict[int, int], culprit: str) -> None:
    log = ["using world size: 64", *(_waits(rank, local) for rank, local in waiting.items())]
    verdict = diagnose(log)
    assert (verdict.diagnosis_class, verdict.culprit) == ("hang.collective_timeout", culprit)


def _completion(host: str, peer: str, status: int) -> str:
    return (
        f"{host}:12:13 [0] transport/net_ib.cc:1909 NCCL WARN NET/IB : Got completion from peer {peer}<3305> with "
        f"status={status} opcode=0 len=0 vendor err 81 (Recv)"
    )


def test_of_a_local_violation_and_the_peers_remote_error_the_local_one_is_named() -> None:
    local, remote = _completion("node07", "192.0.2.8", 4), _completion("node08", "192.0.2.7", 9)
    assert diagnose([local, remote]).culprit == "host:node07"
    assert diagnose([remote]).culprit == "host:node08"


def test_slurmctld_names_the_node_whose_prolog_failed() -> None:
    queue = "  4412       gpu   mds-3d     user PD       0:00      4 (launch failed requeued held)"
    control = "[2026-01-11T10:00:01.000] error: slurmd error running JobId=4412 on node(s)=node07: Prolog error"
    verdict = diagnose([queue, control])
    assert (verdict.diagnosis_class, verdict.culprit) == ("slurm.requeued_held", "host:node07")


@pytest.mark.parametrize(
    "heading", ["# host node07", "# hostname: node07", "me@node07 ~ % dmesg", "[root@node07 ~]# dmesg"]
)
def test_a_comment_or_a_prompt_names_the_host_of_what_follows(heading: str) -> None:
    assert diagnose(f"{heading}\n{XID}").culprit == "host:node07"


def test_a_prompt_before_a_command_that_shows_a_file_names_nobody() -> None:
    assert diagnose(f"me@node07:~$ dmesg\nme@node07:~$ cat slurm-44.out\n{XID}").culprit == "none"


def test_roles_of_torchx_stand_in_front_of_a_rank() -> None:
    line = take_apart("i.pretrain/0 [default3]:[rank11]: torch.OutOfMemoryError: CUDA out of memory.")
    assert (line.rank, line.local_rank, line.text) == (11, 3, "torch.OutOfMemoryError: CUDA out of memory.")


def test_a_save_that_is_skipped_for_one_being_written_overlaps() -> None:
    line = (
        "Rank 0 skips the save the checkpoint in CPU memory since it is saving the latest checkpoint into the storage."
    )
    assert diagnose(line).diagnosis_class == "ckpt.async_overlap"
