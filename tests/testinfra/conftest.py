"""Checks of real nodes over ssh: of any inventory with ``--inventory``, else of the lab."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import time
from pathlib import Path

import pytest
import testinfra
from rackweave.plan.support import environment_pins, pinned

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
    "plans": "rackweave_state_dir ~ '/plan'",
    "documents": "rackweave_state_dir ~ '/observed'",
    "submit_host": "training_job_submit_host",
    "slurm_host": "slurm_controller_host | default(groups['slurm_controller'] | first)",
    "slurm_directory": "slurm_directory | default('/etc/slurm')",
    "slurm_node": "inventory_hostname in (slurm_nodes | default(groups['gpu_nodes']))",
    "slurm_manage": "slurm_manage | default(true)",
    "memlock": "node_base_memlock | default('unlimited')",
    "time_sync": "node_base_time_sync_enabled | default(true)",
    "exporter": "monitoring_node_exporter_enabled | default(false)",
    "exporter_address": "monitoring_listen_address | default('127.0.0.1')",
    "exporter_port": "monitoring_node_exporter_port | default(9100)",
    "requirements": "trainer_runtime_packages | default([])",
    "runtime": "training_job_runtime | default('venv')",
}
CONTAINERS = ("container", "docker", "lxc", "lxc-libvirt", "oci", "podman", "systemd-nspawn")


def pytest_addoption(parser):
    parser.addoption("--inventory", default=LAB, help="inventory whose nodes are checked")
    parser.addoption("--as-it-is", action="store_true", help="check the lab without starting or provisioning it before")
    parser.addoption("--hardware-root", default="/", help="root of the sysfs and procfs of simulated hardware on nodes")


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
    if inventory == LAB and not request.config.getoption("--as-it-is"):
        request.getfixturevalue("lab")
    found = templated(inventory, "slurm_controller:gpu_nodes")
    # Jobs may be submitted, and slurmctld may run, on a host of neither group.
    first = next(iter(found.values()))
    others = sorted({first["submit_host"], first["slurm_host"]} - set(found))
    return {**found, **(templated(inventory, ":".join(others)) if others else {})}


def templated(inventory, pattern):
    names = ", ".join(f"'{key}': {value}" for key, value in CONNECTION.items())
    command = [str(support.BIN / "ansible"), pattern, "-i", inventory, "-m", "ansible.builtin.debug"]
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


@pytest.fixture(scope="session")
def connect(variables, tmp_path_factory):
    """Return a function from host name to connection; commands of one host share one ssh connection."""
    sockets, hosts = tmp_path_factory.mktemp("ssh"), {}

    def connection(name):
        if name not in hosts:
            entry = variables[name]
            user = f"{entry['user']}@" if entry["user"] else ""
            sudo = "" if entry["user"] == "root" else "&sudo=true"
            key = f"&ssh_identity_file={entry['key']}" if entry["key"] else ""
            address = f"ssh://{user}{entry['address']}?timeout=30{key}{sudo}"
            share = f"-o ControlMaster=auto -o ControlPersist=60 -o ControlPath={sockets}/%C"
            hosts[name] = testinfra.get_host(address, ssh_extra_args=f"{entry['arguments']} {share}")
            hosts[name].inventory_name = name
        return hosts[name]

    return connection


@pytest.fixture(scope="session")
def node(request, connect):
    return connect(request.param)


@pytest.fixture(scope="session")
def any_node(request, connect):
    return connect(request.param)


@pytest.fixture(scope="session")
def controller(variables, connect):
    """Return the host that jobs are submitted on."""
    return connect(next(iter(variables.values()))["submit_host"])


@pytest.fixture(scope="session")
def slurm_host(variables, connect):
    """Return the host of slurmctld, which may be another one."""
    return connect(next(iter(variables.values()))["slurm_host"])


@pytest.fixture(scope="session")
def idle_nodes(request, controller):
    """Return a function that asks Slurm which GPU nodes are idle, so that a step of ours may run there.

    Nodes that a step, such as our last one, has just left are waited for.
    """
    hosts = support.inventory_hosts(request.config.getoption("--inventory"))["gpu_nodes"]

    def states():
        shown = controller.check_output(f"sinfo --noheader --Node --format='%N %T' --nodes={','.join(hosts)}")
        return {tuple(line.split()) for line in shown.splitlines()}

    def ask():
        deadline = time.monotonic() + 60
        while any(state.startswith("completing") for _, state in states()) and time.monotonic() < deadline:
            time.sleep(0.5)
        return sorted({name for name, state in states() if state == "idle"} & set(hosts))

    return ask


@pytest.fixture
def entry(request, variables):
    """Return the variables of the host that the test is about."""
    name = "node" if "node" in request.fixturenames else "any_node"
    return variables[request.getfixturevalue(name).inventory_name]


@pytest.fixture
def document(node, entry):
    """Return the observed node document of the host."""
    path = Path(entry["documents"]) / f"{node.inventory_name}.json"
    if not path.exists():
        pytest.skip(f"no document of {node.inventory_name} was observed; run playbooks/provision.yml")
    return json.loads(path.read_text())


@pytest.fixture
def in_container(request, entry):
    name = "node" if "node" in request.fixturenames else "any_node"
    return request.getfixturevalue(name).run("systemd-detect-virt --container").stdout.strip() in CONTAINERS


@pytest.fixture(scope="session")
def hardware_root(request):
    return request.config.getoption("--hardware-root").rstrip("/")


@pytest.fixture(scope="session")
def steps(variables, controller, idle_nodes):
    """Return host to what a job step sees there, from one job on all idle nodes; a node with a job is not asked."""
    entry = next(iter(variables.values()))
    idle = idle_nodes()
    if not idle:
        return {}
    code = base64.b64encode((Path(__file__).parent / "step_facts.py").read_bytes()).decode()
    program = f'import base64; exec(base64.b64decode("{code}"))'
    done = controller.run(
        f"runuser -u {entry['train_user']} -- srun --chdir=/tmp --immediate=60 --exclusive --nodelist={','.join(idle)} "
        f"--nodes={len(idle)} --ntasks-per-node=1 --no-kill "
        f"/usr/bin/python3 -c '{program}' {entry['shared']} {entry['venv']}"
    )
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert found, done.stderr
    return {facts["host"]: facts for facts in found}


@pytest.fixture
def step(node, steps):
    """Return what a job step sees on the node."""
    if node.inventory_name not in steps:
        pytest.skip(f"{node.inventory_name} is not idle, so no step of ours runs there")
    return steps[node.inventory_name]


@pytest.fixture(scope="session")
def requirements(variables, controller):
    """Return package (named as PEP 503 normalises it) to version, as the trainer's environment is pinned."""
    entry = next(iter(variables.values()))
    if entry["runtime"] != "venv":
        pytest.skip("jobs run in an image, which brings its own packages")
    if entry["requirements"]:
        return pinned(entry["requirements"])
    settings = controller.file(f"{entry['venv']}/pyvenv.cfg").content_string
    return pinned(environment_pins(re.search(r"^version *= *(\S+)", settings, re.MULTILINE)[1]))
