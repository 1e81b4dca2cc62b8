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
