"""The progress watchdog on a simulated clock: each fault is named in time, healthy hours raise nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from rackweave.watch.progress import Limits, ProgressFinding, Watchdog

Record = dict[str, object]


class Job:
    """A made-up trainer of eight ranks that writes what ours writes, on a clock of its own."""

    def __init__(self, step_s: float = 2.0, micro_batches: int = 4, seed: int = 1) -> None:
        self.now = 0.0
        self.step = 0
        self.step_s = step_s
        self.micro_batches = micro_batches
        self.chance = random.Random(seed)
        self.slow_rank: int | None = None
        self.slow_factor = 1.0
        self.stopped: set[int] = set()
        self.loss: float | None = None

    def phase(self, name: str, seconds: float) -> Iterator[Record]:
        yield {"time": self.now, "kind": "phase", "rank": 0, "phase": name, "step": self.step}
        self.now += seconds
        if name in ("evaluate", "save"):
            kind = "evaluation" if name == "evaluate" else "checkpoint"
            yield {"time": self.now, "kind": kind, "rank": 0, "step": self.step, "state": "published"}

    def start(self) -> Iterator[Record]:
        yield {"time": self.now, "kind": "start", "rank": 0}
        for name, seconds in (
            ("nccl_init", 60.0),
            ("model_build", 90.0),
            ("checkpoint_load", 240.0),
            ("optimizer_init", 20.0),
        ):
            yield from self.phase(name, seconds)

    def train(self, steps: int) -> Iterator[Record]:
        for _ in range(steps):
            self.step += 1
            length = self.step_s * self.slow_factor * self.chance.uniform(0.95, 1.08)
            for batch in range(self.micro_batches):
                self.now += length / self.micro_batches
                for rank in range(8):
                    if rank not in self.stopped:
                        yield {
                            "time": self.now,
                            "phase": "forward",
                            "rank": rank,
                            "step": self.step,
                            "micro_batch": batch,
                        }
            sections = {
                rank: length * 0.8 * (2.0 if rank == self.slow_rank else self.chance.uniform(0.97, 1.03))
                for rank in range(8)
            }
            loss = (
                self.loss if self.loss is not None else 2.0 + 3.0 / (1 + self.step / 500) + self.chance.gauss(0, 0.02)
            )
            yield {
                "time": self.now,
                "kind": "step",
                "rank": 0,
                "step": self.step,
                "loss": loss,
                "grad_norm": 0.5,
                "step_time_s": length,
                "rank_seconds": sections,
            }


def _watch(records: Iterator[Record], dog: Watchdog, every: float = 5.0) -> list[ProgressFinding]:
    """Feed records and ask every few seconds between them, as the watcher does."""
    found: list[ProgressFinding] = []
    asked = 0.0
    for record in records:
        moment = float(str(record["time"]))
        while asked + every <= moment:
            asked += every
            found += dog.check(asked)
        dog.feed(record)
    return found


def _classes(found: list[ProgressFinding]) -> set[str]:
    return {finding.diagnosis_class for finding in found}


def test_eight_healthy_hours_with_evaluations_saves_and_restarts_raise_nothing() -> None:
    def hours() -> Iterator[Record]:
        job = Job()
        while job.now < 8 * 3600:
            yield from job.start()
            for _ in range(12):
                yield from job.train(120)
                yield from job.phase("evaluate", job.chance.uniform(60, 400))
                yield from job.train(40)
                yield from job.phase("save", job.chance.uniform(20, 500))
            yield {"time": job.now, "kind": "restart", "rank": 0}

    assert _watch(hours(), Watchdog()) == []


@pytest.mark.parametrize("step_s", [0.2, 2.0, 30.0, 90.0])
def test_a_hang_is_named_within_the_promised_time(step_s: float) -> None:
    job, dog = Job(step_s), Watchdog()
    assert _watch(job.train(60), dog) == []
    last = job.now
    limit = max(120.0, 2 * step_s * 1.1 + 30.0)
    named = next(second for second in range(1, 4000) if dog.check(last + second))
    finding = dog.check(last + named)[0]
    assert finding.diagnosis_class == "hang.no_progress"
    assert named <= limit + 1


def test_markers_of_micro_batches_see_a_hang_of_short_steps_sooner() -> None:
    job, dog = Job(step_s=2.0), Watchdog()
    _watch(job.train(60), dog)
    assert dog.silence_limit() == 60.0


def test_the_rank_whose_marker_stands_behind_is_the_culprit_of_the_hang() -> None:
    job, dog = Job(step_s=2.0), Watchdog()
    _watch(job.train(30), dog)
    job.step += 1
    for rank in range(8):
        if rank != 5:
            dog.feed({"time": job.now + 0.5, "phase": "forward", "rank": rank, "step": job.step, "micro_batch": 0})
    assert dog.check(job.now + 130.0)[0].ranks == (5,)


def test_a_declared_phase_has_its_own_limit() -> None:
    job, dog = Job(), Watchdog()
    _watch(job.train(30), dog)
    dog.feed({"time": job.now, "kind": "phase", "rank": 0, "phase": "save", "step": job.step})
    assert dog.check(job.now + 1700.0) == []
    assert _classes(dog.check(job.now + 1900.0)) == {"hang.no_progress"}


def test_a_job_that_never_starts_is_a_hang_after_the_start_limit() -> None:
    dog = Watchdog(started=100.0)
    assert dog.check(1800.0) == []
    assert _classes(dog.check(2000.0)) == {"hang.no_progress"}


def test_a_slow_rank_is_a_straggler_and_is_named() -> None:
    job, dog = Job(), Watchdog()
    _watch(job.train(40), dog)
    job.slow_rank = 6
    found = _watch(job.train(12), dog)
    assert _classes(found) == {"perf.straggler"}
    assert {finding.ranks for finding in found} == {(6,)}


def test_everybody_slower_is_a_slow_down_of_nobody() -> None:
    job, dog = Job(), Watchdog()
    _watch(job.train(60), dog)
    job.slow_factor = 1.8
    found = _watch(job.train(30), dog)
    assert _classes(found) == {"perf.slowdown"}
    assert {finding.ranks for finding in found} == {()}


def test_a_single_slow_step_is_nothing() -> None:
    job, dog = Job(), Watchdog()
    _watch(job.train(60), dog)
    job.slow_factor = 8.0
    found = _watch(job.train(1), dog)
    job.slow_factor = 1.0
    assert found + _watch(job.train(60), dog) == []


def test_a_loss_that_is_no_number_is_named_at_once() -> None:
    job, dog = Job(), Watchdog()
    _watch(job.train(20), dog)
    job.loss = float("nan")
    list(map(dog.feed, job.train(1)))
    assert _classes(dog.check(job.now)) == {"num.nan"}


def test_a_loss_that_stays_lost_is_given_up_and_one_that_comes_back_is_not() -> None:
    job, dog = Job(), Watchdog()
    list(map(dog.feed, job.train(20)))
    job.loss = float("nan")
    list(map(dog.feed, job.train(39)))
    assert dog.lost() is None
    job.loss = 2.0
    list(map(dog.feed, job.train(1)))
    job.loss = float("inf")
    list(map(dog.feed, job.train(39)))
    assert dog.lost() is None
    list(map(dog.feed, job.train(1)))
    found = dog.lost()
    assert found is not None
    assert (found.diagnosis_class, found.step) == ("num.nan", 100)
    assert "since step 61, for 40 steps" in found.text


@pytest.mark.parametrize("every", [1, 10, 100])
def test_a_program_that_reports_rarely_is_given_up_after_three_reports_at_most(every: int) -> None:
    dog = Watchdog()
    for report in range(1, 100):
        loss = 2.0 if report <= 5 else float("nan")
        dog.feed({"time": 1.0 * report, "kind": "step", "step": report * every, "loss": loss})
        if dog.lost() is not None:
            break
    assert report == {1: 45, 10: 10, 100: 8}[every]


def test_a_program_whose_losses_were_never_read_as_numbers_is_not_given_up() -> None:
    dog = Watchdog()
    for step in range(1, 500):
        dog.feed({"time": 1.0 * step, "kind": "step", "step": step, "loss": float("nan")})
    assert dog.lost() is None


def test_eight_healthy_hours_of_half_precision_are_never_given_up() -> None:
    """The scale of the loss is found from 2^32 down at the start; later a few steps are lost every two thousand."""
    chance, dog = random.Random(3), Watchdog()
    lost = 34
    for step in range(1, 8 * 3600):
        if lost:
            lost -= 1
        elif chance.random() < 1 / 2000:
            lost = chance.randint(1, 8)
        dog.feed({"time": 1.0 * step, "kind": "step", "step": step, "loss": float("inf") if lost else 2.0})
        assert dog.lost() is None


def test_a_skipped_overflow_is_no_nan() -> None:
    dog = Watchdog()
    dog.feed({"time": 1.0, "kind": "step", "step": 1, "loss": 2.0, "grad_norm": float("inf"), "skipped": True})
    assert dog.check(2.0) == []


def test_a_loss_that_jumps_and_stays_is_a_spike() -> None:
    job, dog = Job(), Watchdog()
    _watch(job.train(60), dog)
    job.loss = 9.0
    list(map(dog.feed, job.train(2)))
    assert "num.loss_spike" in _classes(dog.check(job.now))


def test_one_high_loss_that_comes_back_is_nothing() -> None:
    job, dog = Job(), Watchdog()
    _watch(job.train(60), dog)
    job.loss = 9.0
    list(map(dog.feed, job.train(1)))
    job.loss = None
    assert _watch(job.train(20), dog) == []


def test_slower_than_predicted_is_a_note_without_alarm() -> None:
    job, dog = Job(step_s=4.0), Watchdog(predicted_step_s=2.0)
    found = _watch(job.train(40), dog)
    assert _classes(found) == {"perf.drift"}
    assert not any(finding.alarm for finding in found)


def test_an_ended_job_is_silent_for_ever() -> None:
    job, dog = Job(), Watchdog()
    _watch(job.train(20), dog)
    dog.feed({"time": job.now, "kind": "end", "rank": 0})
    assert dog.check(job.now + 1e6) == []


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"kind": "step"},
        {"time": "x", "kind": "step"},
        {"time": 1.0, "kind": "step", "step": "7", "loss": "?"},
        {"time": 1.0, "phase": 3, "rank": "a"},
        {"time": 1.0, "kind": "step", "rank_seconds": {"1": None}},
    ],
)
def test_foreign_records_do_no_harm(record: Record) -> None:
    dog = Watchdog()
    dog.feed(record)
    assert dog.check(2.0) == []


def test_limits_can_be_set() -> None:
    dog = Watchdog(limits=Limits(phase_s={"start": 10.0}))
    assert _classes(dog.check(11.0)) == {"hang.no_progress"}
