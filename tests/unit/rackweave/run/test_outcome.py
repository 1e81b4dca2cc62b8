"""Who began it: structured evidence of ranks and launchers."""

from pathlib import Path

import pytest
from rackweave.run.outcome import blame, judge_end
from rackweave.run.plan_file import parse_plan

PLAN = parse_plan((Path(__file__).parents[3] / "fixtures" / "contracts" / "plan.json").read_text())


def row(rank, gone="10", exit_code=None, stopped=None, result=False):
    return {"rank": rank, "pid": 100 + rank, "gone": gone, "exit_code": exit_code, "stopped": stopped, "result": result}


def result(rank, kind="retry", reason="a peer closed its connection"):
    host = PLAN.ranks[rank].host
    return {"rank": rank, "host": host, "exit": kind, "code": 75, "reason": reason, "phase": "forward", "step": 4}


def judge(results=(), exits=None, phases=()):
    return blame(PLAN.ranks, {one["rank"]: one for one in results}, exits or {}, {one["rank"]: one for one in phases})


def test_a_killed_rank_is_the_culprit_and_not_the_one_that_torchrun_ended():
    exits = {
        "node-b": {"ranks": [row(0, "12", -15), row(1, "11", -9)]},
        "node-a": {"ranks": [row(2, "13", 75, result=True), row(3, "13", 75, result=True)]},
    }
    found = judge([result(2), result(3)], exits)
    assert (found.kind, found.culprit) == ("killed", "rank:1")
    assert found.sentence == "rank 1 on node-b was killed by SIGKILL"


def test_of_two_killed_ranks_the_first_to_go_is_named():
    exits = {"node-b": {"ranks": [row(0, "12", -9), row(1, "11", -11)]}}
    assert judge([], exits).sentence == "rank 1 on node-b was killed by SIGSEGV"


def test_a_stopped_rank_is_the_culprit_of_a_hang():
    exits = {"node-a": {"ranks": [row(2, None, stopped="9"), row(3, None)]}}
    found = judge([result(0), result(1)], exits)
    assert (found.kind, found.ranks, found.hosts) == ("stopped", (2,), ("node-a",))


def test_a_ranks_own_error_outranks_its_peers_lost_connections():
    found = judge([result(0), result(1), result(3, "stop", "the loss is nan"), result(2)])
    assert found.culprit == "rank:3"
    assert "the loss is nan" in found.sentence


def test_an_error_that_all_ranks_report_blames_nobody():
    found = judge([result(rank, "stop", "no data at /x") for rank in range(4)])
    assert found.culprit == "none"
    assert "every rank stopped with the same error: no data at /x" in found.sentence


def test_ranks_that_all_others_found_to_have_begun_it_are_named():
    found = judge([{**result(rank, "stop", "the loss of step 9 is nan"), "blames": [2]} for rank in range(4)])
    host = PLAN.ranks[2].host
    assert (found.kind, found.culprit, found.hosts) == ("error", "rank:2", (host,))
    assert f"rank 2 on {host} began it: the loss of step 9 is nan" in found.sentence


def test_a_host_that_wrote_nothing_is_named():
    exits = {"node-b": {"ranks": [row(0, exit_code=75, result=True), row(1, exit_code=75, result=True)]}}
    found = judge([result(0), result(1)], exits)
    assert (found.kind, found.culprit) == ("lost_host", "host:node-a")


def test_a_rank_that_never_noticed_the_hang_is_its_cause():
    exits = {host: {"ranks": []} for host in ("node-a", "node-b")}
    phases = [{"rank": rank, "phase": "forward", "step": 5} for rank in range(4)]
    found = judge([result(0), result(1), result(3)], exits, phases)
    assert (found.kind, found.culprit) == ("hung", "rank:2")


def test_a_rank_that_was_only_told_to_end_has_noticed_nothing():
    exits = {host: {"ranks": []} for host in ("node-a", "node-b")}
    phases = [{"rank": rank, "phase": "forward", "step": 5} for rank in range(4)]
    found = judge(
        [result(0), result(1), result(2, reason="ended by SIGTERM in phase forward"), result(3)], exits, phases
    )
    assert (found.kind, found.culprit) == ("hung", "rank:2")


def test_without_evidence_nobody_is_blamed():
    assert judge().culprit == "none"


@pytest.mark.parametrize(
    ("state", "code", "end", "ok", "words"),
    [
        ("COMPLETED", 0, None, True, "ended well"),
        ("FAILED", 77, None, True, "saved on request"),
        ("FAILED", 64, {"code": 64, "reason": "node-b: bad"}, False, "FAILED (stop: an error"),
        ("FAILED", 1, None, False, "exit status 1, which is none of ours"),
        ("NODE_FAIL", 0, None, False, "lost a node"),
        ("CANCELLED", 0, None, False, "was cancelled"),
        ("TIMEOUT", 0, None, False, "time limit"),
        ("UNKNOWN", None, {"code": 75, "reason": "x"}, False, "FAILED (retry"),
        ("UNKNOWN", None, {"code": 0, "reason": ""}, True, "ended well"),
        ("UNKNOWN", None, None, False, "ended (UNKNOWN)"),
    ],
)
def test_the_end_is_what_slurm_and_the_script_say(state, code, end, ok, words):
    found = judge_end(state, code, end)
    assert found.ok is ok
    assert words in found.sentence
