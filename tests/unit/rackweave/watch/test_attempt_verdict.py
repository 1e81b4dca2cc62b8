"""Joining who (launchers, ranks) with why (logs)."""

import json

import pytest
from rackweave.run.outcome import NOBODY, Blame, judge_end
from rackweave.watch.attempt_verdict import attempt_sources, parse_verdict, verdict_document
from rackweave.watch.classes import CLASSES
from rackweave.watch.verdict import Verdict

FAILED = judge_end("FAILED", 75, {"code": 75, "reason": "node-b: gone"})
KILLED = Blame("killed", (1,), ("node-b",), "rank 1 on node-b was killed by SIGKILL", ("launcher: rank 1",))


def document(end=FAILED, blamed=KILLED, found=None):
    return verdict_document("demo", "1.0", "1", end, blamed, found or Verdict("healthy"))


@pytest.mark.parametrize("shown", ["healthy", "net.peer_closed", "launch.child_failed", "launch.rdzv_timeout"])
def test_what_survivors_print_does_not_hide_the_killed_rank(shown):
    verdict = document(found=Verdict(shown, culprit="rank:0,host:node-a", evidence=("log line",)))
    assert verdict["culprit"] == "rank:1"
    assert verdict["diagnosis_class"] == "launch.sigkill_unconfirmed"
    assert verdict["evidence"] == ["launcher: rank 1", "log line"]


def test_a_deeper_cause_in_the_logs_gives_the_class_and_launchers_the_name():
    verdict = document(found=Verdict("mem.host_oom", culprit="host:node-b", first_action="use less"))
    assert (verdict["diagnosis_class"], verdict["culprit"], verdict["first_action"]) == (
        "mem.host_oom",
        "rank:1",
        "use less",
    )


def test_without_structured_evidence_the_logs_speak():
    verdict = document(blamed=NOBODY, found=Verdict("gpu.fallen_off_bus", culprit="host:node-a"))
    assert (verdict["diagnosis_class"], verdict["culprit"]) == ("gpu.fallen_off_bus", "host:node-a")
    assert "gpu.fallen_off_bus" in verdict["sentence"]


@pytest.mark.parametrize(
    ("shown", "printed_by", "named"),
    [
        ("ckpt.write_failed", "rank:0,rank:1,host:node-a", "none"),
        ("gpu.fallen_off_bus", "host:node-a", "host:node-a"),
    ],
)
def test_an_error_of_all_ranks_names_nobody_but_a_machine_that_broke(shown, printed_by, named):
    same = Blame("error", (), (), "every rank stopped with the same error: x")
    assert document(blamed=same, found=Verdict(shown, culprit=printed_by))["culprit"] == named


def test_a_good_end_names_nobody():
    verdict = document(end=judge_end("COMPLETED", 0, None), blamed=NOBODY)
    assert (verdict["culprit"], verdict["severity"], verdict["evidence"]) == ("none", "info", [])


@pytest.mark.parametrize(
    "written",
    [
        document(),
        document(end=judge_end("COMPLETED", 0, None), blamed=NOBODY),
        document(end=judge_end("CANCELLED", None, None), blamed=NOBODY),
        document(found=Verdict("mem.host_oom", culprit="host:node-b")),
    ],
)
def test_every_verdict_that_is_written_can_be_read_again(written):
    assert parse_verdict(json.dumps(written)) == written


@pytest.mark.parametrize("kind", ["killed", "lost", "stopped", "hung", "error", "lost_host"])
def test_every_kind_of_evidence_has_a_class_of_the_closed_list(kind):
    assert document(blamed=Blame(kind, (), ("node-a",), "x"))["diagnosis_class"] in CLASSES


def test_the_reason_is_said_once():
    assert document()["sentence"].count("node-b") == 1


def test_logs_know_who_wrote_them():
    sources = attempt_sources({"logs/node-a/3/stderr.log": "a", "logs/node-a/launch.log": "b", "slurm.out": "c"})
    assert [(source.host, source.rank) for source in sources] == [("node-a", 3), ("node-a", None), (None, None)]
