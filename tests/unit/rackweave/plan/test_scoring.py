"""The accuracy that the planner claims, on the committed table; scoring's own arithmetic; refits that see no family."""

import csv
from dataclasses import fields
from functools import lru_cache
from pathlib import Path

import pytest
from rackweave.cli.score import load_table
from rackweave.errors import PlanError
from rackweave.plan.constants import Constants
from rackweave.plan.fitting import Prior, Problem, downdated, fit, normal_equations, solve
from rackweave.plan.refit import cross_validated
from rackweave.plan.rows import UnscorableRow, read_row
from rackweave.plan.scoring import predict, ranking, read_table, report, settled, spearman

ROWS = Path(__file__).parents[3] / "fixtures/planner/planner-validation.csv"


@lru_cache
def table():
    return load_table(ROWS)


@lru_cache
def scores(crossed):
    constants = Constants.shipped()
    rows = [settled(row, constants) for row in table().rows]
    found = cross_validated(rows, constants) if crossed else [predict(row, constants) for row in rows]
    return report(table(), found)


def cells(**changes):
    with ROWS.open(encoding="utf-8", newline="") as stream:
        row = next(csv.DictReader(stream))
    return {**row, **changes}


def test_fewer_than_40_constants_are_fitted():
    assert len(fields(Constants)) < 40


@pytest.mark.parametrize("crossed", [False, True])
def test_step_time_beats_the_best_peer_by_a_third(crossed):
    step = scores(crossed)["step"]
    assert step["balanced_mape_without_vts"] < 8
    assert step["balanced_mape"] < 15
    assert step["groups"]["vts"]["mape"] < 15


@pytest.mark.parametrize("crossed", [False, True])
def test_memory_is_within_3_and_8_percent(crossed):
    memory = scores(crossed)["memory"]
    assert memory["max_allocated"]["mape"] < 3
    assert memory["max_reserved"]["mape"] < 8
    assert memory["nvidia_smi"]["mape"] < 8


def test_the_trainers_own_engine_is_predicted_within_5_percent_in_time_and_3_in_memory():
    own = load_table(ROWS.parent / "measured-h200.csv")
    constants = Constants.shipped()
    rows = [settled(row, constants) for row in own.rows]
    assert {row.layout.engine for row in rows} == {"flat"}
    found = report(own, [predict(row, constants) for row in rows])
    assert found["step"]["groups"]["h200"]["mape"] < 5
    assert found["memory"]["max_allocated"]["mape"] < 3


def test_what_ran_is_predicted_to_fit_and_four_of_five_reported_failures_are_not():
    # The fifth, bloom-131, has the memory of bloom-125, which ran at 67 GB: no model of memory can tell them apart.
    assert scores(True)["oom"] == {"labels": 5, "caught": 4, "false": 0}


def test_ranking_picks_a_layout_within_two_percent_of_the_best():
    ranks = scores(True)["ranking"]
    assert len(ranks["jobs"]) == 3
    assert ranks["mean_regret"] < 2
    assert ranks["worst_regret"] < 6
    assert scores(False)["ranking"]["worst_spearman"] > 0.7


def test_nearly_every_row_is_scored_and_the_others_have_a_reason():
    found = scores(False)
    assert found["rows"] == 543
    assert found["scored"] + sum(found["unscored"].values()) == found["rows"]
    assert sum(found["unscored"].values()) < 0.02 * found["rows"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seq": "many"}, "nar21-t1-2: seq='many' is not a number"),
        ({"tp": "0"}, "nar21-t1-2: tp=0 must be a whole number of at least 1"),
        ({"tp": ""}, "nar21-t1-2: tp is empty"),
        ({"tp": "2.5"}, "tp=2.5"),
        ({"hidden": "-4"}, "hidden=-4"),
        ({"zero": "9"}, "zero='9' is not one of"),
        ({"precision": "int3"}, "precision='int3' is not one of"),
        ({"recompute": "some"}, "recompute='some' is not one of"),
        ({"peak_mem_gib": "5", "mem_kind": "weird"}, "mem_kind='weird'"),
        ({"heads": "7"}, "hidden=3072 is not a multiple of heads=7"),
        ({"id": ""}, "id is empty"),
        ({"step_time_s": "inf"}, "step_time_s=inf must be finite"),
    ],
)
def test_a_malformed_row_is_one_sentence_that_names_row_and_column(changes, words):
    with pytest.raises(PlanError, match=words):
        read_row(cells(**changes), 2)


def test_a_row_that_leaves_out_the_architecture_is_not_malformed():
    with pytest.raises(UnscorableRow, match="architecture"):
        read_row(cells(hidden="", model="secret"), 2)


def test_a_table_without_a_column_says_which():
    with pytest.raises(PlanError, match="lacks the columns tp"):
        read_table([], [name for name in cells() if name != "tp"])


def test_an_empty_table_has_null_figures():
    found = report(read_table([], list(cells())), [])
    assert found["step"]["balanced_mape"] is None
    assert found["memory"]["max_allocated"] == {"n": 0, "mape": None, "bias": None}
    assert found["ranking"]["worst_spearman"] is None


def test_spearman_shares_ranks_among_ties():
    assert spearman([1, 2, 3], [10, 20, 30]) == pytest.approx(1)
    assert spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert spearman([1, 1, 2], [1, 2, 3]) == pytest.approx(0.866, abs=1e-3)


def test_a_layout_measured_twice_counts_once():
    rows = [row for row in table().rows if row.job[0] == "GPT-3.6B" and row.group == "vtm"]
    found = [predict(settled(row, Constants.shipped()), Constants.shipped()) for row in rows]
    assert ranking(found * 2) == ranking(found)


def test_cholesky_solves_a_known_system():
    assert solve([[4.0], [2.0, 3.0]], [10.0, 9.0]) == pytest.approx([1.5, 2.0])


def toy_problem(points):
    """y = a x^b with an outlier, in logarithms."""
    import math

    def residuals(values):
        return [math.log(values["a"] * x ** values["b"] / y) for x, y in points]

    priors = (Prior("positive", 1.0, 5.0), Prior("positive", 1.0, 5.0))
    return Problem(("a", "b"), priors, residuals, [1.0] * len(points), 0.05)


POINTS = [(1.0, 2.0), (2.0, 4.1), (3.0, 5.9), (4.0, 8.2), (5.0, 9.8), (6.0, 30.0)]


def test_the_fit_finds_the_law_despite_an_outlier():
    found = fit(toy_problem(POINTS), {"a": 1.0, "b": 1.0})
    assert found["a"] == pytest.approx(2.0, rel=0.05)
    assert found["b"] == pytest.approx(1.0, rel=0.05)


@pytest.mark.parametrize("left_out", range(len(POINTS)))
def test_leaving_a_row_out_by_one_step_comes_to_a_full_refit(left_out):
    problem = toy_problem(POINTS)
    whole = problem.positions(fit(problem, {"a": 1.0, "b": 1.0}))
    quick = problem.values(downdated(problem, whole, normal_equations(problem, whole), [left_out]))
    rest = toy_problem([point for index, point in enumerate(POINTS) if index != left_out])
    full = fit(rest, {"a": 1.0, "b": 1.0})
    assert quick["a"] == pytest.approx(full["a"], rel=0.02)
    assert quick["b"] == pytest.approx(full["b"], rel=0.02)
