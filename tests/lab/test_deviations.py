"""Deviations planted on the lab's nodes: each is found by the check that is made for it, and by no other."""

import json
import os
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree

import jinja2
import pytest
from rackweave.provision.qos import qos_document
from rackweave.provision.units import unit_command

from tests.support.deviations import DEVIATIONS, KEPT, ROOT, RUN
from tests.support.lab import ROOT as CHECKOUT
from tests.support.lab import STATE

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]
HARDWARE_NODE = "gpu02"
STAGING = STATE / "shared/.deviations"
PORTS = [f"0000:{bus}:00.0" for bus in ("0c", "2a", "41", "58", "86", "a5", "bd", "d5")]
BLOCK = {
    "kind": "roce",
    "mtu": 9000,
    "dscp": 26,
    "ecn": True,
    "lossless_priority": 3,
    "cnp_dscp": 48,
    "cnp_priority": 6,
}
DRIVER = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.10  Release Build"
# The simulated machine of the molecule scenario hardware_fixture, in an ordinary node of the lab.
BUILD = f"""set -e
cp -r /mnt/shared/.deviations/hardware /opt/fixture
python3 /opt/fixture/make_tree.py {ROOT}
mkdir -p {ROOT}/proc/driver/nvidia /etc/rackweave
echo '{DRIVER}' > {ROOT}/proc/driver/nvidia/version
for tool in mlnx_qos setpci; do install -m 0755 /opt/fixture/tools/$tool /usr/local/sbin/$tool; done
printf '#!/bin/sh\\necho "Fabric Manager version is : 570.86.10"\\n' > /usr/local/sbin/nv-fabricmanager
chmod 0755 /usr/local/sbin/nv-fabricmanager
install -m 0755 /mnt/shared/.deviations/tool /usr/local/sbin/rackweave-rdma-qos
install -m 0644 /mnt/shared/.deviations/rdma_qos.json /etc/rackweave/rdma_qos.json
install -m 0644 /mnt/shared/.deviations/unit /etc/systemd/system/rackweave-rdma-qos.service
systemctl daemon-reload
systemctl enable --now rackweave-rdma-qos
"""
REMOVE = """systemctl disable --now rackweave-rdma-qos
rm -rf /opt/fixture /run/fixture /etc/systemd/system/rackweave-rdma-qos.service /etc/rackweave/rdma_qos.json
cd /usr/local/sbin && rm -f mlnx_qos setpci nv-fabricmanager rackweave-rdma-qos
rmdir --ignore-fail-on-non-empty /etc/rackweave
systemctl daemon-reload
"""


@pytest.fixture(scope="module")
def hardware(lab):
    """Let one node look like an 8-GPU machine with everything in order."""
    role = CHECKOUT / "roles/rdma_fabric"
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined)
    environment.filters |= {"comment": "# {}".format, "rackweave.cluster.unit_command": unit_command}
    unit = environment.from_string((role / "templates/rackweave-rdma-qos.service.j2").read_text()).render(
        ansible_managed="test", __rdma_fabric_config="/etc/rackweave/rdma_qos.json", rdma_fabric_root=ROOT,
        __rdma_fabric_tool="/usr/local/sbin/rackweave-rdma-qos",
    )  # fmt: skip
    shutil.copytree(CHECKOUT / "molecule/resources/hardware", STAGING / "hardware", dirs_exist_ok=True)
    shutil.copy(role / "files/rackweave_rdma_qos.py", STAGING / "tool")
    document = qos_document(BLOCK, PORTS, max_read_request_bytes=4096, acs_clear=True, wait_s=0)
    (STAGING / "rdma_qos.json").write_text(json.dumps(document))
    (STAGING / "unit").write_text(unit)
    try:
        lab.ssh(HARDWARE_NODE, BUILD)
        yield
    finally:
        lab.ssh(HARDWARE_NODE, REMOVE, check=False)
        shutil.rmtree(STAGING)


@pytest.fixture(scope="module")
def planned(lab):
    """Let the controller have planned a run that was launched."""
    plan, launched = STATE / f"plan/{RUN}", STATE / f"shared/runs/{RUN}"
    # As launch.yml makes it: of the training user. A directory of root's would be a deviation of its own.
    lab.ssh("ctl", "install --directory --owner=hpc /mnt/shared/runs")
    for directory in (plan, launched / "plan"):
        (directory / "nccl").mkdir(parents=True)
        (directory / "plan.json").write_text("{}")
        for host in ("gpu01", "gpu02"):
            (directory / f"nccl/{host}.conf").write_text("NCCL_SOCKET_IFNAME==eth0\nNCCL_DEBUG=WARN\n")
    yield
    shutil.rmtree(plan)
    shutil.rmtree(launched)


def carry_out(lab, deviation, command):
    if not deviation.outside:
        lab.ssh(deviation.host, command)
        return
    pid = lab.podman("inspect", "--format", "{{.State.Pid}}", lab.container(deviation.host)).strip()
    subprocess.run(["nsenter", f"--target={pid}", "--mount", "sh", "-c", command], check=True)


def check_nodes(directory, choice="not trainer_runs and not test_slurm.py", at_least=61):
    """Run the checks as `make verify` does, without provisioning before; return (test, parameters) to its message."""
    report = directory / "report.xml"
    command = [
        sys.executable, "-m", "pytest", "tests/testinfra", "--confcutdir=tests/testinfra", "--as-it-is",
        f"--hardware-root={ROOT}", f"--junitxml={report}", "-q", "-k", choice,
    ]  # fmt: skip
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    done = subprocess.run(command, cwd=CHECKOUT, env=environment, capture_output=True, text=True, check=False)
    assert report.exists(), done.stdout + done.stderr
    cases = list(ElementTree.parse(report).iter("testcase"))
    assert len(cases) >= at_least, done.stdout + done.stderr
    failed = {}
    for case in cases:
        for problem in (*case.findall("failure"), *case.findall("error")):
            name, _, parameters = case.get("name").partition("[")
            failed[name, parameters.rstrip("]")] = f"{problem.get('message')}\n{problem.text}"
    return failed


def wait_until_idle(lab):
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        if set(lab.ssh("ctl", "sinfo --noheader --Node --format=%T").split()) == {"idle"}:
            return
        time.sleep(0.5)
    raise AssertionError(lab.ssh("ctl", "sinfo --Node --long"))


@pytest.fixture(scope="module")
def failed(lab, hardware, planned, tmp_path_factory):
    """Return what fails with every deviation planted; all are undone, and (`after`) what fails then."""
    wait_until_idle(lab)
    for host in ("ctl", "gpu01", "gpu02"):
        lab.ssh(host, f"mkdir -p -m 0700 {KEPT}")
    done = []
    try:
        for deviation in DEVIATIONS:
            carry_out(lab, deviation, deviation.plant)
            done.append(deviation)
        found = check_nodes(tmp_path_factory.mktemp("planted"))
    finally:
        for deviation in reversed(done):
            carry_out(lab, deviation, deviation.undo)
        for host in ("ctl", "gpu01", "gpu02"):
            lab.ssh(host, f"rm -r {KEPT}")
    wait_until_idle(lab)
    return {"planted": found, "after": check_nodes(tmp_path_factory.mktemp("repaired"))}


def names(check, key):
    """Say whether a failed test is the check: same test, and its parameters hold the host and the further one."""
    test, host, parameter = check
    words = key[1].replace("-", " ").split()
    return key[0] == test and host in words and (not parameter or parameter in words)


@pytest.mark.parametrize("deviation", DEVIATIONS, ids=lambda deviation: deviation.name.replace(" ", "_"))
def test_a_planted_deviation_is_named_by_its_check(failed, deviation):
    missed = [check for check in deviation.checks if not any(names(check, key) for key in failed["planted"])]
    assert missed == [], failed["planted"].keys()


def test_nothing_else_is_reported(failed):
    checks = [check for deviation in DEVIATIONS for check in deviation.checks]
    others = {key: text for key, text in failed["planted"].items() if not any(names(check, key) for check in checks)}
    assert others == {}


def test_a_failed_unit_is_shown_with_its_journal(failed):
    assert "out of order" in failed["planted"]["test_no_unit_has_failed", "ctl"]


def test_after_the_repair_nothing_is_found(failed):
    assert failed["after"] == {}


def test_twenty_deviations_at_least_are_planted():
    assert len([deviation for deviation in DEVIATIONS if deviation.checks]) >= 20


def test_a_drained_node_is_named_as_one_that_takes_no_jobs(lab, failed, tmp_path):
    """Not planted with the others: a step of theirs would not run there."""
    assert failed["after"] == {}
    try:
        lab.ssh("ctl", "scontrol update nodename=gpu02 state=drain reason=planted")
        found = check_nodes(tmp_path, choice="takes_jobs_on_the_node", at_least=2)
    finally:
        lab.ssh("ctl", "scontrol update nodename=gpu02 state=resume")
    wait_until_idle(lab)
    assert [names(("test_slurm_takes_jobs_on_the_node", "gpu02", ""), key) for key in found] == [True]
    assert "planted" in next(iter(found.values()))
