#!/usr/bin/python
"""The bridge network of the embedded cluster."""

from __future__ import annotations

import ipaddress
import json
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.rackweave.lab.undo import empty_table_commands, unused_chain_commands

DOCUMENTATION = r"""
module: lab_network
short_description: Make or remove the bridge network of the embedded cluster
description:
  - With O(state=absent) it also takes back what podman left on the machine, where nothing else uses it - its packet
    filter chains, tables that were not there before, and C(net.ipv4.ip_forward) if it was off before.
options:
  podman: {description: Path of the podman command to use., type: path, required: true}
  directory:
    description: Directory with the notes of M(rackweave.cluster.lab_namespace).
    type: path
    default: /run/rackweave-lab
  name: {description: Name of the network., type: str, required: true}
  subnet: {description: IPv4 network in CIDR notation., type: str, required: true}
  state: {description: Whether the network shall exist., type: str, choices: [present, absent], default: present}
attributes:
  check_mode: {support: full, description: Says whether it would change something.}
author: Rackweave
"""
EXAMPLES = r"""
- name: Make the bridge
  rackweave.cluster.lab_network:
    podman: /run/rackweave-lab/podman
    name: rackweave
    subnet: 10.89.77.0/24
"""
RETURN = r"""
undone: {description: What was taken back on the machine., returned: when absent, type: list, elements: str}
"""

IP_FORWARD = Path("/proc/sys/net/ipv4/ip_forward")
SPEC = {
    "podman": {"type": "path", "required": True},
    "directory": {"type": "path", "default": "/run/rackweave-lab"},
    "name": {"type": "str", "required": True},
    "subnet": {"type": "str", "required": True},
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
}


def interface_inside(module: AnsibleModule, subnet: str) -> str:
    """Return the interface of this machine that already has an address inside the subnet, or an empty string."""
    wanted = ipaddress.IPv4Network(subnet)
    _, out, _ = module.run_command(["ip", "-json", "-4", "address", "show"])
    for link in json.loads(out or "[]"):
        for address in link.get("addr_info", []):
            if ipaddress.IPv4Address(address["local"]) in wanted:
                return str(link["ifname"])
    return ""


def present(module: AnsibleModule) -> None:
    podman, name, subnet = (module.params[key] for key in ("podman", "name", "subnet"))
    code, out, _ = module.run_command([podman, "network", "inspect", name])
    if code == 0:
        subnets = [entry["subnet"] for entry in json.loads(out)[0].get("subnets", [])]
        if subnets != [subnet]:
            module.fail_json(
                msg=f"network {name} exists with {', '.join(subnets)}, not {subnet}: take the lab down first"
            )
        module.exit_json(changed=False)
    foreign = interface_inside(module, subnet)
    if foreign:
        module.fail_json(
            msg=f"{subnet} is in use by interface {foreign} of this machine: set lab_node_subnet to another network"
        )
    if not module.check_mode:
        module.run_command([podman, "network", "create", "--subnet", subnet, name], check_rc=True)
    module.exit_json(changed=True)


def absent(module: AnsibleModule) -> None:
    podman, name = module.params["podman"], module.params["name"]
    code, _, _ = module.run_command([podman, "network", "exists", name])
    exists = code == 0
    if exists and not module.check_mode:
        module.run_command([podman, "network", "rm", "--force", name], check_rc=True)
    undone = [] if module.check_mode else undo(module, podman)
    module.exit_json(changed=exists or bool(undone), undone=undone)


def undo(module: AnsibleModule, podman: str) -> list[str]:
    """Take back podman's marks on the machine unless other containers still use them."""
    _, running, _ = module.run_command([podman, "ps", "--quiet"])
    note = Path(module.params["directory"]) / "before.json"
    if running.split() or not note.exists():
        return []
    before = json.loads(note.read_text())
    undone = []
    _, save, _ = module.run_command(["iptables-save"])
    for command in unused_chain_commands(save):
        module.run_command(command, check_rc=True)
        undone.append(" ".join(command))
    _, save, _ = module.run_command(["iptables-save"])
    for command in empty_table_commands(save, before["ip_tables"]):
        module.run_command(command, check_rc=True)
        undone.append(" ".join(command))
    # Someone else's address translation started meanwhile needs forwarding too.
    if before["ip_forward"] == "0" and "MASQUERADE" not in save and IP_FORWARD.read_text().strip() == "1":
        IP_FORWARD.write_text("0\n")
        undone.append("net.ipv4.ip_forward=0")
    return undone


def main() -> None:
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    if module.params["state"] == "present":
        present(module)
    absent(module)


if __name__ == "__main__":
    main()
