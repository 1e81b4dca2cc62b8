from dataclasses import replace

import pytest
from rackweave.slurm.change import (
    changed_keys,
    check_jobs_survive,
    config_change,
    foreign_files,
    is_ours,
    settled,
    with_left_alone,
)
from rackweave.slurm.config import MARKER, SlurmSite, slurm_files
from rackweave.slurm.munge import SlurmError

from tests.support.slurm_nodes import h100_node

SITE = SlurmSite("prod", "ctl01", ("gpu01", "gpu02"), partitions={"training": {}})
DOCUMENTS = [h100_node("gpu01"), h100_node("gpu02", 2063900)]
HOOKS = {"Prolog": "/usr/local/libexec/rackweave/slurm-prolog", "HealthCheckProgram": "/x/slurm-health"}


def files(**changes):
    return slurm_files(replace(SITE, **changes), DOCUMENTS)


def action(before, after, version=(22, 5)):
    return config_change(before, after, version).action


@pytest.mark.parametrize(
    ("change", "asked"),
    [
        ({"parameters": {"SlurmdTimeout": 60}}, "reconfigure"),
        ({"base": HOOKS}, "reconfigure"),
        ({"parameters": {"SchedulerParameters": "bf_interval=60"}}, "restart_controller"),
        ({"parameters": {"SelectTypeParameters": "CR_Core_Memory"}}, "restart_controller"),
        ({"parameters": {"TaskPlugin": "task/none"}}, "restart"),
        ({"memory_margin_percent": 5.0}, "restart"),
        ({"cgroup": {"ConstrainCores": True}}, "restart"),
        ({"topology": {"leaf": {"nodes": "gpu[01-02]"}}}, "restart"),
        ({}, "none"),
    ],
)
def test_what_changed_says_who_must_restart(change, asked):
    assert action(files(), files(**change)) == asked


@pytest.mark.parametrize(
    ("change", "asked"),
    [
        ({"memory_margin_percent": 5.0}, "reconfigure"),
        ({"cgroup": {"ConstrainCores": True}}, "reconfigure"),
        ({"parameters": {"SlurmdPort": 7818}}, "restart"),
        ({"parameters": {"AuthInfo": "cred_expire=20"}}, "restart"),
    ],
)
def test_from_23_11_on_a_reconfigure_starts_new_daemons_and_only_ports_and_keys_need_more(change, asked):
    assert action(files(), files(**change), (23, 11)) == asked


def test_a_topology_of_one_more_leaf_needs_no_restart():
    one = files(topology={"leaf": {"nodes": "gpu[01-02]"}})
    two = files(topology={"l1": {"nodes": "gpu01"}, "l2": {"nodes": "gpu02"}, "top": {"switches": ["l1", "l2"]}})
    assert action(one, two) == "reconfigure"


def test_only_keys_that_differ_are_named():
    assert changed_keys(files()["slurm.conf"], files(parameters={"SlurmdTimeout": 60})["slurm.conf"]) == {
        "SlurmdTimeout"
    }


def test_programs_that_some_nodes_lack_wait_for_a_run_over_all_nodes():
    old, new = files(), files(base=HOOKS, parameters={"SlurmdTimeout": 60})
    texts, waiting = settled(old, new, absent=["gpu01"])
    assert waiting == ("Prolog", "HealthCheckProgram")
    assert changed_keys(old["slurm.conf"], texts["slurm.conf"]) == {"SlurmdTimeout"}
    assert settled(old, new, absent=[]) == (new, ())


def test_a_limited_run_keeps_the_programs_that_are_there_and_removes_those_that_are_not_wanted():
    old = files(base=HOOKS)
    assert settled(old, files(base=HOOKS), absent=["gpu01"]) == (old, ())
    moved, waiting = settled(old, files(base={**HOOKS, "Prolog": "/elsewhere"}), absent=["gpu01"])
    assert (moved, waiting) == (old, ("Prolog",))
    assert settled(old, files(), absent=["gpu01"]) == (files(), ())


def test_a_file_is_ours_by_its_first_line_only():
    assert all(is_ours(text) for text in files().values() if text)
    assert not is_ours("ClusterName=site\n" + MARKER + "\n")
    assert not is_ours("")


def test_every_foreign_file_that_would_be_replaced_is_found():
    old = {**files(), "gres.conf": "Name=gpu File=/dev/nvidia0\n", "topology.conf": "SwitchName=s0 Nodes=gpu01\n"}
    assert foreign_files(old, files()) == ("gres.conf",)
    assert with_left_alone(old, files(), ("gres.conf",))["topology.conf"] == old["topology.conf"]
    with_switch = files(topology={"leaf": {"nodes": "gpu[01-02]"}})
    assert foreign_files(old, with_switch) == ("gres.conf", "topology.conf")


def test_a_foreign_topology_yaml_would_make_slurm_ignore_our_topology_conf():
    old = {**files(), "topology.yaml": "- topology: site\n"}
    assert foreign_files(old, files()) == ()
    with_switch = files(topology={"leaf": {"nodes": "gpu[01-02]"}})
    assert foreign_files(old, with_switch) == ("topology.yaml",)
    assert with_left_alone(old, with_switch, ("topology.yaml",))["topology.yaml"] == ""


def test_our_own_topology_file_goes_when_it_is_not_wanted_any_more():
    old = files(topology={"leaf": {"nodes": "gpu[01-02]"}})
    new = with_left_alone(old, files(), ())
    assert new["topology.conf"] == ""
    assert "topology.conf" in config_change(old, new).files


@pytest.mark.parametrize("key", ["SelectType", "StateSaveLocation", "selecttype"])
def test_a_change_that_loses_running_jobs_is_refused_while_there_are_any(key):
    old, new = files(), files(parameters={key: "/elsewhere" if "State" in key else "select/linear"})
    with pytest.raises(SlurmError, match="Slurm has 3"):
        check_jobs_survive(old, new, jobs=3)
    check_jobs_survive(old, new, jobs=0)


def test_another_cluster_name_is_refused_for_slurmctld_would_not_start():
    with pytest.raises(SlurmError, match="is other, but this Slurm is prod"):
        check_jobs_survive(files(), files(cluster_name="other"), jobs=0)
    check_jobs_survive({}, files(), jobs=0)
