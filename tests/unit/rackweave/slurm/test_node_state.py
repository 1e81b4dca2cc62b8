import pytest
from rackweave.errors import ParseError
from rackweave.slurm.node_state import may_disrupt, parse_node

LINE = (
    "NodeName=gpu01 Arch=x86_64 CoresPerSocket=2 CPUAlloc=0 Gres=gpu:4 NodeAddr=gpu01 Version=22.05.8 "
    "OS=Linux 6.1 State={state} ThreadsPerCore=1 BootTime=2026-11-29T20:36:48 Reason=bad DIMM, do not use "
    "[root@2026-11-29T20:36:48]"
)


def node(state):
    return parse_node(LINE.format(state=state))


@pytest.mark.parametrize("state", ["IDLE+DRAIN", "IDLE*+DRAIN", "DOWN*", "DOWN+DRAIN", "IDLE+DRAIN+MAINTENANCE"])
def test_a_drained_or_down_node_may_be_disturbed(state):
    assert may_disrupt(node(state), controller_answers=True, job_steps=0).ok


@pytest.mark.parametrize(
    "state",
    [
        "IDLE",
        "ALLOCATED",
        "MIXED",
        "ALLOCATED+DRAIN",
        "MIXED+DRAIN",
        "IDLE+COMPLETING+DRAIN",
        "COMPLETING",
        "ALLOCATED*",
    ],
)
def test_a_node_that_has_a_job_or_could_get_one_may_not(state):
    assert not may_disrupt(node(state), controller_answers=True, job_steps=0).ok


def test_a_node_that_slurm_does_not_know_may_be_disturbed():
    assert parse_node("Node gpu09 not found") is None
    assert may_disrupt(None, controller_answers=True, job_steps=0).ok


def test_job_steps_on_the_machine_outweigh_whatever_slurm_says():
    for answers in (True, False):
        assert not may_disrupt(None, controller_answers=answers, job_steps=1).ok


def test_without_a_controller_and_without_job_steps_nothing_can_be_hurt():
    assert may_disrupt(None, controller_answers=False, job_steps=0).ok


def test_the_reason_of_a_drain_is_kept_without_its_author():
    assert node("IDLE+DRAIN").reason == "bad DIMM, do not use"


def test_other_output_is_an_error_not_an_unknown_node():
    with pytest.raises(ParseError):
        parse_node("slurm_load_node error: Zero Bytes were transmitted or received")
