"""Where the time of a run went, by hand-made events whose sums are known."""

import json

import pytest
from rackweave.report.timeline import stretches, time_spent, timeline
from rackweave.run.events import parse_events
from rackweave.run.progress import Progress


def attempt(name, *rows):
    """Rows are (second, kind, fields)."""
    lines = [
        json.dumps({"time": f"2026-01-05T10:{second // 60:02d}:{second % 60:02d}+00:00", "kind": kind, **fields})
        for second, kind, fields in rows
    ]  # fmt: skip
    made = Progress(name)
    made.add(parse_events("\n".join(lines).encode() + b"\n").events)
    return made


def step(second, number, took=10.0):
    return second, "step", {"step": number, "step_time_s": took}


FIRST = attempt("1.0", (0, "phase", {"phase": "nccl_init"}), step(30, 1), step(40, 2), step(50, 3))
SECOND = attempt("1.1", (80, "phase", {"phase": "nccl_init"}), step(110, 3), step(120, 4))


def test_a_step_that_was_repeated_counts_once():
    spent = time_spent([FIRST, SECOND])
    assert (spent.total_s, spent.useful_s, spent.repeated_s) == (120.0, 40.0, 10.0)
    assert spent.ratio == pytest.approx(40 / 120)


def test_without_events_there_is_no_ratio():
    assert time_spent([]).ratio is None
    assert time_spent([attempt("1.0", (0, "phase", {"phase": "x"}))]).ratio is None


def test_an_attempt_is_start_kept_steps_and_steps_that_were_lost():
    found = [(one.kind, one.end_s - one.start_s) for one in stretches(FIRST, 2)]
    assert found == [("starting", 20.0), ("training", 20.0), ("lost", 10.0)]
    assert [one.kind for one in stretches(FIRST, None)] == ["starting", "training"]


def test_an_attempt_that_never_trained_is_shown_as_a_start():
    only = attempt("1.0", (0, "phase", {"phase": "nccl_init"}), (9, "phase", {"phase": "model_build"}))
    assert [(one.kind, one.end_s - one.start_s) for one in stretches(only, None)] == [("starting", 9.0)]


def test_evaluation_lies_inside_training():
    made = attempt(
        "1.0", step(10, 1), (10, "phase", {"phase": "evaluate"}), (14, "phase", {"phase": "forward"}), step(24, 2)
    )
    beside = [one for one in stretches(made, None) if one.kind == "evaluate"]
    assert [one.end_s - one.start_s for one in beside] == [4.0]


def test_bad_ends_are_marked_and_times_that_are_none_are_passed_over():
    broken = Progress("2.0")
    broken.add(parse_events(b'{"time": "soon", "kind": "step", "rank": 0, "step": 1}\n').events)
    picture = timeline([FIRST, SECOND, broken], ["1.0"])
    assert picture.count("✖") == 1
    assert "no data yet" in timeline([broken])
