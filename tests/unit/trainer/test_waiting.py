"""A rank's own share of a step: what it did not spend waiting for others."""

import pytest
import torch
import torch.distributed as dist

from trainer.waiting import OwnTime


@pytest.fixture
def group(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_time_in_a_collective_is_not_own_time(group, monkeypatch):
    own = OwnTime(torch.device("cpu"))
    work = dist.barrier(async_op=True)
    before = own.lap()
    clock = iter([10.0, 13.0])
    monkeypatch.setattr("trainer.waiting.time.perf_counter", lambda: next(clock, 13.0))
    work.wait()
    monkeypatch.undo()
    from trainer import waiting

    assert before is not None
    assert waiting._WAITED[0] >= 3.0


def test_work_counts_and_a_new_lap_begins_at_zero(group, monkeypatch):
    clock = iter([10.0, 12.5, 20.0, 20.25])
    monkeypatch.setattr("trainer.waiting.time.perf_counter", lambda: next(clock))
    own = OwnTime(torch.device("cpu"))
    assert own.lap() == 2.5
    own.restart()
    assert own.lap() == 0.25


def test_nothing_is_claimed_where_the_clock_of_the_host_says_nothing():
    assert OwnTime(torch.device("cuda")).lap() is None
