"""Times of one job in one zone, and a clock that is never set back."""

import json

import pytest
from rackweave.report.timeline import time_spent
from rackweave.run.clock import Clock, moment
from rackweave.run.events import parse_events
from rackweave.run.progress import Progress


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-01T00:01:00Z", 60.0),
        ("1970-01-01T00:01:00", 60.0),
        ("1970-01-01T02:01:00+02:00", 60.0),
        ("0001-01-01T00:00:00", None),
        ("9999-12-31T23:59:59+00:00", None),
        ("yesterday", None),
        ("", None),
    ],
)
def test_a_time_is_read_in_utc_and_what_cannot_be_one_is_none(text, seconds):
    assert moment(text) == seconds


def test_after_a_jump_back_time_goes_on_from_where_it_was():
    clock = Clock()
    times = ["2026-01-05T10:00:00+00:00", "2026-01-05T10:00:05+00:00", "2026-01-05T09:00:00Z", "2026-01-05T09:00:02Z"]
    assert [moment(clock.steady(text)) - moment(times[0]) for text in times] == [0.0, 5.0, 5.0, 7.0]
    assert clock.jumps_s == [3605.0]


def test_another_zone_is_no_jump_and_nor_is_the_order_of_two_threads():
    clock = Clock()
    times = ["2026-01-05T10:00:00+00:00", "2026-01-05T05:00:01-05:00", "2026-01-05T10:00:00.500+00:00", "nonsense"]
    assert [clock.steady(text) for text in times] == [
        times[0],
        "2026-01-05T10:00:01.000+00:00",
        times[2],
        "nonsense",
    ]
    assert clock.jumps_s == []


def test_the_time_of_a_run_whose_clock_was_set_is_that_of_its_steps():
    times = ["2026-01-05T10:00:01Z", "2026-01-05T10:00:02Z", "1970-01-01T00:00:01Z", "9999-01-01T00:00:00Z"]
    events = [{"time": time, "kind": "step", "step": n, "step_time_s": 1.0} for n, time in enumerate(times)]
    progress = Progress("1.0")
    progress.add(parse_events("".join(json.dumps(event) + "\n" for event in events).encode()).events)
    assert time_spent([progress]).total_s == 1.0


def test_a_clock_that_jumps_to_and_fro_leads_nowhere_beyond_the_years_that_are_times():
    clock = Clock()
    times = ["2199-01-01T00:00:00Z", "1970-01-02T00:00:00Z"] * 60
    shown = [moment(clock.steady(text)) for text in times]
    assert None not in shown
    assert shown == sorted(shown)


def test_times_of_one_clock_are_in_order_as_texts_too():
    texts = ["2026-01-05T10:00:00Z", "2026-01-05T10:00:00.250+00:00", "2026-01-05T10:00:00.500Z"]
    clock = Clock()
    shown = [clock.steady(text) for text in texts]
    assert shown == sorted(shown)
    events = [
        {"time": texts[0], "kind": "phase", "phase": "forward"},
        {"time": texts[2], "kind": "step", "step": 1},
    ]
    progress = Progress("1.0")
    progress.add(parse_events("".join(json.dumps(event) + "\n" for event in events).encode()).events)
    assert progress.phase == "training"
