"""From verdicts to a plan of action: journal, strikes, switches, the cap, and the one actor that starts a job again."""

from __future__ import annotations

import json

import pytest
from rackweave.errors import DocumentError
from rackweave.watch.classes import CLASSES
from rackweave.watch.journal import Journal, entry_line, parse_journal
from rackweave.watch.policy import DRAIN, OBSERVE, RETRY_ELSEWHERE, RULES, STOP, Switches
from rackweave.watch.recovery import REASON_PREFIX, Ended, Setting, recover
from rackweave.watch.strikes import Ledger

ON, OFF = Switches(True, True, True), Switches()


def ended(name="gpu.fallen_off_bus", attempt="12.0", hosts=("n1",), requeued=False, state="FAILED", code=75):
    document = {
        "run": "demo", "attempt": attempt, "job_id": attempt.split(".")[0], "state": state, "code": code,
        "sentence": "it broke", "diagnosis_class": name, "culprit": "rank:3", "hosts": list(hosts),
        "severity": CLASSES[name].severity,
    }  # fmt: skip
    return Ended(document, "2026-01-05T10:00:00Z", requeued)


def setting(**changes):
    values = {
        "run": "demo",
        "nodes": tuple(f"n{number}" for number in range(100)),
        "switches": ON,
        "restart_budget": 8,
        "time": "t",
        "time_s": 1e6,
    }
    return Setting(**{**values, **changes})


def remember(*plans, drains=()):
    text = "".join(line for plan in plans for line in plan.lines)
    text += "".join(entry_line("t", time_s, "demo", "drain", "x", node=node) for node, time_s in drains)
    return parse_journal(text)


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_every_class_is_decided_journaled_and_never_twice(name):
    first = recover([ended(name)], Journal(), Ledger(), setting())
    assert first.action == RULES[name].action
    entry = json.loads(first.lines[0])
    assert (entry["diagnosis_class"], entry["action"], entry["run"]) == (name, first.action, "demo")
    again = recover([ended(name)], remember(first), first.ledger, setting())
    assert (again.action, again.lines, again.drain, again.resubmit) == (OBSERVE, (), {}, False)
    assert again.ledger == first.ledger


@pytest.mark.parametrize(
    ("named", "drained"),
    [("n1.a", ["n1.a"]), ("n1.b", ["n1.b"]), ("n2", ["n2.example.org"]), ("n2.other", ["n2.example.org"]), ("n1", [])],
)
def test_of_nodes_that_differ_behind_a_dot_the_named_one_is_drained_and_none_if_both_could_be_meant(named, drained):
    nodes = ("n1.a", "n1.b", "n2.example.org")
    plan = recover([ended(hosts=(named,))], Journal(), Ledger(), setting(nodes=nodes))
    assert list(plan.drain) == drained


def test_kernel_evidence_drains_with_our_prefix_and_starts_elsewhere():
    plan = recover([ended()], Journal(), Ledger(), setting())
    assert plan.action == DRAIN
    assert plan.drain == {"n1": f"{REASON_PREFIX}gpu.fallen_off_bus in attempt 12.0 of demo"}
    assert (plan.resubmit, plan.leave, plan.suspected) == (True, ("n1",), ())


def test_a_host_that_only_a_log_knows_is_never_drained_and_a_domain_does_not_hide_ours():
    assert recover([ended(hosts=["db7.example.org"])], Journal(), Ledger(), setting()).drain == {}
    assert list(recover([ended(hosts=["n1.example.org"])], Journal(), Ledger(), setting()).drain) == ["n1"]


def test_a_suspected_node_is_left_out_once_and_drained_at_its_second_strike():
    once = recover([ended("hang.no_progress")], Journal(), Ledger(), setting())
    assert (once.drain, once.leave, once.suspected) == ({}, ("n1",), ("n1",))
    twice = recover([ended("hang.no_progress", "13.0")], remember(once), once.ledger, setting())
    assert list(twice.drain) == ["n1"]
    thrice = recover([ended("net.qp_connect_failed", "14.0")], remember(once, twice), twice.ledger, setting())
    assert thrice.repair == ("n1",)


def test_a_job_that_starts_again_by_itself_is_not_submitted_a_second_time():
    plan = recover(
        [ended("launch.sigkill_unconfirmed", requeued=True)], Journal(), Ledger(), setting(job_is_alive=True)
    )
    assert (plan.resubmit, plan.stop_job, plan.stuck) == (False, False, False)
    assert json.loads(plan.lines[0])["requeued_by_job"] is True


def test_a_job_that_would_wait_for_its_drained_node_is_stopped_and_moved():
    plan = recover([ended(requeued=True)], Journal(), Ledger(), setting(job_is_alive=True))
    assert (plan.stop_job, plan.resubmit) == (True, True)


def test_a_job_that_waits_for_its_drained_node_and_must_not_be_stopped_calls_a_person():
    switches = Switches(stop_own_job=False, requeue_own_job=True, drain_nodes=True)
    plan = recover([ended(requeued=True)], Journal(), Ledger(), setting(job_is_alive=True, switches=switches))
    assert (list(plan.drain), plan.stop_job, plan.resubmit) == (["n1"], False, False)
    assert (plan.stuck, plan.notify) == (True, True)
    assert "training_job_stop_ok is off: cancel it (scancel 12)" in plan.why
    assert remember(plan).unfinished() is None  # an operator that starts later must not submit beside the live job
    # Where the job is over, nothing needs to be stopped.
    over = recover([ended(requeued=False)], Journal(), Ledger(), setting(switches=switches))
    assert (over.resubmit, over.stuck) == (True, False)


@pytest.mark.parametrize("name", sorted(name for name, rule in RULES.items() if rule.checkpoints_back))
@pytest.mark.parametrize(
    ("stop_ok", "comes_back", "moved"), [(True, True, True), (False, True, False), (True, False, False)]
)
def test_going_back_a_checkpoint_is_done_or_said_not_to_be(name, stop_ok, comes_back, moved):
    switches = Switches(stop_own_job=stop_ok, requeue_own_job=True)
    one = [ended(name, requeued=comes_back)]
    plan = recover(one, Journal(), Ledger(), setting(job_is_alive=comes_back, switches=switches))
    goes_back = moved or not comes_back
    assert (plan.stop_job, plan.resubmit, plan.stuck) == (moved, goes_back, False)
    entry = json.loads(plan.lines[0])
    assert (plan.checkpoints_back, entry["checkpoints_back"]) == (int(goes_back), int(goes_back))
    assert ("from its newest checkpoint, and training_job_stop_ok is off" in entry["why"]) is not goes_back
    assert plan.notify or goes_back


@pytest.mark.parametrize(
    ("changes", "moved"),
    [({}, False), ({"leave_suspected": True}, True), ({"leave_suspected": True, "switches": OFF}, False)],
)
def test_a_job_that_comes_back_to_a_suspected_node_is_moved_only_where_suspicion_may_cost_a_node(changes, moved):
    one = [ended("hang.no_progress", requeued=True)]
    plan = recover(one, Journal(), Ledger(), setting(job_is_alive=True, **changes))
    assert (plan.stop_job, plan.resubmit) == (moved, moved)
    # A class that asks for no other node keeps it in any case.
    kept = [ended("launch.sigkill_unconfirmed", requeued=True)]
    assert not recover(kept, Journal(), Ledger(), setting(job_is_alive=True, **changes)).resubmit


def test_a_job_that_starts_again_against_the_policy_is_stopped_only_with_consent():
    one = [ended("num.nan", requeued=True)]
    plan = recover(one, Journal(), Ledger(), setting(job_is_alive=True))
    assert (plan.action, plan.stop_job, plan.stuck, plan.resubmit) == (STOP, True, True, False)
    off = recover(one, Journal(), Ledger(), setting(job_is_alive=True, switches=OFF))
    assert (off.stop_job, off.stuck) == (False, True)


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_without_consent_nothing_is_drained_stopped_or_submitted(name):
    ledger = Ledger().blame(["n1"], "other", "x")
    plan = recover([ended(name, requeued=True)], Journal(), ledger, setting(switches=OFF, job_is_alive=True))
    assert (plan.drain, plan.stop_job, plan.resubmit) == ({}, False, False)


def test_the_cap_counts_drains_of_all_runs_and_freezes():
    journal = remember(drains=[("n7", 1e6 - 60), ("n8", 1e6 - 120)])
    plan = recover([ended()], journal, Ledger(), setting())
    assert (plan.frozen, plan.drain, plan.resubmit, plan.stuck, plan.notify) == (True, {}, False, True, True)
    later = recover([ended()], journal, Ledger(), setting(time_s=1e6 + 7200))
    assert (later.frozen, list(later.drain)) == (False, ["n1"])


def test_the_cap_counts_drains_that_a_health_check_made_and_none_twice():
    two = {"n7": 0.5, "n8": 0.9}
    plan = recover([ended()], Journal(), Ledger(), setting(standing_drains=two))
    assert (plan.frozen, plan.drain, plan.stuck, plan.notify) == (True, {}, True, True)
    old = recover([ended()], Journal(), Ledger(), setting(standing_drains={"n7": 0.5, "n8": 1.1}))
    assert (old.frozen, list(old.drain)) == (False, ["n1"])
    # A drain of the watcher is in its journal and in Slurm.
    same = recover([ended()], remember(drains=[("n7", 1e6 - 60)]), Ledger(), setting(standing_drains={"n7": 0.02}))
    assert (same.frozen, list(same.drain)) == (False, ["n1"])


@pytest.mark.parametrize("stop_ok", [True, False])
def test_a_node_that_its_health_check_drained_before_is_left_and_needs_no_room_under_the_cap(stop_ok):
    switches = Switches(stop_ok, True, True)
    here = setting(nodes=("n1", "n2"), standing_drains={"n1": 0.1}, switches=switches, job_is_alive=True)
    plan = recover([ended(requeued=True)], Journal(), Ledger(), here)
    assert (plan.frozen, plan.drain, plan.leave, plan.suspected) == (False, {}, ("n1",), ())
    # The job would wait for it, so it is moved, or a person is called.
    assert (plan.stop_job, plan.resubmit, plan.stuck) == (stop_ok, stop_ok, not stop_ok)


def test_several_attempts_of_one_call_share_the_cap():
    storm = [ended(attempt=f"12.{number}", hosts=[f"n{number}"]) for number in range(4)]
    plan = recover(storm, Journal(), Ledger(), setting())
    assert len(plan.drain) == 2
    assert plan.frozen


def test_a_spent_class_budget_and_the_common_budget_end_the_chain():
    first = recover([ended("mem.host_oom")], Journal(), Ledger(), setting())
    second = recover([ended("mem.host_oom", "13.0")], remember(first), first.ledger, setting())
    assert (first.resubmit, second.action, second.stuck) == (True, STOP, True)
    spent = recover([ended("slurm.preempted")], Journal(), Ledger(), setting(restart_budget=0))
    assert "budget" in spent.why


def test_a_good_end_sets_the_budgets_back():
    first = recover([ended("mem.host_oom")], Journal(), Ledger(), setting())
    done = parse_journal("".join(first.lines) + entry_line("t", 1e6, "demo", "end", "done", ok=True))
    assert recover([ended("mem.host_oom", "13.0")], done, Ledger(), setting()).resubmit


def test_a_dry_run_is_told_and_does_not_count():
    tried = recover([ended()], Journal(), Ledger(), setting(dry_run=True))
    assert json.loads(tried.lines[0])["dry_run"] is True
    assert recover([ended()], remember(tried), Ledger(), setting()).action == DRAIN


def test_a_good_end_and_a_save_are_nobodys_strike():
    for one in (ended("healthy", state="COMPLETED", code=0), ended("healthy", code=77)):
        plan = recover([one], Journal(), Ledger(), setting())
        assert (plan.lines, plan.ledger) == ((), Ledger())


def test_a_job_that_somebody_cancelled_is_not_started_again():
    plan = recover([ended("healthy", state="CANCELLED", code=None, hosts=())], Journal(), Ledger(), setting())
    assert (plan.action, plan.resubmit) == (OBSERVE, False)


def test_an_unknown_class_is_refused():
    broken = ended()
    document = {**broken.document, "diagnosis_class": "gpu.imagined"}
    with pytest.raises(DocumentError, match="unknown class"):
        recover([Ended(document, "t", False)], Journal(), Ledger(), setting())


def test_the_same_job_id_at_another_time_is_other_evidence():
    first = recover([ended()], Journal(), Ledger(), setting())
    reborn = Ended(ended().document, "2026-02-01T00:00:00Z", False)
    assert recover([reborn], remember(first), first.ledger, setting()).lines


def test_a_decision_to_submit_stays_open_until_a_submission_or_an_end():
    plan = recover([ended()], Journal(), Ledger(), setting())
    assert remember(plan).of("demo").unfinished()["evidence"] == plan.evidence
    closed = parse_journal("".join(plan.lines) + entry_line("t", 1e6, "demo", "submit", "x"))
    assert closed.of("demo").unfinished() is None
    assert remember(plan).of("other").unfinished() is None


def test_a_torn_last_line_is_passed_over_and_a_hole_is_not():
    line = entry_line("t", 1.0, "demo", "note", "x")
    assert len(parse_journal(line + '{"torn').entries) == 1
    with pytest.raises(DocumentError, match="line 1: not JSON"):
        parse_journal('{"torn\n' + line)
    with pytest.raises(DocumentError, match="one of the kinds"):
        parse_journal(entry_line("t", 1.0, "demo", "wish", "x"))


def test_replans_elsewhere_use_suspicion_only_for_classes_that_blame():
    assert recover([ended("app.exception")], Journal(), Ledger(), setting()).leave == ()
    assert recover([ended("hang.desync")], Journal(), Ledger(), setting()).action == RETRY_ELSEWHERE
