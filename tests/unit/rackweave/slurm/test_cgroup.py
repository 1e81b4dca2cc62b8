"""Whether slurmd could use its cgroup plugin on a node."""

import pytest
from rackweave.slurm.cgroup import cgroup_complaint, parse_cgroup_facts

PLUGINS = "/usr/lib/x86_64-linux-gnu/slurm-wlm"
BUS = "/run/dbus/system_bus_socket"


def facts(kind="cgroup2fs", v2=True, bus=True):
    lines = [kind, f"{PLUGINS}/cgroup_v1.so", *([f"{PLUGINS}/cgroup_v2.so"] if v2 else []), *([BUS] if bus else [])]
    return parse_cgroup_facts("\n".join(lines))


def complaint(facts, parameters=None, **settings):
    return cgroup_complaint(facts, parameters or {}, settings)


def test_p073_a_node_with_plugin_and_bus_is_fine():
    assert complaint(facts()) is None


@pytest.mark.parametrize(
    ("has", "word"),
    [
        (facts(v2=False), "cgroup_v2.so"),
        (facts(bus=False), BUS),
    ],
)
def test_p073_what_version_2_lacks_is_named(has, word):
    found = complaint(has)
    assert word in found
    assert "cgroup/v2" in found
    assert "IgnoreSystemd" in found


def test_p073_a_hybrid_hierarchy_is_refused_where_version_2_is_asked_for():
    assert "tmpfs" in complaint(facts(kind="tmpfs"), CgroupPlugin="cgroup/v2")


def test_a_hybrid_hierarchy_is_version_1_where_slurm_chooses():
    assert complaint(facts(kind="tmpfs", bus=False)) is None


@pytest.mark.parametrize("settings", [{"IgnoreSystemd": True}, {"ignoresystemd": "yes"}, {"CgroupPlugin": "disabled"}])
def test_p073_the_settings_of_a_container_need_no_bus(settings):
    assert complaint(facts(bus=False), **settings) is None


def test_without_a_user_of_cgroups_nothing_is_asked():
    parameters = {"ProctrackType": "proctrack/linuxproc", "TaskPlugin": "task/none"}
    assert complaint(facts(v2=False, bus=False), parameters) is None
    assert complaint(facts(v2=False), {**parameters, "JobAcctGatherType": "jobacct_gather/cgroup"}) is not None


def test_nothing_read_is_no_traceback():
    assert "not" in cgroup_complaint(parse_cgroup_facts(""), {}, {})
