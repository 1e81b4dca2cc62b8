"""What a rank finds inside its container, against its host's file."""

import pytest
from rackweave.cli.inside import inspect_rank, openable_devices
from rackweave.cli.system import LocalSystem
from rackweave.fabric.inside import device_findings, limit_findings, shadow_findings, trace_values

PLANNED = {"NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1", "NCCL_IB_DISABLE": "0", "NCCL_DEBUG": "WARN"}


def traced(seen, layers=None, files=None):
    return {it.name: it for it in trace_values(PLANNED, seen, layers or {}, files or {})}


def test_a_value_that_arrived_comes_from_the_hosts_file():
    values = traced(PLANNED)

    assert {it.origin for it in values.values()} == {"the host's file"}
    assert shadow_findings("trn01", list(values.values())) == []


@pytest.mark.parametrize(
    ("layers", "origin"),
    [
        ({"job environment": {"NCCL_DEBUG": "INFO"}}, "job environment"),
        ({"job environment": {}, "image": {"NCCL_DEBUG": "INFO"}}, "image"),
        ({}, "the program itself, or something started before it"),
    ],
)
def test_a_shadowed_value_is_reported_with_its_origin(layers, origin):
    values = traced({**PLANNED, "NCCL_DEBUG": "INFO"}, layers)

    (finding,) = shadow_findings("trn01", list(values.values()))
    assert finding.kind == "shadowed"
    assert f"planned as WARN, the rank has INFO from {origin}" in finding.message


def test_a_value_of_a_file_counts_only_where_the_environment_says_nothing():
    files = {"/root/.nccl.conf": {"NCCL_DEBUG": "TRACE"}, "/etc/nccl.conf": {"NCCL_DEBUG": "INFO", "NCCL_IB_TC": "41"}}
    values = traced(PLANNED, files=files)

    assert values["NCCL_DEBUG"].value == "WARN"
    assert (values["NCCL_IB_TC"].value, values["NCCL_IB_TC"].origin) == ("41", "/etc/nccl.conf")
    assert [it.kind for it in shadow_findings("trn01", list(values.values()))] == ["unplanned-variable"]


def test_the_users_file_hides_the_systems_file():
    files = {"/root/.nccl.conf": {"NCCL_DEBUG": "TRACE"}, "/etc/nccl.conf": {"NCCL_DEBUG": "INFO"}}

    assert traced({}, files=files)["NCCL_DEBUG"].value == "TRACE"


def test_a_value_that_did_not_arrive_is_reported():
    values = traced({name: value for name, value in PLANNED.items() if name != "NCCL_IB_HCA"})

    assert values["NCCL_IB_HCA"].shadowed


def test_devices_that_the_container_lost_are_counted_and_named():
    (finding,) = device_findings("trn01", PLANNED, {"mlx5_0": True})

    assert "1 of 2 planned RDMA devices are not there: mlx5_1" in finding.message


def test_devices_that_the_cgroup_closes_are_counted_and_named():
    (finding,) = device_findings("trn01", PLANNED, {"mlx5_0": True, "mlx5_1": False})

    assert "1 of 2 planned RDMA devices cannot be opened: mlx5_1" in finding.message


def test_sockets_need_no_devices():
    assert device_findings("gpu01", {"NCCL_IB_DISABLE": "1"}, {}) == []


def test_limits_are_judged_where_the_job_runs():
    findings = limit_findings("trn01", True, 8 << 20, 64 << 20)

    assert {finding.kind for finding in findings} == {"memlock", "shm"}
    assert limit_findings("trn01", False, 8 << 20, 64 << 20) == []
    assert limit_findings("trn01", True, -1, 32 << 30) == []


def test_a_rank_opens_each_device_and_says_which_does_not_open(tmp_path):
    for number, opens in ((0, True), (1, False)):
        verbs = tmp_path / f"sys/class/infiniband_verbs/uverbs{number}"
        verbs.mkdir(parents=True)
        (verbs / "ibdev").write_text(f"mlx5_{number}\n")
        if opens:
            (tmp_path / "dev/infiniband").mkdir(parents=True, exist_ok=True)
            (tmp_path / f"dev/infiniband/uverbs{number}").touch()

    assert openable_devices(LocalSystem([str(tmp_path)])) == {"mlx5_0": True, "mlx5_1": False}


def test_the_report_of_a_rank_names_host_values_and_findings(tmp_path, monkeypatch):
    conf = tmp_path / "trn03.conf"
    conf.write_text("NCCL_IB_DISABLE=0\nNCCL_IB_HCA==mlx5_0:1\n")
    monkeypatch.setenv("NCCL_IB_DISABLE", "1")
    monkeypatch.setenv("NCCL_IB_HCA", "=mlx5_0:1")
    monkeypatch.setenv("HOME", str(tmp_path))

    report = inspect_rank(str(conf), None, LocalSystem([str(tmp_path)]))

    assert report["host"] == "trn03"
    assert report["blocked"]
    assert {finding["kind"] for finding in report["findings"]} >= {"shadowed", "job-devices"}
