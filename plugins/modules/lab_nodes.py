#!/usr/bin/python
"""Start, replace or remove the nodes of the embedded cluster."""

from __future__ import annotations

import dataclasses
import json
import socket
import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.rackweave.lab.host import HostMode, LabError
from ..module_utils.rackweave.lab.nodes import (
    LABEL_CHECKOUT,
    LABEL_DIGEST,
    LABEL_LAB,
    LabNode,
    LabSite,
    container_name,
    lab_nodes,
    node_digest,
    run_arguments,
)

DOCUMENTATION = r"""
module: lab_nodes
short_description: Start or remove the nodes of the embedded cluster
description:
  - Starts one podman container with systemd and sshd for each node, waits until each answers on its SSH port, and
    returns the host keys as read inside the nodes. A container made from another image or with other settings is
    replaced; one that is stopped is started; containers of the same lab that are not named are removed.
options:
  podman: {description: Path of the podman command to use., type: path, required: true}
  name: {description: Name of the lab; prefix of its containers., type: str, required: true}
  checkout:
    description: Directory that owns the lab; a running lab of another one is not touched.
    type: str
    required: true
  network: {description: Name of the podman network., type: str}
  image: {description: Image of the nodes., type: str}
  hosts: {description: Inventory name to address of each node., type: dict, default: {}}
  gpu_hosts: {description: Those of them with simulated GPUs., type: list, elements: str, default: []}
  compute_count:
    description: Number of GPU nodes; those beyond O(gpu_hosts) are numbered on. 0 for as many as named.
    type: int
    default: 0
  gpus_per_node: {description: Simulated GPUs of a GPU node., type: int, default: 4}
  subnet: {description: IPv4 network of the bridge., type: str}
  volumes: {description: Podman volume arguments for every node., type: list, elements: str, default: []}
  privileged:
    description: Whether the nodes are privileged, so that a container engine can run in them.
    type: bool
    default: false
  mode: {description: RV(ignore:mode) as returned by M(rackweave.cluster.lab_host)., type: dict}
  timeout_s: {description: Seconds to wait for SSH., type: int, default: 60}
  state: {description: Whether the nodes shall run., type: str, choices: [present, absent], default: present}
attributes:
  check_mode: {support: full, description: Says what it would start or remove.}
author: Rackweave
"""
EXAMPLES = r"""
- name: Remove the nodes
  rackweave.cluster.lab_nodes:
    podman: /run/rackweave-lab/podman
    name: rackweave
    checkout: /srv/rackweave
    state: absent
"""
RETURN = r"""
nodes: {description: The nodes (name, address, simulated_gpus)., returned: when present, type: list, elements: dict}
host_keys: {description: Public SSH host key of each node by name., returned: when present, type: dict}
started: {description: Names of containers that were created or started., returned: success, type: list, elements: str}
removed: {description: Names of containers that were removed., returned: success, type: list, elements: str}
"""

SSH_PORT = 22
HOST_KEY_FILE = "/etc/ssh/ssh_host_ed25519_key.pub"
SPEC = {
    "podman": {"type": "path", "required": True},
    "name": {"type": "str", "required": True},
    "checkout": {"type": "str", "required": True},
    "network": {"type": "str"},
    "image": {"type": "str"},
    "hosts": {"type": "dict", "default": {}},
    "gpu_hosts": {"type": "list", "elements": "str", "default": []},
    "compute_count": {"type": "int", "default": 0},
    "gpus_per_node": {"type": "int", "default": 4},
    "subnet": {"type": "str"},
    "volumes": {"type": "list", "elements": "str", "default": []},
    "privileged": {"type": "bool", "default": False},
    "mode": {"type": "dict"},
    "timeout_s": {"type": "int", "default": 60},
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
}


class Containers:
    """The lab's containers as podman knows them."""

    def __init__(self, module: AnsibleModule) -> None:
        self._module = module
        self._podman = module.params["podman"]

    def labels(self) -> dict[str, dict[str, Any]]:
        """Return ``{container: {"running": bool, "labels": {...}}}`` of this lab."""
        label = f"label={LABEL_LAB}={self._module.params['name']}"
        out = self._run("ps", "--all", "--filter", label, "--format", "json")
        return {
            entry["Names"][0]: {"running": entry["State"] == "running", "labels": entry.get("Labels") or {}}
            for entry in json.loads(out or "[]")
        }

    def start(self, name: str) -> None:
        self._run("start", name)

    def create(self, arguments: list[str]) -> None:
        self._run(*arguments)

    def remove(self, name: str) -> None:
        self._run("rm", "--force", "--time", "5", name)

    def host_key(self, name: str) -> str:
        return " ".join(self._run("exec", name, "cat", HOST_KEY_FILE).split()[:2])

    def _run(self, *arguments: str) -> str:
        code, out, err = self._module.run_command([self._podman, *arguments])
        if code:
            detail = err.strip().splitlines()[-1] if err.strip() else f"exit code {code}"
            self._module.fail_json(msg=f"podman {arguments[0]} failed: {detail}", stderr=err)
        return str(out)


def refuse_foreign(module: AnsibleModule, existing: dict[str, dict[str, Any]]) -> None:
    checkout = module.params["checkout"]
    for name, entry in existing.items():
        owner = entry["labels"].get(LABEL_CHECKOUT, "")
        if entry["running"] and owner != checkout:
            module.fail_json(
                msg=f"the lab '{module.params['name']}' of the checkout {owner} is running on this machine ({name}): "
                "take it down there with `make lab-down` first"
            )


def wait_for_ssh(module: AnsibleModule, nodes: list[LabNode]) -> None:
    deadline = time.monotonic() + module.params["timeout_s"]
    for node in nodes:
        while not answers(node.address):
            if time.monotonic() > deadline:
                module.fail_json(
                    msg=f"lab node {node.name} ({node.address}) did not answer on port {SSH_PORT} "
                    f"within {module.params['timeout_s']} s; "
                    f"see `{module.params['podman']} logs {module.params['name']}-{node.name}`"
                )
            time.sleep(0.2)


def answers(address: str) -> bool:
    """Return whether an SSH server greets at the address; an open port alone may be one that is about to restart."""
    try:
        with socket.create_connection((address, SSH_PORT), timeout=2) as connection:
            connection.settimeout(2)
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


def present(module: AnsibleModule, containers: Containers, existing: dict[str, dict[str, Any]]) -> None:
    params = module.params
    try:
        nodes = lab_nodes(
            params["hosts"],
            params["gpu_hosts"],
            params["subnet"],
            params["compute_count"] or len(params["gpu_hosts"]),
            params["gpus_per_node"],
        )
    except LabError as exc:
        module.fail_json(msg=str(exc))
    site = LabSite(
        params["name"],
        params["checkout"],
        params["network"],
        params["image"],
        tuple(params["volumes"]),
        privileged=params["privileged"],
    )
    mode = HostMode(**params["mode"])
    refuse_foreign(module, existing)
    wanted = {container_name(site, node): node for node in nodes}
    removed = [
        name
        for name, entry in existing.items()
        if name not in wanted or entry["labels"].get(LABEL_DIGEST) != node_digest(site, wanted[name], mode)
    ]
    started = [name for name in wanted if name in removed or not existing.get(name, {}).get("running")]
    if not module.check_mode:
        for name in removed:
            containers.remove(name)
        for name in started:
            if name in existing and name not in removed:
                containers.start(name)
            else:
                containers.create(run_arguments(site, wanted[name], mode))
        wait_for_ssh(module, nodes)
    module.exit_json(
        changed=bool(removed or started),
        nodes=[dataclasses.asdict(node) for node in nodes],
        host_keys={} if module.check_mode else {node.name: containers.host_key(name) for name, node in wanted.items()},
        started=started,
        removed=removed,
    )


def main() -> None:
    required = ["network", "image", "subnet", "mode"]
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True, required_if=[("state", "present", required)])
    containers = Containers(module)
    existing = containers.labels()
    if module.params["state"] == "present":
        present(module, containers, existing)
    refuse_foreign(module, existing)
    if not module.check_mode:
        for name in existing:
            containers.remove(name)
    module.exit_json(changed=bool(existing), started=[], removed=sorted(existing))


if __name__ == "__main__":
    main()
