from dataclasses import replace

import pytest
from rackweave.hardware.node import Cpu, Gpu, NodeDocument, NumaNode, SlurmNode
from rackweave.slurm.change import changed_keys, config_change, is_ours
from rackweave.slurm.config import MARKER, SlurmSite, slurm_files, version_pair
from rackweave.slurm.hardware import configured_memory_mib, gpu_type
from rackweave.slurm.munge import SlurmError

SITE = SlurmSite("prod", "ctl01", ("gpu01", "gpu02"), partitions={"training": {}})


def h100_node(host, memory_mib=2063937, gpus=8):
    """A dual-socket node with 56 cores and two threads each; the kernel counts the second threads from 112 on."""
    return NodeDocument(
        host=host,
        origin="measured",
        cpu=Cpu(
            sockets=2,
            cores_per_socket=56,
            threads_per_core=2,
            logical=224,
            numa_nodes=(NumaNode(0, "0-55,112-167"), NumaNode(1, "56-111,168-223")),
        ),
        slurm=SlurmNode(224, 1, 2, 56, 2, memory_mib),
        gpus=tuple(
            Gpu(index, name="NVIDIA H100 80GB HBM3", numa_node=index // 4, device_file=f"/dev/nvidia{index}")
            for index in range(gpus)
        ),
    )


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
    assert config_change(old, old).action == "none"
    assert changed_keys(old["slurm.conf"], slower["slurm.conf"]) == {"SlurmdTimeout"}


def test_a_file_is_ours_by_its_first_line_only():
    assert is_ours(slurm_files(SITE, DOCUMENTS)["slurm.conf"])
    assert not is_ours("ClusterName=site\n" + MARKER + "\n")
    assert not is_ours("")


@pytest.mark.parametrize(
    ("text", "pair"), [("22.05.8-4+deb12u3", (22, 5)), ("slurm-wlm 24.11.5", (24, 11)), ("", None)]
)
def test_the_version_of_slurm_is_read_from_a_package_version(text, pair):
    assert version_pair(text) == pair
