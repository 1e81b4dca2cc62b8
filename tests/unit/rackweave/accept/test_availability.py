"""Which nodes are tested now."""

import pytest
from rackweave.accept.availability import why_not
from rackweave.slurm.node_state import parse_node


def state(words, reason="none"):
    return parse_node(
        f"NodeName=gpu01 Arch=x86_64 State={words} ThreadsPerCore=1 Reason={reason} [root@2026-01-01T00:00:00]"
    )


@pytest.mark.parametrize("words", ["ALLOCATED", "MIXED", "IDLE+COMPLETING", "MIXED+DRAIN"])
def test_a_node_with_a_job_is_left_alone(words):
    assert "a job holds the node" in why_not(state(words), True, "")


@pytest.mark.parametrize("words", ["IDLE+DRAIN", "DOWN", "DOWN+NOT_RESPONDING"])
def test_a_node_where_no_job_can_start_says_so(words):
    assert "no job can start there" in why_not(state(words, "bad DIMM"), True, "")


def test_a_reserved_node_is_tested_only_inside_a_reservation():
    assert "acceptance_reservation" in why_not(state("IDLE+RESERVED"), True, "")
    assert why_not(state("IDLE+RESERVED"), True, "rebuild") == ""


def test_an_idle_node_is_tested_and_a_silent_or_unknown_one_is_not():
    assert why_not(state("IDLE"), True, "") == ""
    assert "does not answer" in why_not(state("IDLE*"), False, "")
    assert "does not know" in why_not(None, False, "")
