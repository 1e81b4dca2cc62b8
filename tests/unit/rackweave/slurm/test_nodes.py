"""Which nodes take jobs, by the words of Slurm."""

import pytest
from rackweave.slurm.nodes import takes_jobs


@pytest.mark.parametrize(
    "state", ["IDLE", "MIXED", "ALLOCATED+COMPLETING", "IDLE+PLANNED", "MIXED+RESERVED", "IDLE+CLOUD"]
)
def test_a_node_in_order_takes_jobs_busy_or_not(state):
    assert takes_jobs(state)


@pytest.mark.parametrize(
    "state",
    [
        "IDLE+DRAIN",
        "MIXED+DRAIN",
        "IDLE+NOT_RESPONDING",
        "IDLE*",
        "DOWN",
        "DOWN*+DRAIN",
        "IDLE+MAINTENANCE+RESERVED",
        "IDLE+INVALID_REG",
        "UNKNOWN",
        "FUTURE",
        "",
    ],
)
def test_a_node_that_is_drained_or_silent_takes_none_though_it_is_idle(state):
    assert not takes_jobs(state)
