"""The network of the training job: settings after a boot, fabric manager, and the NCCL files that ranks read."""

import json
import re
from pathlib import Path

import pytest
from rackweave.fabric.nccl_conf import parse_conf

QOS_UNIT = "rackweave-rdma-qos.service"
QOS_CONFIG = "/etc/rackweave/rdma_qos.json"
VERSION = r"(\d+\.\d+\.\d+|\d+\.\d+)"


def skip_without_rdma(node, document):
    if not document["nics"] and not node.file(QOS_CONFIG).exists:
        pytest.skip("no RDMA device on this node")


def test_the_settings_of_the_network_are_applied_at_every_boot(node, document):
    skip_without_rdma(node, document)
    assert node.service(QOS_UNIT).is_enabled
    result = node.check_output(f"systemctl show {QOS_UNIT} --value --property=Result")
    assert result == "success", node.run(f"journalctl --no-pager --lines=30 --unit={QOS_UNIT}").stdout


def test_the_settings_of_the_network_are_in_force(node, document, hardware_root):
    skip_without_rdma(node, document)
    done = node.run(f"/usr/local/sbin/rackweave-rdma-qos verify --config {QOS_CONFIG} --root {hardware_root or '/'}")
    assert done.rc == 0, done.stdout + done.stderr


def driver_version(node, root):
    """Return the version of the loaded driver, None where none is."""
    text = node.file(f"{root}/proc/driver/nvidia/version")
    return re.search(rf"Module\s+(?:for \S+\s+)?{VERSION}", text.content_string).group(1) if text.exists else None


def test_the_fabric_manager_has_the_full_version_of_the_driver(node, hardware_root):
    driver = driver_version(node, hardware_root)
    if driver is None or not node.exists("nv-fabricmanager"):
        pytest.skip("no NVSwitch machine: no driver loaded or no fabric manager installed")
    assert re.search(VERSION, node.check_output("nv-fabricmanager --version")).group(1) == driver


def planned_hosts(node, entry):
    """Return run to the environment that the controller planned for this node, of runs that were launched."""
    found = {}
    for path in sorted(Path(entry["plans"]).glob(f"*/nccl/{node.inventory_name}.conf")):
        run = path.parents[1].name
        if node.file(f"{entry['shared']}/runs/{run}/plan/plan.json").exists:
            found[run] = path.read_text()
    return found


def test_the_nccl_files_say_what_was_planned(node, entry):
    planned = planned_hosts(node, entry)
    if not planned:
        pytest.skip("no run was launched from this controller")
    for run, text in planned.items():
        there = node.file(f"{entry['shared']}/runs/{run}/plan/nccl/{node.inventory_name}.conf").content_string
        assert parse_conf(there) == parse_conf(text), f"run {run}"


def test_the_interfaces_of_the_nccl_files_are_there(node, entry):
    present = set(node.check_output("ls /sys/class/net").split())
    missing = {}
    for run, text in planned_hosts(node, entry).items():
        for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
            value = parse_conf(text).get(name, "")
            names = [word for word in value.lstrip("=").split(",") if word and not value.startswith("^")]
            if names and not any(have.startswith(word) for word in names for have in present):
                missing[f"{run}: {name}"] = value
    assert missing == {}


def test_the_document_names_the_same_network_cards(node, document):
    names = node.run("ls /sys/class/infiniband").stdout.split()
    planned = [nic["device"] for nic in document["nics"]]
    assert sorted(names) == sorted(planned), json.dumps(planned)
