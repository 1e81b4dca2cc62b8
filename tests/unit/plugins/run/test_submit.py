"""Launching: what is refused, what is copied, and that a live job is never doubled or touched."""

import json
import os

import pytest
from rackweave.provision.consents import drain_consents

SWITCHES = {"stop_ok": True, "requeue_ok": False, "drain_ok": False}


@pytest.fixture
def launch(run_action, on_submit_host, plan_dir, shared):
    def call(check_mode=False, **changes):
        arguments = {"run": "demo", "plan_dir": str(plan_dir), "shared_dir": str(shared), **SWITCHES, **changes}
        return run_action("job_submit", check_mode=check_mode, **arguments)

    return call


def test_a_plan_is_copied_and_submitted_detached(launch, slurm, shared, plan_dir):
    result = launch()
    assert (result["job_id"], result["attached"], result["changed"]) == ("1", False, True)
    copied = shared / "runs" / "demo" / "plan"
    assert (copied / "job.sbatch").read_text() == (plan_dir / "job.sbatch").read_text()
    assert (copied / "nccl" / "node-a.conf").exists()
    assert json.loads((shared / "runs" / "demo" / "job.json").read_text())["switches"] == SWITCHES


def test_every_switch_is_said_also_those_that_others_than_the_watcher_drain_by(launch, monkeypatch):
    said = []
    monkeypatch.setattr("ansible.utils.display.Display.display", lambda _self, text, **_: said.append(text))
    hosts = {"node-a": {"slurm_health_drain_ok": True}, "node-b": {}}
    launch(further_drains=drain_consents(list(hosts), hosts))
    assert said == [
        "run demo: switches: stop our own job on, requeue our own job off, drain nodes off, health check drains its "
        "own node on for 1 of 2 nodes (slurm_health_drain_ok), provisioning drains idle nodes for a restart of slurmd "
        "off (slurm_drain_ok)"
    ]


def test_the_login_environment_does_not_reach_the_job(launch, slurm, monkeypatch):
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    launch()
    assert "NCCL_DEBUG" not in slurm.read()["environment"]


def test_a_live_job_is_attached_to_and_its_plan_left_alone(launch, slurm, shared, plan_dir):
    launch()
    (plan_dir / "train.json").write_text((plan_dir / "train.json").read_text().replace("200", "300"))
    again = launch()
    assert (again["job_id"], again["attached"], again["changed"], again["plan_differs"]) == ("1", True, False, True)
    assert slurm.commands().count("sbatch") == 1
    assert '"steps": 200' in (shared / "runs" / "demo" / "plan" / "train.json").read_text()


@pytest.mark.parametrize("state", ["COMPLETED", "FAILED", "CANCELLED", "COMPLETING"])
def test_a_job_that_is_over_is_followed_by_a_new_one(launch, slurm, state):
    launch()
    slurm.write(jobs={"1": {**slurm.read()["jobs"]["1"], "state": state}})
    assert launch()["job_id"] == "2"


def test_files_that_the_plan_has_no_more_are_removed(launch, slurm, shared, plan_dir):
    launch()
    slurm.write(jobs={})
    (shared / "runs" / "demo" / "plan" / "old.conf").write_text("x")
    launch()
    assert not (shared / "runs" / "demo" / "plan" / "old.conf").exists()


def test_check_mode_copies_and_submits_nothing(launch, slurm, shared):
    result = launch(check_mode=True)
    assert result["changed"] is True
    assert "sbatch" not in slurm.commands()
    assert not (shared / "runs" / "demo" / "plan").exists()


def rewrite_plan(plan_dir, **changes):
    path = plan_dir / "plan.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"origin": "example"}, "example documents, which describe no machine of yours"),
        ({"fits": False, "reason": "it needs 90 GiB"}, "does not fit: it needs 90 GiB"),
        ({"run": "other"}, "of run 'other', not of 'demo'"),
    ],
)
def test_a_plan_that_must_not_start_is_refused_before_anything_is_touched(
    launch, on_submit_host, plan_dir, changes, message
):
    rewrite_plan(plan_dir, **changes)
    result = launch()
    assert result["failed"]
    assert message in result["msg"]
    assert on_submit_host == []


def test_the_check_alone_contacts_no_host(launch, on_submit_host, plan_dir):
    assert launch(check_only=True)["msg"] == "the plan can be launched"
    rewrite_plan(plan_dir, origin="example")
    assert "describe no machine of yours" in launch(check_only=True)["msg"]
    assert on_submit_host == []


def test_a_host_without_environment_is_refused(launch, plan_dir):
    (plan_dir / "nccl" / "node-b.conf").unlink()
    assert "no environment for node-b" in launch()["msg"]


def test_a_missing_plan_names_the_playbook(launch, plan_dir):
    (plan_dir / "plan.json").unlink()
    assert "run playbooks/plan.yml first" in launch()["msg"]


def test_slurms_own_refusal_is_shown(launch, slurm):
    slurm.write(refuse="sbatch: error: invalid partition specified: gold")
    result = launch()
    assert result["failed"]
    assert "invalid partition specified: gold" in result["msg"]


def test_root_never_owns_a_job(run_module, slurm, shared, monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: 0)
    result = run_module("run_submit", run="demo", run_dir=str(shared), switches=SWITCHES)
    assert result["failed"]
    assert "never belongs to root" in result["msg"]


def test_files_stay_inside_the_directory(run_module, tmp_path):
    result = run_module("run_files", path=str(tmp_path / "x"), files={"../evil": "1"})
    assert result["failed"]
    assert not (tmp_path / "evil").exists()


def test_equal_files_change_nothing(run_module, tmp_path):
    arguments = {"path": str(tmp_path / "x"), "files": {"a/b": "é\n"}}
    assert run_module("run_files", **arguments)["changed"] is True
    assert run_module("run_files", **arguments)["changed"] is False


def test_stopping_needs_the_operators_consent(run_module, slurm):
    slurm.write(jobs={"1": {"name": "rackweave-demo", "state": "RUNNING", "exit": "0:0"}})
    result = run_module("job_control", job_id="1", action="cancel")
    assert result["done"] is False
    assert "switched off" in result["msg"]
    assert slurm.commands() == []
    assert run_module("job_control", job_id="1", action="cancel", stop_ok=True)["done"] is True
    assert slurm.read()["jobs"]["1"]["state"] == "CANCELLED"
