"""The boot-time tool of the role, run as it is, on a made-up machine: a sysfs tree and stand-in tools."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rackweave.provision.qos import qos_document

from tests.support.programs import path_with

ROOT = Path(__file__).resolve().parents[4]
TOOL = ROOT / "roles/rdma_fabric/files/rackweave_rdma_qos.py"
FIXTURE = ROOT / "molecule/resources/hardware"
PORT = "0000:0c:00.0"
BLOCK = {
    "kind": "roce",
    "mtu": 9000,
    "dscp": 26,
    "ecn": True,
    "lossless_priority": 3,
    "cnp_dscp": 48,
    "cnp_priority": 6,
}


class Machine:
    def __init__(self, directory, document, like=None):
        """Make the machine in a directory; `like` is one whose state it begins with."""
        self.root = directory / "fixture/root"
        self.config = directory / "rdma_qos.json"
        self.config.write_text(json.dumps(document))
        self.environment = {
            **os.environ,
            "PATH": path_with(FIXTURE / "tools"),
            "FIXTURE_DIRECTORY": str(self.root.parent),
        }
        if like is None:
            subprocess.run([sys.executable, FIXTURE / "make_tree.py", self.root], check=True)
        else:
            shutil.copytree(like.root.parent, self.root.parent, symlinks=True)

    def run(self, action, form="--json"):
        command = [sys.executable, TOOL, action, "--config", self.config, "--root", self.root]
        command += [form] if form == "--json" else []
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        if form != "--json":
            return done.returncode, done.stdout
        return done.returncode, json.loads(done.stdout) if done.stdout else done.stderr

    def edit(self, name, change):
        path = self.root.parent / name
        state = json.loads(path.read_text())
        change(state)
        path.write_text(json.dumps(state))


DOCUMENT = qos_document(BLOCK, [PORT], max_read_request_bytes=4096, acs_clear=True, wait_s=0)


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path, DOCUMENT)


@pytest.fixture(scope="module")
def applied(tmp_path_factory):
    """A machine on which everything was applied; not to be changed."""
    made = Machine(tmp_path_factory.mktemp("applied"), DOCUMENT)
    assert made.run("apply") == (0, {PORT: []})
    return made


def test_after_a_boot_everything_differs_and_each_setting_is_named(machine):
    code, found = machine.run("verify")
    text = "\n".join(found[PORT])
    assert code == 1
    for word in (
        "trust",
        "PFC",
        "traffic class",
        "ECN roce_np priority 3",
        "CNP DSCP",
        "rdma_cm ToS",
        "MTU",
        "MaxReadReq",
    ):
        assert word in text
    assert "ACS of bridge 0000:0c:01.0" in text


def test_what_was_applied_is_verified_and_applying_again_changes_nothing(tmp_path, applied):
    machine = Machine(tmp_path, DOCUMENT, like=applied)
    assert machine.run("verify") == (0, {PORT: []})
    assert machine.run("apply") == (0, {PORT: []})


def drop_trust(machine):
    machine.edit("qos.json", lambda state: state["ens0np0"].update(trust="pcp"))


def pause_another_priority(machine):
    machine.edit("qos.json", lambda state: state["ens0np0"].update(pfc=[0, 0, 0, 1, 0, 1, 0, 0]))


def move_the_dscp(machine):
    machine.edit("qos.json", lambda state: state["ens0np0"].update(map={"26": 5}))


def shrink_mtu(machine):
    (machine.root / "sys/class/net/ens0np0/mtu").write_text("1500\n")


def stop_marking(machine):
    (machine.root / "sys/class/net/ens0np0/ecn/roce_rp/enable/3").write_text("0\n")


def mark_another_priority(machine):
    (machine.root / "sys/class/net/ens0np0/ecn/roce_np/enable/0").write_text("1\n")


def change_traffic_class(machine):
    (machine.root / "sys/class/infiniband/mlx5_0/tc/1/traffic_class").write_text("Global tclass=104\n")


def redirect(machine):
    machine.edit("registers.json", lambda state: state["0000:0c:01.0"].update({"ECAP_ACS+6.w": "0004"}))


def shorten_reads(machine):
    machine.edit("registers.json", lambda state: state[PORT].update({"CAP_EXP+8.w": "2936"}))


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (drop_trust, "trust is pcp"),
        (pause_another_priority, "PFC is [0, 0, 0, 1, 0, 1, 0, 0]"),
        (move_the_dscp, "DSCP 26 maps to priority 5"),
        (shrink_mtu, "MTU is 1500"),
        (stop_marking, "ECN roce_rp priority 3 is 0"),
        (mark_another_priority, "ECN roce_np priority 0 is 1"),
        (change_traffic_class, "traffic class is 104"),
        (redirect, "ACS of bridge 0000:0c:01.0 is 0x0004"),
        (shorten_reads, "MaxReadReq is 512"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_each_single_drift_is_found_alone_and_mended(tmp_path, applied, damage, word):
    machine = Machine(tmp_path, DOCUMENT, like=applied)
    damage(machine)
    code, found = machine.run("verify")
    assert code == 1
    assert len(found[PORT]) == 1
    assert word in found[PORT][0]
    assert machine.run("apply") == (0, {PORT: []})


def take_what_only_ofed_has(machine):
    """Leave the files that the kernel's own mlx5 driver makes."""
    shutil.rmtree(machine.root / "sys/class/net/ens0np0/ecn")
    shutil.rmtree(machine.root / "sys/class/infiniband/mlx5_0/tc")


INBOX = qos_document(BLOCK, [PORT], max_read_request_bytes=4096, acs_clear=True, wait_s=0, ofed=False)


def test_what_the_kernels_own_driver_has_no_setting_of_is_named_and_the_rest_is_set_and_proved(tmp_path, applied):
    machine = Machine(tmp_path, INBOX, like=applied)
    take_what_only_ofed_has(machine)
    drop_trust(machine)
    assert machine.run("verify") == (1, {PORT: ["trust is pcp, wanted dscp"]})
    assert machine.run("apply") == (0, {PORT: []})
    assert not (machine.root / "sys/class/net/ens0np0/ecn").exists()
    code, text = machine.run("verify", "--text")
    assert (code, text.count("\n")) == (0, 1)
    assert text.startswith(f"{PORT}: not possible here")
    assert text.strip().endswith("traffic class, ECN, CNP DSCP")


def test_settings_that_are_there_are_proved_without_ofed_too(tmp_path, applied):
    machine = Machine(tmp_path, INBOX, like=applied)
    stop_marking(machine)
    code, found = machine.run("verify")
    assert (code, len(found[PORT])) == (1, 1)
    assert "ECN roce_rp priority 3 is 0" in found[PORT][0]


def test_with_ofed_a_missing_setting_is_a_difference(tmp_path, applied):
    machine = Machine(tmp_path, DOCUMENT, like=applied)
    take_what_only_ofed_has(machine)
    code, found = machine.run("verify")
    assert code == 1
    assert any("traffic class is None" in line for line in found[PORT])
    assert machine.run("apply")[0] == 1


def test_a_document_of_an_earlier_version_is_read_as_one_for_ofed(tmp_path, applied):
    machine = Machine(tmp_path, {key: value for key, value in DOCUMENT.items() if key != "ofed"}, like=applied)
    assert machine.run("verify") == (0, {PORT: []})


def test_p089_acs_is_left_alone_without_consent(tmp_path):
    machine = Machine(tmp_path, qos_document(BLOCK, [PORT], acs_clear=False, wait_s=0))
    assert machine.run("apply")[0] == 0
    assert json.loads((machine.root.parent / "registers.json").read_text())["0000:0c:01.0"]["ECAP_ACS+6.w"] == "001d"


def test_a_card_that_is_gone_is_one_clear_line_and_the_others_are_set(tmp_path):
    machine = Machine(tmp_path, qos_document(BLOCK, [PORT, "0000:61:00.0"], wait_s=0))
    code, found = machine.run("apply")
    assert code == 1
    assert found == {PORT: [], "0000:61:00.0": ["0000:61:00.0: no RDMA device in this slot"]}


@pytest.mark.parametrize("text", ["", "{}", '{"schema": "rackweave.rdma_qos/2"}', "[]"])
def test_a_configuration_it_does_not_know_is_refused(machine, text):
    machine.config.write_text(text)
    code, message = machine.run("verify")
    assert code == 2
    assert "rackweave-rdma-qos" in message
