"""The moves of a rebuild against a Slurm in memory: ends, refusals, and a kill after every single move."""

import copy
from dataclasses import replace

import pytest
from rackweave.rebuild.moves import (
    Done,
    Refuse,
    Settings,
    drain_reason,
    marked,
    with_mark,
)
from rackweave.rebuild.view import NodeView, ReservationView, idle_neighbour

from tests.support.rebuilt_slurm import NODE, FakeSlurm, Killed, step

SETTINGS = Settings(NODE, "hpc", drain_wait_s=60, save_wait_s=30)
RESERVATION = "rackweave-rebuild-gpu02"
PASSED = ("check", "begin", "reserve", "resume", "finish")
FAILED = ("check", "begin", "reserve", "resume", "fail")
FOREVER = 10**6


def rebuild(slurm, steps=PASSED, settings=SETTINGS, budget=FOREVER, watch=None):
    left = [budget]
    for name in steps:
        move = step(slurm, name, settings, left, watch)
        if isinstance(move, Refuse):
            return move
    return move


def waiting():
    return FakeSlurm().job("7")


# Each as a rebuild may find it.
STARTS = {
    "idle": FakeSlurm,
    "our job waits": waiting,
    "the job is held by its owner": lambda: FakeSlurm().job("7", Reason="JobHeldUser"),
    "a job with a comment waits": lambda: FakeSlurm().job("7", AdminComment="ticket 12"),
    "down": lambda: FakeSlurm(state="DOWN", reason="Not responding", reason_by="slurm").job("7"),
    "drained by the watcher": lambda: FakeSlurm(state="IDLE+DRAIN", reason="rackweave: XID 79").job("7"),
    "failed before": lambda: FakeSlurm(state="IDLE+DRAIN", reason="rackweave-rebuild: lost: GPUs: 8 before"),
    "a test of a rebuild that died still runs": lambda: FakeSlurm(reservations={RESERVATION: {"nodes": NODE}}).job(
        "9", name="acceptance", state="RUNNING", Reservation=RESERVATION
    ),
    "other jobs wait too": lambda: FakeSlurm().job("7").job("8", name="theirs", UserId="ann(2001)"),
}


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("steps", [PASSED, FAILED], ids=["passed", "failed"])
def test_killed_after_any_move_and_run_again_it_ends_the_same(start, steps):
    settings = replace(SETTINGS, reason="acceptance: bus bandwidth 300 GB/s (bar 460 GB/s)")
    whole = STARTS[start]()
    rebuild(whole, steps, settings)
    for moves in range(len(whole.log) + 1):
        slurm = STARTS[start]()
        try:
            rebuild(slurm, steps, settings, budget=moves)
        except Killed:
            rebuild(slurm, steps, settings)
        assert slurm.end == whole.end, f"killed after {moves} moves: {slurm.log}"


@pytest.mark.parametrize("start", STARTS)
def test_killed_twice_it_still_ends_the_same(start):
    whole = STARTS[start]()
    rebuild(whole)
    for first in range(len(whole.log) + 1):
        for second in range(len(whole.log) + 1):
            slurm = STARTS[start]()
            for budget in (first, second, FOREVER):
                try:
                    rebuild(slurm, budget=budget)
                except Killed:
                    continue
            assert slurm.end == whole.end, (first, second, slurm.log)


@pytest.mark.parametrize("start", STARTS)
def test_from_the_drain_to_the_end_the_node_is_never_open(start):
    seen = []

    def watch(slurm, name):
        if "drain gpu02" in slurm.log[0] or len(slurm.log) > 1:
            seen.append((name, slurm.log[-1], slurm.open))

    rebuild(STARTS[start](), watch=watch)
    opened = [row for row in seen if row[2]]
    assert opened == [] or opened == [seen[-1]], seen
    assert seen[-1][1] == f"delete reservation {RESERVATION}"


def test_a_passed_node_is_in_service_and_nothing_of_ours_is_left():
    slurm = waiting()
    before = copy.deepcopy(slurm.end)
    assert isinstance(rebuild(slurm), Done)
    slurm.jobs["7"].pop("AdminComment")
    assert slurm.end == before


def test_our_job_is_held_only_while_the_rebuild_lasts():
    held = []
    rebuild(waiting(), watch=lambda slurm, _name: held.append(slurm.jobs["7"]["Reason"] == "JobHeldAdmin"))
    assert held[0] is False
    assert any(held)
    assert held[-1] is False


def test_a_failed_node_stays_drained_with_the_reason_and_nothing_else_is_left():
    slurm = waiting()
    rebuild(slurm, FAILED, replace(SETTINGS, reason="lost: GPUs: 8 before, 7 now"))
    assert slurm.state == "IDLE+DRAIN"
    assert slurm.reason == "rackweave-rebuild: lost: GPUs: 8 before, 7 now"
    assert slurm.reservations == {}
    assert slurm.jobs["7"]["Reason"] == "Resources"


def test_a_hold_that_is_not_ours_stays():
    slurm = STARTS["the job is held by its owner"]()
    rebuild(slurm)
    assert slurm.jobs["7"]["Reason"] == "JobHeldUser"


def test_jobs_of_others_are_not_touched():
    slurm = STARTS["other jobs wait too"]()
    before = copy.deepcopy(slurm.jobs["8"])
    seen = []
    rebuild(slurm, watch=lambda slurm, _name: seen.append(copy.deepcopy(slurm.jobs["8"])))
    assert seen
    assert all(job == before for job in seen), slurm.log


def test_the_comment_of_others_survives():
    slurm = STARTS["a job with a comment waits"]()
    rebuild(slurm)
    assert slurm.jobs["7"]["AdminComment"] == "ticket 12"


@pytest.mark.parametrize("state", ["IDLE+DRAIN", "DOWN", "MIXED+DRAIN"])
def test_a_drain_of_somebody_else_is_refused_and_kept(state):
    slurm = FakeSlurm(state=state, reason="fan 3 is loud", reason_by="ann")
    move = rebuild(slurm)
    assert isinstance(move, Refuse)
    assert "by ann: 'fan 3 is loud'" in move.words
    assert "rebuild_adopt_drain_ok" in move.words
    assert slurm.log == []


def test_a_failure_does_not_overwrite_a_drain_that_somebody_made_meanwhile():
    slurm = FakeSlurm(state="IDLE+DRAIN", reason="fan 3 is loud", reason_by="ann")
    step(slurm, "fail", replace(SETTINGS, reason="x"), [FOREVER])
    assert slurm.reason == "fan 3 is loud"


def test_a_drain_made_during_the_tests_is_not_resumed():
    slurm = FakeSlurm()
    rebuild(slurm, ("check", "begin", "reserve"))
    slurm.state, slurm.reason, slurm.reason_by = "IDLE+DRAIN", "keep off", "ann"
    move = step(slurm, "resume", SETTINGS, [FOREVER])
    assert isinstance(move, Refuse)
    assert "keep off" in move.words
    step(slurm, "finish", SETTINGS, [FOREVER])
    assert slurm.state == "IDLE+DRAIN"
    assert slurm.reason == "keep off"


def test_with_consent_a_drain_of_somebody_else_is_taken_over():
    slurm = FakeSlurm(state="IDLE+DRAIN", reason="fan 3 is loud", reason_by="ann")
    assert isinstance(rebuild(slurm, settings=replace(SETTINGS, adopt_ok=True)), Done)
    assert slurm.state == "IDLE"
    assert "(it was 'fan 3 is loud')" in slurm.log[0]


def test_a_running_job_is_waited_for_and_then_named_not_ended():
    slurm = FakeSlurm().job("5", name="theirs", state="RUNNING", UserId="ann(2001)")
    move = rebuild(slurm)
    assert isinstance(move, Refuse)
    assert "job 5 (theirs) of ann still runs on gpu02 after 60 s" in move.words
    assert "5" in slurm.jobs
    assert slurm.reason.startswith("rackweave-rebuild")
    assert slurm.reservations == {}


def test_with_consent_our_running_job_is_asked_to_save_before_it_is_cancelled():
    slurm = FakeSlurm().job("5", state="RUNNING")
    assert isinstance(rebuild(slurm, settings=replace(SETTINGS, cancel_ok=True)), Done)
    asked = [line for line in slurm.log if "job 5" in line]
    assert asked == [
        "ask job 5 (rackweave-demo) of hpc to save and exit",
        "cancel job 5 (rackweave-demo) of hpc, by consent",
    ]


def test_a_reservation_of_somebody_else_is_refused_before_anything_is_changed():
    slurm = FakeSlurm(reservations={"upgrade": {"nodes": "gpu[01-02]"}})
    move = rebuild(slurm)
    assert isinstance(move, Refuse)
    assert "'upgrade'" in move.words
    assert slurm.log == []


def test_without_its_reservation_a_node_is_not_resumed():
    slurm = FakeSlurm(state="IDLE+DRAIN", reason="rackweave-rebuild: in work")
    assert isinstance(step(slurm, "resume", SETTINGS, [FOREVER]), Refuse)
    assert slurm.log == []


@pytest.mark.parametrize("state", ["IDLE*+DRAIN", "UNKNOWN+DRAIN+NOT_RESPONDING"])
def test_a_node_that_does_not_answer_is_named_after_a_while(state):
    slurm = FakeSlurm(state=state, reason="rackweave-rebuild: in work", reservations={RESERVATION: {"nodes": NODE}})
    move = step(slurm, "resume", SETTINGS, [FOREVER])
    assert isinstance(move, Refuse)
    assert "does not answer slurmctld after 60 s" in move.words


def test_a_job_whose_script_is_out_of_date_stays_held():
    slurm = waiting()
    rebuild(slurm, settings=replace(SETTINGS, keep_hold=True))
    assert slurm.jobs["7"]["Reason"] == "JobHeldAdmin"
    assert marked(slurm.jobs["7"]["AdminComment"]) == (NODE,)
    assert slurm.reservations == {}


def test_a_job_that_waits_for_two_rebuilds_is_released_by_the_last():
    slurm = FakeSlurm().job("7", AdminComment="rackweave-rebuild[gpu01]", Reason="JobHeldAdmin")
    rebuild(slurm)
    assert slurm.jobs["7"]["Reason"] == "JobHeldAdmin"
    assert marked(slurm.jobs["7"]["AdminComment"]) == ("gpu01",)


@pytest.mark.parametrize("comment", ["", "ticket 12", "a; b", "rackweave-rebuild[gpu01]", "x; rackweave-rebuild[a,b]"])
def test_a_mark_that_is_set_and_taken_back_leaves_the_comment(comment):
    nodes = marked(comment)
    there = with_mark(comment, (*nodes, NODE))
    assert marked(there) == (*nodes, NODE)
    assert with_mark(there, nodes) == comment


def test_a_reason_is_one_line_that_slurm_prints_back_as_it_is():
    reason = drain_reason("lost:\n [GPU 3]  State=gone " + "x" * 400)
    assert "\n" not in reason
    assert "[" not in reason
    assert "=" not in reason
    assert "  " not in reason
    assert len(reason) == 240
    assert reason.endswith("...")


def test_the_neighbour_is_idle_and_reserved_by_nobody():
    views = [
        NodeView("a", frozenset({"ALLOCATED"})),
        NodeView("b", frozenset({"IDLE", "DRAIN"})),
        NodeView("c", frozenset({"IDLE"}), responds=False),
        NodeView("d", frozenset({"IDLE"})),
        NodeView("e", frozenset({"IDLE"})),
    ]
    assert idle_neighbour(views, ["a", "b", "c", "d", "e"], [ReservationView("upgrade", ("d",))]) == "e"
    assert idle_neighbour(views, ["a", "b", "c"], []) is None
