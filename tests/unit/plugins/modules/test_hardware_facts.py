"""The two observing modules, on the made-up machine of the molecule scenario."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]
PLUGINS = "ansible_collections.rackweave.cluster.plugins.modules."
gpu_driver_facts = importlib.import_module(PLUGINS + "gpu_driver_facts")
rdma_fabric_facts = importlib.import_module(PLUGINS + "rdma_fabric_facts")


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    root = tmp_path_factory.mktemp("machine") / "fixture/root"
    subprocess.run([sys.executable, ROOT / "molecule/resources/hardware/make_tree.py", root], check=True)
    return str(root)


def test_gpus_switches_kernel_and_headers_are_seen(tree):
    facts = gpu_driver_facts.collect(tree)
    assert sum(row["vendor"] == "0x10de" for row in facts["pci"]) == 12
    assert facts["kernel"] == "6.1.0-fixture-amd64"
    assert facts["headers"] is True
    assert facts["kernels"] == [{"release": "6.1.0-fixture-amd64", "headers": True}]
    assert facts["switch_devices"] == 4


def test_a_machine_without_anything_gives_empty_facts(tmp_path):
    assert gpu_driver_facts.collect(str(tmp_path)) == {
        "pci": [],
        "kernel": "",
        "headers": False,
        "kernels": [],
        "modules": [],
        "loaded_driver": None,
        "kernel_arguments": [],
        "switch_devices": 0,
    }
    assert rdma_fabric_facts.collect(str(tmp_path)) == {"devices": [], "modules": [], "kernel_arguments": []}


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.161.07  Sat Feb 17 22:55:48 UTC 2024", "535.161.07"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build", "580.65.06"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  570.86.10  Release Build", "570.86.10"),
        ("", None),
    ],
)
def test_the_loaded_driver_is_read_from_both_flavours(text, version):
    assert gpu_driver_facts.parse_driver_version(text) == version


def test_rdma_functions_carry_address_rate_route_and_bridges(tree):
    devices = rdma_fabric_facts.collect(tree)["devices"]
    assert len(devices) == 9
    first = devices[0]
    assert (first["bdf"], first["rdma"], first["netdev"], first["rate_gbps"]) == (
        "0000:0c:00.0",
        "mlx5_0",
        "ens0np0",
        400.0,
    )
    assert first["bridges"] == ["0000:0c:01.0"]
    assert [row["bdf"] for row in devices if row["default_route"]] == ["0000:f0:00.0"]


@pytest.mark.parametrize(
    ("text", "rate"), [("400 Gb/sec (4X NDR)", 400.0), ("2.5 Gb/sec (1X SDR)", 2.5), ("", 0.0), ("unknown", 0.0)]
)
def test_rates_are_read_and_unreadable_ones_are_zero(text, rate):
    assert rdma_fabric_facts.parse_rate(text) == rate
