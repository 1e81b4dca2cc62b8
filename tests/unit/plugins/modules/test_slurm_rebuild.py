"""The module slurm_rebuild against a Slurm in memory: what it calls, what it says, and when it changes nothing."""

import pytest
from ansible.module_utils.basic import AnsibleModule
from rackweave.rebuild.moves import Act

from tests.support.rebuilt_slurm import NODE, FakeSlurm

NEIGHBOUR = "NodeName=gpu01 Arch=x86_64 State=IDLE ThreadsPerCore=1"


@pytest.fixture
def slurm(monkeypatch):
    """A Slurm that the module finds behind scontrol and scancel."""
    fake = FakeSlurm()
    fake.refuses = ""

    def run_command(_module, words, **_):
        program, arguments = words[0], tuple(words[1:])
        if arguments[:2] == ("--oneliner", "show"):
            whole = arguments[2:] == ("node",)
            text = fake.show(arguments[2]) + (f"\n{NEIGHBOUR}" if whole else "")
            return (
                (0, text, "") if fake.answers else (1, "", "slurm_load_node error: Unable to contact slurm controller")
            )
        if fake.refuses and fake.refuses in " ".join(arguments):
            return 1, "", "Requested nodes are busy"
        fake.make(Act("", program, arguments, " ".join(arguments)))
        return 0, "", ""

    fake.answers = True
    monkeypatch.setattr(AnsibleModule, "run_command", run_command)
    monkeypatch.setattr(AnsibleModule, "get_bin_path", lambda _module, name, **_: name)
    return fake


def call(run_module, step, **more):
    return run_module("slurm_rebuild", node=NODE, step=step, user="hpc", poll_s=0.01, **more)


def test_a_whole_rebuild_leaves_slurm_as_it_was_and_reports_no_lasting_change(run_module, slurm):
    before = slurm.end
    results = [call(run_module, step) for step in ("check", "begin", "reserve", "resume", "finish")]
    assert slurm.end == before
    assert not any(result["changed"] for result in results)
    assert results[1]["acts"] == ["drain gpu02"]


def test_check_mode_names_the_next_move_and_makes_none(run_module, slurm):
    result = call(run_module, "begin", check_mode=True)
    assert result["msg"] == "would drain gpu02, and go on from there"
    assert slurm.log == []


def test_an_idle_neighbour_is_reserved_too(run_module, slurm):
    call(run_module, "begin")
    result = call(run_module, "reserve", neighbours=["gpu01"])
    assert result["reserved"] == ["gpu02", "gpu01"]


def test_a_neighbour_that_got_a_job_meanwhile_is_left_alone(run_module, slurm):
    call(run_module, "begin")
    slurm.refuses = "nodes=gpu02,gpu01"
    result = call(run_module, "reserve", neighbours=["gpu01"])
    assert result["reserved"] == ["gpu02"]
    assert "without the neighbour" in result["acts"][0]


def test_what_slurm_refuses_is_one_sentence(run_module, slurm):
    slurm.refuses = "state=drain"
    result = call(run_module, "begin")
    assert result["failed"]
    assert result["msg"] == "Slurm refused to drain gpu02: Requested nodes are busy"


def test_a_reservation_that_is_still_in_use_is_deleted_a_little_later(run_module, slurm, monkeypatch):
    slurm.reservations["rackweave-rebuild-gpu02"] = {"nodes": NODE}
    slurm.refuses = "delete"
    monkeypatch.setattr("time.sleep", lambda _seconds: setattr(slurm, "refuses", ""))
    result = call(run_module, "finish")
    assert result["acts"] == ["delete reservation rackweave-rebuild-gpu02"]
    assert slurm.reservations == {}


def test_a_refusal_says_why_and_what_was_done_before(run_module, slurm):
    slurm.job("5", name="theirs", state="RUNNING", UserId="ann(2001)")
    result = call(run_module, "begin", drain_wait_s=0.05)
    assert result["failed"]
    assert result["refused"]
    assert result["acts"] == ["drain gpu02"]
    assert "job 5 (theirs) of ann still runs" in result["msg"]


def test_the_jobs_that_wait_are_named(run_module, slurm):
    slurm.job("7")
    result = call(run_module, "begin")
    assert result["held"] == ["7"]
    assert result["jobs"] == [{"job_id": "7", "name": "rackweave-demo", "user": "hpc"}]


def test_a_controller_that_does_not_answer_is_said(run_module, slurm):
    slurm.answers = False
    assert "slurmctld does not answer" in call(run_module, "begin")["msg"]
