"""Events while they are being written, and what they add up to."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rackweave.run.events import parse_events
from rackweave.run.progress import Progress, duration, progress_line


def line(kind, second, **fields):
    record = {"time": f"2026-01-05T10:00:{second:02d}.000+00:00", "kind": kind, "rank": 0, **fields}
    return json.dumps(record).encode() + b"\n"


def step(number, second, loss=2.5, seconds=1.0):
    return line("step", second, step=number, loss=loss, tokens_per_second=1000.0, mfu=None, step_time_s=seconds)


def progress_of(*lines, target=None):
    progress = Progress("1.0", target)
    progress.add(parse_events(b"".join(lines)).events)
    return progress


def test_an_unfinished_line_waits_for_its_rest():
    whole = step(1, 1) + step(2, 2)
    first = parse_events(whole[:-5])
    assert [event.step for event in first.events] == [1]
    rest = parse_events(whole[first.consumed_bytes :])
    assert [event.step for event in rest.events] == [2]


@given(st.lists(st.integers(0, 400), max_size=6))
def test_any_cut_of_the_file_gives_each_event_once(cuts):
    whole = b"".join(step(number, number) for number in range(1, 8))
    known, offset = [], 0
    for end in [*sorted(cuts), len(whole)]:
        batch = parse_events(whole[offset:end])
        offset += batch.consumed_bytes
        known += [event.step for event in batch.events]
    assert known == list(range(1, 8))


def test_torn_lines_are_counted_and_the_rest_is_read():
    batch = parse_events(b'{"time": "x", "ki\n' + step(1, 1) + b"[1, 2]\n\xff\xfe\n")
    assert len(batch.events) == 1
    assert batch.unreadable_lines == 3


@pytest.mark.parametrize("value", ["NaN", "Infinity", "null", "true", '"3"'])
def test_a_figure_that_is_none_is_none(value):
    raw = f'{{"time": "t", "kind": "step", "rank": 0, "step": 1, "loss": {value}}}\n'.encode()
    progress = Progress("1.0")
    progress.add(parse_events(raw).events)
    assert progress.last.loss is None


def test_the_line_tells_step_loss_speed_phase_and_time_left():
    progress = progress_of(line("phase", 1, phase="forward"), step(10, 2, seconds=2.0), target=40)
    assert progress_line(progress) == "step 10/40 | loss 2.5000 | 1,000 tokens/s | phase training | ETA 1 min 0 s"


def test_before_the_first_step_the_phase_is_shown():
    assert progress_line(progress_of(line("phase", 1, phase="model_build"))) == "phase model_build"


def test_a_phase_after_the_last_step_is_the_current_one():
    progress = progress_of(step(1, 1), line("phase", 2, phase="save", step=1))
    assert progress.phase == "save"


def test_the_time_left_uses_the_recent_pace():
    slow = [step(number, number, seconds=9.0) for number in range(1, 11)]
    fast = [step(number, number, seconds=1.0) for number in range(11, 40)]
    assert progress_of(*slow, *fast, target=100).eta_s == 61


def test_only_a_published_checkpoint_counts_as_usable():
    progress = progress_of(
        line("checkpoint", 1, step=5, path="a", state="published"),
        line("checkpoint", 2, step=9, path="b", state="saved"),
    )
    assert progress.last_checkpoint.step == 5


@pytest.mark.parametrize(("seconds", "words"), [(4, "4 s"), (61, "1 min 1 s"), (3720, "1 h 2 min"), (90000, "1 d 1 h")])
def test_durations_have_two_units(seconds, words):
    assert duration(seconds) == words
