"""The policy table, its switches and budgets, the strike ledger and the drain cap."""

from __future__ import annotations

import pytest
from rackweave.errors import DocumentError, PlanError
from rackweave.watch.classes import CLASSES
from rackweave.watch.policy import (
    DRAIN,
    OBSERVE,
    RETRY_ELSEWHERE,
    RULES,
    STOP,
    Situation,
    Switches,
    decide,
    drain_cap,
    missing_rules,
)
from rackweave.watch.strikes import Ledger, from_json, to_json
from rackweave.watch.verdict import Verdict

ON = Switches(True, True, True)


def _verdict(name: str, culprit: str = "rank:3,host:n1") -> Verdict:
    return Verdict(name, culprit, severity=CLASSES[name].severity, alarm=CLASSES[name].alarm)


def _situation(**changes: object) -> Situation:
    values: dict[str, object] = {"evidence": "12.0", "cluster_nodes": 100, "ledger": Ledger(), "switches": ON}
    return Situation(**{**values, **changes})  # type: ignore[arg-type]


def test_every_class_has_a_rule_and_no_rule_is_without_a_class() -> None:
    assert missing_rules() == set()
    assert set(RULES) == set(CLASSES)


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_each_class_leads_to_its_action_and_stops_when_its_budget_is_spent(name: str) -> None:
    rule = RULES[name]
    first = decide(_verdict(name), _situation())
    assert first.action == rule.action
    assert first.requeue == (rule.action not in (OBSERVE, STOP))
    spent = decide(_verdict(name), _situation(retries=[(name, rule.budget)]))
    assert spent.action == (OBSERVE if rule.action == OBSERVE else STOP)
    assert not spent.requeue


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_with_all_switches_off_nothing_is_done_only_said(name: str) -> None:
    decision = decide(
        _verdict(name), _situation(switches=Switches(), job_is_alive=True, ledger=Ledger().blame(["n1"], "9.0", name))
    )
    assert (decision.stop_job, decision.requeue, decision.drain) == (False, False, ())


@pytest.mark.parametrize("name", ["config.world_size", "app.exception", "ckpt.missing_key", "num.fp16_scale_exhausted"])
def test_what_a_retry_cannot_help_stops_the_chain(name: str) -> None:
    assert decide(_verdict(name), _situation()).action == STOP


def test_kernel_evidence_drains_at_once_rank_evidence_only_at_the_second_strike() -> None:
    assert decide(_verdict("gpu.fallen_off_bus"), _situation()).drain == ("n1",)
    once = decide(_verdict("hang.collective_timeout"), _situation())
    assert (once.action, once.drain, once.exclude) == (RETRY_ELSEWHERE, (), ("n1",))
    ledger = Ledger().blame(["n1"], "9.0", "hang.collective_timeout")
    assert decide(_verdict("hang.collective_timeout"), _situation(ledger=ledger)).drain == ("n1",)


def test_the_third_strike_sends_a_node_to_repair() -> None:
    ledger = Ledger().blame(["n1"], "8.0", "x").blame(["n1"], "9.0", "x")
    assert decide(_verdict("net.retry_exceeded"), _situation(ledger=ledger)).repair == ("n1",)


def test_the_same_evidence_never_leads_to_a_second_action() -> None:
    assert decide(_verdict("gpu.fallen_off_bus"), _situation(decided=["12.0"])).action == OBSERVE
    ledger = Ledger().blame(["n1"], "12.0", "x").blame(["n1"], "12.0", "x")
    assert ledger.strikes("n1") == 1


def test_user_code_is_nobodys_strike() -> None:
    ledger = Ledger().blame(["n1"], "9.0", "x")
    assert decide(_verdict("app.exception"), _situation(ledger=ledger)).wanted_drain == ()


@pytest.mark.parametrize(("nodes", "cap"), [(4, 1), (63, 1), (100, 2), (1024, 20)])
def test_the_cap_is_one_node_or_two_per_cent(nodes: int, cap: int) -> None:
    assert drain_cap(nodes) == cap


def test_a_storm_freezes_drains_and_requeues_and_calls_a_person() -> None:
    decision = decide(_verdict("net.link_down"), _situation(recent_drains=[0.2, 0.7]))
    assert (decision.frozen, decision.drain, decision.requeue, decision.notify) == (True, (), False, True)
    assert decision.wanted_drain == ("n1",)
    later = decide(_verdict("net.link_down"), _situation(recent_drains=[1.2, 1.7]))
    assert (later.frozen, later.drain) == (False, ("n1",))


def test_too_many_nodes_at_once_are_a_storm_too() -> None:
    hosts = ",".join(f"host:n{number}" for number in range(3))
    assert decide(_verdict("net.link_down", hosts), _situation()).frozen


def test_silent_corruption_goes_back_one_checkpoint() -> None:
    assert decide(_verdict("num.sdc_suspect"), _situation()).checkpoints_back == 1
    assert decide(_verdict("hang.desync"), _situation()).checkpoints_back == 0


def test_the_common_restart_budget_ends_every_chain() -> None:
    decision = decide(_verdict("slurm.preempted"), _situation(restarts=8, restart_budget=8))
    assert decision.action == STOP
    assert "budget" in decision.reason


def test_a_live_job_is_stopped_only_with_consent() -> None:
    verdict = _verdict("net.socket_fallback", "none")
    assert decide(verdict, _situation(job_is_alive=True)).stop_job
    assert not decide(verdict, _situation(job_is_alive=True, switches=Switches(requeue_own_job=True))).stop_job


def test_a_class_outside_the_list_is_refused() -> None:
    with pytest.raises(PlanError, match="no policy"):
        decide(Verdict("gpu.imagined"), _situation())


def test_the_ledger_survives_as_a_document() -> None:
    ledger = Ledger().blame(["a", "b"], "1.0", "gpu.fallen_off_bus", 5.0).blame(["a"], "2.0", "net.link_down", 9.0)
    assert from_json(to_json(ledger)) == ledger
    assert ledger.worst() == [("a", 2), ("b", 1)]
    assert ledger.forgive("a").strikes("a") == 0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"schema": "x", "strikes": []}',
        '{"schema": "rackweave.strikes/1", "strikes": 3}',
        '{"schema": "rackweave.strikes/1", "strikes": [{"host": 1, "evidence": "", "diagnosis_class": "", "time": 0}]}',
        '{"schema": "rackweave.strikes/1", "strikes": [], "more": 1}',
    ],
)
def test_a_foreign_ledger_is_refused(text: str) -> None:
    with pytest.raises(DocumentError):
        from_json(text)


def test_a_decision_drains_nobody_it_does_not_name() -> None:
    assert decide(_verdict("gpu.fallen_off_bus", "none"), _situation()).drain == ()
    assert decide(_verdict("gpu.fallen_off_bus", "none"), _situation()).action == DRAIN
