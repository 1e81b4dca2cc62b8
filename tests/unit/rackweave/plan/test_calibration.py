"""Calibration: what a cluster's own runs teach, and that it helps runs that were not seen."""

import json

import pytest
from rackweave.cli.calibrate import run
from rackweave.errors import PlanError
from rackweave.plan.calibration import Calibration, calibrate, measure
from rackweave.plan.cluster import Cluster
from rackweave.plan.layout import plan_layout
from rackweave.plan.request import LayoutRequest

CLUSTER = Cluster.from_shorthand("2x8xH100")


def plan(batch):
    return plan_layout(CLUSTER, "llama3-8b", LayoutRequest(global_batch_size=batch)).as_dict()


def steps(seconds, count=10):
    return [
        {"kind": "step", "step": number, "step_time_s": seconds, "peak_memory_gib": 60.0} for number in range(count)
    ]


def attempt(directory, document, seconds):
    directory.mkdir()
    (directory / "plan.json").write_text(json.dumps(document))
    lines = [json.dumps(event) for event in steps(seconds)]
    (directory / "events.jsonl").write_text("\n".join(lines) + '\n{"kind": "st')
    return directory


def test_the_factor_is_measured_over_predicted_and_moves_the_next_plan():
    document = plan(64)
    slow = 1.25 * document["prediction"]["step_time_s"]
    learned = calibrate([measure(document, steps(slow))])
    again = plan_layout(CLUSTER, "llama3-8b", LayoutRequest(global_batch_size=64), learned)
    assert again.prediction["step_time_s"] == pytest.approx(slow, rel=1e-3)
    assert again.prediction["calibration_factor"] == pytest.approx(1.25, rel=1e-3)


def test_measured_memory_moves_the_next_plan_and_what_fits():
    wide, wish = Cluster.from_shorthand("8x8xH100"), LayoutRequest(global_batch_size=64)
    first = plan_layout(wide, "llama3-70b", wish)
    document = first.as_dict()
    peak = 1.25 * document["memory"]["allocated_gib"]
    events = [{**event, "peak_memory_gib": peak} for event in steps(10.0)]
    learned = calibrate([measure(document, events)])
    assert learned.memory_factor_for(wide) == pytest.approx(1.25)
    again = plan_layout(wide, "llama3-70b", wish, learned)
    shown = again.as_dict()["memory"]
    assert again.layout != first.layout, "what was chosen would not fit"
    assert shown["needed_gib"] <= shown["limit_gib"]
    assert shown["calibration_factor"] == pytest.approx(1.25)
    # A plan that carries the factor teaches the same one.
    peak = shown["allocated_gib"]
    twice = calibrate([measure(again.as_dict(), [{**event, "peak_memory_gib": peak} for event in steps(10.0)])])
    assert twice.memory_factor_for(wide) == pytest.approx(1.25, rel=1e-3)


def test_another_kind_of_cluster_keeps_its_predictions():
    document = plan(64)
    learned = calibrate([measure(document, steps(2 * document["prediction"]["step_time_s"]))])
    assert learned.factor_for(Cluster.from_shorthand("2x8xA100-80GB")) == 1.0


def test_a_calibrated_plan_calibrates_to_the_same_factor():
    document = plan(64)
    slow = 1.25 * document["prediction"]["step_time_s"]
    learned = calibrate([measure(document, steps(slow))])
    again = plan_layout(CLUSTER, "llama3-8b", LayoutRequest(global_batch_size=64), learned).as_dict()
    twice = calibrate([measure(again, steps(slow))])
    assert twice.step_factors == pytest.approx(learned.step_factors, rel=1e-3)


def test_the_command_shows_that_unseen_attempts_improve(tmp_path, capsys):
    documents = [plan(batch) for batch in (64, 128, 256)]
    directories = [
        attempt(tmp_path / f"attempt{index}", document, factor * document["prediction"]["step_time_s"])
        for index, (document, factor) in enumerate(zip(documents, (1.2, 1.25, 1.3)))
    ]
    import argparse

    arguments = argparse.Namespace(attempts=directories, store=tmp_path / "state/calibration.json", json=True)
    assert run(arguments) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["before_percent"] > 15
    assert result["after_percent"] < 6
    Calibration.from_mapping(json.loads(arguments.store.read_text()))


@pytest.mark.parametrize("broken", [{}, {"schema": "other"}, [], {"schema": "rackweave.calibration/1"}])
def test_a_file_that_is_no_calibration_is_refused(broken):
    with pytest.raises(PlanError, match="calibration file"):
        Calibration.from_mapping(broken)


def test_too_few_steps_are_refused():
    with pytest.raises(PlanError, match="at least 3 are needed"):
        measure(plan(64), steps(1.0, count=4))
