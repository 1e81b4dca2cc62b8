"""Checks of real nodes over ssh: of any inventory with ``--inventory``, else of the lab."""

from __future__ import annotations

import json
import subprocess

import pytest
import testinfra

from tests.support import lab as support

LAB = "inventory/lab"
CONNECTION = {
    "user": "ansible_user | default('')",
    "address": "ansible_host | default(inventory_hostname)",
    "key": "ansible_ssh_private_key_file | default('')",
    "arguments": "ansible_ssh_common_args | default('')",
    "train_user": "training_job_user",
    "venv": "training_job_venv",
    "shared": "training_job_shared_dir",
    "documents": "rackweave_state_dir ~ '/observed'",
    "submit_host": "training_job_submit_host",
}


def pytest_addoption(parser):
    parser.addoption("--inventory", default=LAB, help="inventory whose nodes are checked")


def pytest_collection_modifyitems(items):
    for item in items:
        if "tests/testinfra" in str(item.path):
            item.add_marker(pytest.mark.lab)


def pytest_generate_tests(metafunc):
    """Run a test once for each host of a group: `node` for GPU nodes, `any_node` for all hosts."""
    for fixture, groups in (("node", ["gpu_nodes"]), ("any_node", ["slurm_controller", "gpu_nodes"])):
        if fixture in metafunc.fixturenames:
            hosts = support.inventory_hosts(metafunc.config.getoption("--inventory"))
            names = [name for group in groups for name in hosts.get(group, [])]
            metafunc.parametrize(fixture, names, indirect=True, scope="session")


@pytest.fixture(scope="session")
def variables(request):
    """Return host to the templated variables that tests need."""
    inventory = request.config.getoption("--inventory")
    if inventory == LAB:
        request.getfixturevalue("lab")
    names = ", ".join(f"'{key}': {value}" for key, value in CONNECTION.items())
    command = [
        str(support.BIN / "ansible"),
        "slurm_controller:gpu_nodes",
        "-i",
        inventory,
        "-m",
        "ansible.builtin.debug",
    ]
    done = subprocess.run(
        [*command, "--one-line", "--args", "msg={{ {" + names + "} }}"],
        cwd=support.ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(parse(line) for line in done.stdout.splitlines() if " => " in line)


def parse(line):
    """Read one line of the ansible command: ``HOST | SUCCESS => {...}``."""
    head, _, body = line.partition(" => ")
    return head.split(" | ")[0].strip(), json.loads(body)["msg"]


def connect(name, variables):
    entry = variables[name]
    user = f"{entry['user']}@" if entry["user"] else ""
    sudo = "" if entry["user"] == "root" else "&sudo=true"
    key = f"&ssh_identity_file={entry['key']}" if entry["key"] else ""
    address = f"ssh://{user}{entry['address']}?timeout=30{key}{sudo}"
    return testinfra.get_host(address, ssh_extra_args=entry["arguments"])


@pytest.fixture(scope="session")
def node(request, variables):
    return connect(request.param, variables)


@pytest.fixture(scope="session")
def any_node(request, variables):
    return connect(request.param, variables)


@pytest.fixture(scope="session")
def controller(variables):
    return connect(next(iter(variables.values()))["submit_host"], variables)
