"""Following looks: what is said, what is read, and when it is over."""

import json

from rackweave.run.follow import FORGOTTEN_S, Follower


def job(state, reason=""):
    ended = state in ("COMPLETED", "FAILED")
    return {"state": state, "reason": reason, "nodes": "n1", "ended": ended, "live": not ended, "exit_code": 0}


def step(number):
    record = {"time": f"2026-01-05T10:00:{number:02d}+00:00", "kind": "step", "rank": 0, "step": number, "loss": 2.0}
    return json.dumps({**record, "step_time_s": 1.0}) + "\n"


def look(state="RUNNING", attempts=("1.0",), events="", offset=0, more=False, end=None, known=True, attempt=None):
    return {
        "job": job(state) if known else None,
        "attempts": list(attempts),
        "attempt": attempt or (attempts[-1] if attempts else ""),
        "events": events,
        "offset": offset,
        "more": more,
        "end": end,
    }


def follower(interval=5.0):
    return Follower("1", 100, interval)


def test_a_state_is_said_once():
    follow = follower()
    assert follow.take(look("PENDING", attempts=()), 0) == ["job 1 is pending"]
    assert follow.take(look("PENDING", attempts=()), 2) == []
    assert follow.take(look("RUNNING", attempts=()), 4) == ["job 1 is running on n1"]


def test_steps_are_said_no_more_often_than_asked():
    follow = follower(interval=5.0)
    said = [follow.take(look(events=step(second + 1)), second) for second in range(11)]
    assert [index for index, lines in enumerate(said) if any("step" in line for line in lines)] == [0, 5, 10]


def test_an_ended_job_is_read_to_its_end_before_it_is_over():
    follow = follower()
    follow.take(look("COMPLETED", events=step(1), more=True), 0)
    assert not follow.over
    follow.take(look("COMPLETED", events=step(2)), 1)
    assert not follow.over
    follow.take(look("COMPLETED"), 2)
    assert follow.over
    assert follow.current.last.step == 2


def test_the_rest_of_an_attempt_is_read_before_the_next_one():
    follow = follower()
    follow.take(look(events=step(1)), 0)
    follow.take(look(attempts=("1.0", "1.1"), attempt="1.0", events=step(2)), 1)
    assert follow.attempt == "1.0"
    follow.take(look("COMPLETED", attempts=("1.0", "1.1"), attempt="1.0"), 2)
    assert (follow.attempt, follow.offset, follow.over) == ("1.1", 0, False)


def test_attempts_of_other_jobs_are_left_alone():
    follow = follower()
    follow.take(look(attempts=("0.0", "1.0")), 0)
    follow.take(look("COMPLETED", attempts=("0.0", "1.0", "2.0"), attempt="1.0"), 1)
    assert follow.attempt == "1.0"
    assert follow.over


def test_a_forgotten_job_ends_with_its_end_file_at_once_and_without_one_after_a_while():
    with_end, without = follower(), follower()
    with_end.take(look(known=False, end={"requeued": False}), 0)
    assert with_end.over
    without.take(look(known=False), 0)
    assert not without.over
    without.take(look(known=False), FORGOTTEN_S + 1)
    assert without.over


def test_a_requeued_end_is_not_the_end_of_the_job():
    follow = follower()
    follow.take(look(known=False, end={"requeued": True}), 0)
    assert not follow.over
