"""The simulated cluster against the published formula; every figure here is simulated."""

from __future__ import annotations

import pytest
from rackweave.watch.simulate import Cluster, Costs, Policy, expected_ratio, simulate

COSTS = Costs(detect_s=120.0, requeue_s=60.0, start_s=420.0, checkpoint_interval_s=1800.0, checkpoint_write_s=1.0)


def _mean(cluster: Cluster, costs: Costs, policy: Policy, runs: int = 12) -> float:
    return sum(simulate(cluster, costs, policy, 60.0, seed).effective_ratio for seed in range(runs)) / runs


@pytest.mark.parametrize("rate", [6.50e-3, 2.34e-3])
def test_plain_requeue_on_1024_nodes_is_within_one_per_cent_of_the_formula(rate: float) -> None:
    ratio = _mean(Cluster(1024, rate), COSTS, Policy())
    assert ratio == pytest.approx(expected_ratio(1024, rate, COSTS.restart_s, 1800.0, 1.0), rel=0.01)


def test_the_worked_examples_of_the_formula_come_out() -> None:
    assert expected_ratio(64, 6.5e-3, 600.0, 1800.0, 1.0) == pytest.approx(0.992, abs=1e-3)
    assert expected_ratio(64, 6.5e-3, 3600.0, 1800.0, 60.0) == pytest.approx(0.947, abs=2e-3)


def test_excluding_lemons_after_two_strikes_gains_over_plain_requeue() -> None:
    cluster = Cluster(1024, 6.50e-3, lemon_share=0.03, lemon_part=0.5, spares=40)
    assert _mean(cluster, COSTS, Policy(strikes_to_drain=2)) > _mean(cluster, COSTS, Policy()) + 0.02


def test_detection_in_two_minutes_gains_over_the_ten_of_the_library() -> None:
    slow = Costs(600.0, 60.0, 420.0, 1800.0, 1.0)
    cluster = Cluster(1024, 6.50e-3)
    assert _mean(cluster, COSTS, Policy()) > _mean(cluster, slow, Policy()) + 0.02


def test_wrong_blame_gains_less_than_right_blame() -> None:
    cluster = Cluster(1024, 6.50e-3, lemon_share=0.03, lemon_part=0.5, spares=40)
    right, wrong = Policy(2, blame_right=1.0), Policy(2, blame_right=0.5)
    assert _mean(cluster, COSTS, right) > _mean(cluster, COSTS, wrong)
