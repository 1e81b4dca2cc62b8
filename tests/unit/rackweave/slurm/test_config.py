from dataclasses import replace

import pytest
from rackweave.slurm.accounting import accounting_parameters
from rackweave.slurm.change import config_change
from rackweave.slurm.config import SlurmSite, check_site, slurm_files
from rackweave.slurm.hardware import configured_memory_mib, gpu_type
from rackweave.slurm.munge import SlurmError
from rackweave.slurm.versions import version_pair

from tests.support.slurm_nodes import h100_node

SITE = SlurmSite("prod", "ctl01", ("gpu01", "gpu02"), partitions={"training": {}})


DOCUMENTS = [h100_node("gpu01"), h100_node("gpu02", 2063900)]


def line(text, start):
    return next(row for row in text.splitlines() if row.startswith(start))


def test_nodes_of_one_shape_share_a_line_with_the_least_memory_less_the_margin():
    text = slurm_files(SITE, DOCUMENTS)["slurm.conf"]
    node = line(text, "NodeName=")
    assert "NodeName=gpu[01-02] " in node
    assert "CPUs=224 Sockets=2 CoresPerSocket=56 ThreadsPerCore=2" in node
    memory = int(node.split("RealMemory=")[1].split()[0])
    assert 0.97 * 2063900 < memory <= 0.98 * 2063900


def test_cores_of_a_gpu_are_slurms_numbers_of_its_whole_socket():
    rows = slurm_files(SITE, DOCUMENTS)["gres.conf"].splitlines()
    assert "NodeName=gpu[01-02] Name=gpu Type=h100 File=/dev/nvidia[0-3] Cores=0-55" in rows
    assert "NodeName=gpu[01-02] Name=gpu Type=h100 File=/dev/nvidia[4-7] Cores=56-111" in rows


def test_a_node_with_a_gpu_less_has_a_line_of_its_own():
    files = slurm_files(SITE, [DOCUMENTS[0], h100_node("gpu02", gpus=7)])
    assert "Gres=gpu:h100:8" in line(files["slurm.conf"], "NodeName=gpu01")
    assert "Gres=gpu:h100:7" in line(files["slurm.conf"], "NodeName=gpu02")


def test_the_order_of_the_documents_does_not_matter():
    assert slurm_files(SITE, DOCUMENTS) == slurm_files(SITE, DOCUMENTS[::-1])


def test_a_host_without_document_is_named_and_nothing_is_written():
    with pytest.raises(SlurmError, match=r"gpu\[02-03\]"):
        slurm_files(replace(SITE, hosts=("gpu01", "gpu02", "gpu03")), DOCUMENTS[:1])


def test_example_documents_never_reach_slurm():
    with pytest.raises(SlurmError, match="gpu02"):
        slurm_files(SITE, [DOCUMENTS[0], replace(DOCUMENTS[1], origin="example")])


def test_a_parameter_wins_whatever_its_case_and_an_empty_one_removes_a_key():
    site = replace(SITE, parameters={"returntoservice": 2, "JobCompType": "", "SlurmdParameters": ["a", "b"]})
    text = slurm_files(site, DOCUMENTS)["slurm.conf"]
    assert line(text, "ReturnToService") == "ReturnToService=2"
    assert "returntoservice" not in text
    assert "JobCompType" not in text
    assert "SlurmdParameters=a,b" in text


@pytest.mark.parametrize("key", ["NodeName", "gresTypes", "bad key", "A\nB"])
def test_a_key_that_follows_from_documents_or_is_none_is_refused(key):
    with pytest.raises(SlurmError, match="slurm_parameters"):
        slurm_files(replace(SITE, parameters={key: "x"}), DOCUMENTS)


def test_a_value_of_two_lines_cannot_smuggle_in_a_second_key():
    with pytest.raises(SlurmError, match="more than one line"):
        slurm_files(replace(SITE, parameters={"SlurmctldDebug": "info\nSlurmUser=root"}), DOCUMENTS)


def test_memlock_of_the_submit_host_is_never_propagated():
    assert "PropagateResourceLimitsExcept=MEMLOCK" in slurm_files(SITE, DOCUMENTS)["slurm.conf"]


@pytest.mark.parametrize(("version", "refused"), [((24, 11), True), ((23, 11), True), ((22, 5), False), (None, False)])
def test_a_cgroup_key_that_this_slurm_dies_of_is_refused(version, refused):
    site = replace(SITE, cgroup={"CgroupAutomount": True}, version=version)
    if refused:
        with pytest.raises(SlurmError, match="CgroupAutomount"):
            slurm_files(site, DOCUMENTS)
    else:
        assert "CgroupAutomount=yes" in slurm_files(site, DOCUMENTS)["cgroup.conf"]


def test_without_slurmd_the_kernels_own_count_serves():
    bare = replace(DOCUMENTS[0], slurm=None, memory_total_bytes=2063937 * 1024**2)
    assert slurm_files(replace(SITE, hosts=("gpu01",)), [bare]) == slurm_files(
        replace(SITE, hosts=("gpu01",)), [DOCUMENTS[0]]
    )


def test_real_memory_is_never_above_what_the_node_reports():
    for reported in (443596, 1031000, 24105):
        assert configured_memory_mib(reported, 0.0) <= reported


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA GB200", "gb200"),
        ("Tesla V100-SXM2-32GB", "v100"),
        ("simulated", ""),
        (None, ""),
    ],
)
def test_the_type_is_a_piece_of_the_detected_name(name, kind):
    assert gpu_type(name) == kind
    assert kind in (name or "").lower()


def test_a_new_node_asks_for_a_restart_and_a_timeout_for_a_reconfigure():
    old = slurm_files(SITE, DOCUMENTS)
    more = slurm_files(replace(SITE, hosts=("gpu01", "gpu02", "gpu03")), [*DOCUMENTS, h100_node("gpu03")])
    slower = slurm_files(replace(SITE, parameters={"SlurmdTimeout": 60}), DOCUMENTS)
    assert config_change(old, more).action == "restart"
    assert config_change(old, slower).action == "reconfigure"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("info # all of it", "'#'"),
        ({"a": 1}, "is a mapping"),
        ("info\rSlurmUser=root", "more than one line"),
    ],
)
def test_a_value_that_slurm_would_read_otherwise_is_refused(value, said):
    with pytest.raises(SlurmError, match=said):
        slurm_files(replace(SITE, parameters={"SlurmctldDebug": value}), DOCUMENTS)


def test_null_takes_a_key_away_like_an_empty_text():
    text = slurm_files(replace(SITE, parameters={"JobCompType": None, "JobCompLoc": ""}), DOCUMENTS)["slurm.conf"]
    assert "JobComp" not in text
    assert "None" not in text


@pytest.mark.parametrize("name", ["", "two words", "x" * 41, "a=b"])
def test_a_cluster_name_that_slurm_refuses_is_refused(name):
    with pytest.raises(SlurmError, match="slurm_cluster_name"):
        slurm_files(replace(SITE, cluster_name=name), DOCUMENTS)


def partition(keys, name="training"):
    return line(slurm_files(replace(SITE, partitions={name: keys}), DOCUMENTS)["slurm.conf"], "PartitionName=")


def test_a_partition_takes_nodes_as_list_or_text_and_keys_of_any_case():
    assert "Nodes=gpu[01-02] " in partition({"nodes": ["gpu02", "gpu01"]})
    assert "Nodes=gpu01 " in partition({"Nodes": "gpu[01]"})
    assert partition({"default": "NO"}).count("efault=NO") == 1


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"Nodes": "gpu[01-03]"}, "gpu03, which slurm_nodes does not"),
        ({"Nodes": "gpu[01"}, "brackets"),
        ({"AllowGroups": "a b"}, "has a space"),
        ({"Max Time": 1}, "not a key"),
        ("1-00:00:00", "must be a mapping such as"),
        (["gpu01"], "must be a mapping such as"),
    ],
)
def test_a_partition_that_would_end_slurmctld_is_refused(keys, said):
    with pytest.raises(SlurmError, match=said):
        partition(keys)


@pytest.mark.parametrize("name", ["DEFAULT", "two words", ""])
def test_a_partition_needs_a_name_of_its_own(name):
    with pytest.raises(SlurmError, match="cannot be a name"):
        partition({}, name)


def test_only_one_partition_is_the_default():
    partitions = {"short": {}, "long": {"Default": True}}
    text = slurm_files(replace(SITE, partitions=partitions), DOCUMENTS)["slurm.conf"]
    assert [row.split("Default=")[1:] for row in text.splitlines() if row.startswith("Part")] == [[], ["yes"]]


def test_memory_for_the_system_needs_memory_to_be_consumable():
    with pytest.raises(SlurmError, match="CR_Core_Memory"):
        slurm_files(replace(SITE, mem_spec_limit_mib=16384), DOCUMENTS)
    consumable = replace(SITE, mem_spec_limit_mib=16384, parameters={"SelectTypeParameters": "CR_Core_Memory"})
    assert "MemSpecLimit=16384 Gres=" in line(slurm_files(consumable, DOCUMENTS)["slurm.conf"], "NodeName=")
    with pytest.raises(SlurmError, match=r"below RealMemory=\d+ of gpu\[01-02\]"):
        slurm_files(replace(consumable, mem_spec_limit_mib=4_000_000), DOCUMENTS)


@pytest.mark.parametrize(
    ("cgroup", "version", "known"),
    [
        ({"cgroupautomount": True}, (23, 11), False),
        ({"ConstrainKmemSpace": False}, (24, 11), False),
        ({"ConstrainKmemSpace": False}, (22, 5), True),
        ({"CgroupPlugin": "disabled"}, (22, 5), False),
        ({"CgroupPlugin": "disabled"}, (24, 11), True),
        ({"EnableControllers": True}, (22, 5), False),
        ({"SignalChildrenProcesses": True}, (23, 11), True),
        ({"ConstrainDevices": True, "CgroupPlugin": "cgroup/v2"}, (24, 11), True),
    ],
)
def test_cgroup_conf_has_only_what_this_version_starts_with(cgroup, version, known):
    site = replace(SITE, cgroup=cgroup, version=version)
    if known:
        assert all(key in slurm_files(site, DOCUMENTS)["cgroup.conf"] for key in cgroup)
    else:
        with pytest.raises(SlurmError, match="slurm_cgroup sets"):
            slurm_files(site, DOCUMENTS)


@pytest.mark.parametrize(
    ("key", "value", "version", "known"),
    [
        ("TopologyPlugin", "topology/flat", (24, 11), False),
        ("TopologyPlugin", "topology/flat", (25, 5), True),
        ("TopologyPlugin", "topology/none", (24, 11), False),
        ("TopologyPlugin", "topology/default", (22, 5), False),
        ("topologyplugin", "topology/block", (22, 5), False),
        ("SelectType", "select/cons_res", (23, 11), False),
        ("SelectType", "select/cons_res", (22, 5), True),
    ],
)
def test_a_plugin_that_this_version_lacks_is_refused(key, value, version, known):
    site = replace(SITE, parameters={key: value}, version=version)
    if known:
        assert f"={value}" in slurm_files(site, DOCUMENTS)["slurm.conf"]
    else:
        with pytest.raises(SlurmError, match=f"{key}={value}"):
            slurm_files(site, DOCUMENTS)


def test_a_flat_network_sets_no_topology_plugin_for_its_name_differs_between_versions():
    for version in ((22, 5), (24, 11), (25, 5), None):
        assert "TopologyPlugin" not in slurm_files(replace(SITE, version=version), DOCUMENTS)["slurm.conf"]


def test_accounting_counts_gpus_where_there_are_any():
    base = accounting_parameters("db01", enabled=True)
    text = slurm_files(replace(SITE, base=base), DOCUMENTS)["slurm.conf"]
    assert line(text, "AccountingStorageType") == "AccountingStorageType=accounting_storage/slurmdbd"
    assert "AccountingStorageTRES=gres/gpu" in text
    bare = [replace(document, gpus=()) for document in DOCUMENTS]
    assert "AccountingStorageTRES" not in slurm_files(replace(SITE, base=base), bare)["slurm.conf"]
    assert accounting_parameters("db01", enabled=False) == {}


@pytest.mark.parametrize(
    ("text", "pair"), [("22.05.8-4+deb12u3", (22, 5)), ("slurm-wlm 24.11.5", (24, 11)), ("", None)]
)
def test_the_version_of_slurm_is_read_from_a_package_version(text, pair):
    assert version_pair(text) == pair


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"topology": {"leaf": {"nodes": "gpu01"}}}, "leaves out gpu02"),
        ({"partitions": {"short": {"Nodes": "gpu09"}}}, "gpu09"),
        ({"parameters": {"NodeName": "x"}}, "slurm_parameters must not set NodeName"),
        ({"cgroup": {"bad key": True}}, "slurm_cgroup"),
        ({"hosts": ("gpu01", "DEFAULT")}, "DEFAULT"),
        ({"cluster_name": "a b"}, "slurm_cluster_name"),
    ],
)
def test_what_the_inventory_alone_has_wrong_is_found_without_any_document(change, said):
    check_site(SITE)
    with pytest.raises(SlurmError, match=said):
        check_site(replace(SITE, **change))


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ("idle_on_node_suspend", "idle_on_node_suspend,enable_configless"),
        (["cloud_dns", "enable_configless"], "cloud_dns,enable_configless"),
        ("", "enable_configless"),
        (None, "enable_configless"),
    ],
)
def test_nodes_get_their_files_whatever_else_slurmctld_is_told(given, value):
    site = replace(SITE, parameters={"slurmctldparameters": given})
    assert f"\nSlurmctldParameters={value}\n" in slurm_files(site, DOCUMENTS)["slurm.conf"]
