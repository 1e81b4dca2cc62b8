"""Acceptance on the lab: figures with verdicts, nothing measured twice without need, and a slow node named."""

import json
from pathlib import Path

import pytest

from tests.support.lab import play

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1500)]
VERIFY = ("playbooks/verify.yml",)
SLOWED_CPU, SLOWED_NETWORK = "gpu02", "gpu01"
QUOTA_US, PERIOD_US = 20_000, 100_000
# A token bucket instead of netem, which not every kernel has: each message of the echo waits for its tokens.
SLOW_LINK = "tc qdisc add dev eth0 root tbf rate 400kbit burst 3000 latency 2s"
# Without torch, whose import alone would take most of a minute with so little processor.
WITHOUT_COLLECTIVES = "training_job_venv=/mnt/shared/none"


def pids_of(lab, host):
    """Return the processes of a container, seen from the host: those in its namespace of processes."""
    init = lab.podman("inspect", "--format", "{{.State.Pid}}", lab.container(host)).strip()
    space = Path(f"/proc/{init}/ns/pid").readlink()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (entry / "ns/pid").readlink() == space:
                found.append(entry.name)
        except OSError:
            continue  # it ended meanwhile
    return init, found


@pytest.fixture
def cpu_quota(lab):
    """Give all processes of one node a fifth of one processor."""
    init, pids = pids_of(lab, SLOWED_CPU)
    old = Path("/sys/fs/cgroup/cpu")
    if old.is_dir():
        group = old / "rackweave-slowed"
        group.mkdir()
        (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(QUOTA_US))
        for pid in pids:
            (group / "cgroup.procs").write_text(pid)
        yield
        for pid in pids_of(lab, SLOWED_CPU)[1]:
            (old / "cgroup.procs").write_text(pid)
        group.rmdir()
        return
    line = next(it for it in Path(f"/proc/{init}/cgroup").read_text().splitlines() if it.startswith("0::"))
    limit = Path("/sys/fs/cgroup") / line[4:].split("/init.scope")[0].lstrip("/") / "cpu.max"
    limit.write_text(f"{QUOTA_US} {PERIOD_US}")
    yield
    limit.write_text("max")


@pytest.fixture
def slow_link(lab):
    lab.ssh(SLOWED_NETWORK, SLOW_LINK)
    yield
    lab.ssh(SLOWED_NETWORK, "tc qdisc del dev eth0 root")


def report_of(path):
    return json.loads(path.read_text())["acceptance"]


def rows_of(report, host):
    return {test["name"]: test for test in report["hosts"][host]["tests"]}


@pytest.fixture(scope="module")
def measured(lab, tmp_path_factory):
    """Return the file of a first acceptance."""
    path = tmp_path_factory.mktemp("acceptance") / "verify.json"
    play(*VERIFY, "-e", f"acceptance_report_file={path}")
    return path


def test_every_test_has_a_verdict_and_the_figures_are_there(measured):
    report = report_of(measured)
    assert report["verdict"] == "pass"
    for host in ("gpu01", "gpu02"):
        tests = rows_of(report, host)
        assert {"storage-write", "storage-read", "allreduce-node", "cpu-work", "round-trip"} <= tests.keys()
        for name in ("storage-write", "storage-read", "allreduce-node", "cpu-work", "round-trip"):
            assert tests[name]["value"] > 0
            assert tests[name]["verdict"] == "pass"
        detail = tests["allreduce-node"]["detail"]
        assert 0 < detail["p50_us"] <= detail["p99_us"] <= detail["max_us"]
        for name in ("dcgm-diagnostic", "nvlink-lanes", "pcie-links", "rdma-write", "bare-metal"):
            assert tests[name]["verdict"] == "not possible here"
            assert tests[name]["reason"]
    assert [pair["hosts"] for pair in report["pairs"]] == [["gpu01", "gpu02"]]
    assert {total["name"] for total in report["totals"]} == {"storage-write", "storage-read"}


def test_nodes_that_passed_as_they_are_are_not_measured_again(measured):
    before = measured.read_text()
    again = play(*VERIFY, "-e", f"acceptance_report_file={measured}")
    assert measured.read_text() == before
    assert again.changed_tasks == []


def test_a_node_slowed_on_purpose_fails_with_its_name(lab, measured, cpu_quota, slow_link, tmp_path):
    path = tmp_path / "verify.json"
    result = play(*VERIFY, "-e", f"acceptance_report_file={path}", "-e", WITHOUT_COLLECTIVES, expect=2)
    report = report_of(path)
    failed = {
        (host, name)
        for host in report["hosts"]
        for name, test in rows_of(report, host).items()
        if test["verdict"] == "fail"
    }
    assert (SLOWED_CPU, "cpu-work") in failed
    assert "there is no Python at /mnt/shared/none" in rows_of(report, SLOWED_CPU)["allreduce-node"]["reason"]
    assert (SLOWED_NETWORK, "round-trip") in failed
    assert (SLOWED_NETWORK, "cpu-work") not in failed
    assert (SLOWED_CPU, "round-trip") not in failed
    assert f"acceptance failed on {SLOWED_NETWORK}, {SLOWED_CPU}" in " ".join(result.output.split())


def test_a_node_with_a_job_is_pending_and_its_job_lives_on(lab, tmp_path):
    job = lab.ssh(
        "ctl", "runuser -u hpc -- sbatch --chdir=/tmp --parsable --nodelist=gpu01 --exclusive --wrap 'sleep 300'"
    )
    try:
        lab.ssh(
            "ctl", f"timeout 100 sh -c 'until squeue -h -j {job.strip()} -t running | grep -q .; do sleep 0.2; done'"
        )
        path = tmp_path / "verify.json"
        play(*VERIFY, "--limit", "gpu01", "-e", f"acceptance_report_file={path}")
        report = report_of(path)
        assert report["hosts"]["gpu01"]["verdict"] == report["verdict"] == "pending"
        assert "a job holds the node" in report["hosts"]["gpu01"]["reason"]
        assert lab.ssh("ctl", f"squeue -h -j {job.strip()} -o %T").strip() == "RUNNING"
    finally:
        lab.ssh("ctl", f"scancel {job}")
