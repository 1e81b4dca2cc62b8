#!/usr/bin/python
"""Observe the RDMA functions of this node by PCI address. Reads only; ``rackweave.provision`` chooses among them."""

from __future__ import annotations

import os
import re

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: rdma_fabric_facts
short_description: Observe RDMA functions by PCI address
description:
  - Reads sysfs and the routing table below O(root) and returns what the role C(rdma_fabric) decides from.
options:
  root:
    description: Directory that holds C(sys/) and C(proc/); another one for tests.
    type: path
    default: /
attributes:
  check_mode:
    support: full
    description: Reads only.
author: Rackweave authors
"""

EXAMPLES = r"""
- name: Observe the RDMA functions
  rackweave.cluster.rdma_fabric_facts:
  register: __rdma_fabric_facts
"""

RETURN = r"""
facts:
  description:
    - C(devices) is a list of C(bdf), C(rdma) (name of the RDMA device), C(netdev) or null, C(link_layer), C(rate_gbps)
      (Gb/s of port 1, 0 if unreadable), C(state), C(virtual_function), C(default_route) (whether the default route
      leaves through it), C(mtu) or null, C(bridges) (PCI addresses between it and the root complex).
    - C(modules) is the list of loaded kernel modules, C(kernel_arguments) the kernel's command line.
  type: dict
  returned: always
"""

_BDF = re.compile(r"^[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")


def read_text(path: str) -> str | None:
    """Return the stripped text of a file, or ``None`` where there is none to read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as handle:
            return handle.read().strip()
    except OSError:
        return None


def default_route_interfaces(route_table: str) -> set[str]:
    """Return the interfaces of default routes in ``/proc/net/route`` (destination and mask all zero)."""
    rows = (line.split() for line in route_table.splitlines()[1:])
    return {row[0] for row in rows if len(row) > 7 and row[1] == "00000000" and row[7] == "00000000"}


def parse_rate(text: str) -> float:
    """Return Gb/s of a sysfs ``rate`` file such as ``400 Gb/sec (4X NDR)``; 0 where there is none."""
    match = re.match(r"\s*([\d.]+)\s+Gb/sec", text)
    return float(match.group(1)) if match else 0.0


def device_row(root: str, name: str, default_route: set[str]) -> dict[str, object] | None:
    """Return the row of one RDMA device, ``None`` if it hangs on no PCI function (a software device)."""
    base = os.path.join(root, "sys/class/infiniband", name)
    pci = os.path.realpath(os.path.join(base, "device"))
    parts = pci.split("/")
    if not _BDF.match(parts[-1]):
        return None
    nets = os.path.join(pci, "net")
    netdev = sorted(os.listdir(nets))[0] if os.path.isdir(nets) and os.listdir(nets) else None
    port = os.path.join(base, "ports/1")
    mtu = read_text(os.path.join(root, "sys/class/net", netdev, "mtu")) if netdev else None
    return {
        "bdf": parts[-1],
        "rdma": name,
        "netdev": netdev,
        "link_layer": (read_text(os.path.join(port, "link_layer")) or "").lower(),
        "rate_gbps": parse_rate(read_text(os.path.join(port, "rate")) or ""),
        "state": (read_text(os.path.join(port, "state")) or "").partition(":")[2].strip(),
        "virtual_function": os.path.exists(os.path.join(pci, "physfn")),
        "default_route": netdev in default_route,
        "mtu": int(mtu) if mtu and mtu.isdigit() else None,
        "bridges": [part for part in parts[:-1] if _BDF.match(part)],
    }


def collect(root: str) -> dict[str, object]:
    """Return the facts of the node below ``root``."""
    directory = os.path.join(root, "sys/class/infiniband")
    routes = default_route_interfaces(read_text(os.path.join(root, "proc/net/route")) or "")
    rows = [device_row(root, name, routes) for name in (os.listdir(directory) if os.path.isdir(directory) else [])]
    modules = (read_text(os.path.join(root, "proc/modules")) or "").splitlines()
    return {
        "devices": sorted((row for row in rows if row is not None), key=lambda row: str(row["bdf"])),
        "modules": sorted(line.split()[0] for line in modules if line.strip()),
        "kernel_arguments": (read_text(os.path.join(root, "proc/cmdline")) or "").split(),
    }


def main() -> None:
    """Run as an Ansible module."""
    module = AnsibleModule(argument_spec={"root": {"type": "path", "default": "/"}}, supports_check_mode=True)
    module.exit_json(changed=False, facts=collect(module.params["root"]))


if __name__ == "__main__":
    main()
