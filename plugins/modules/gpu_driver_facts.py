#!/usr/bin/python
"""Observe what decides about GPU software on this node. Reads only; the decisions are in ``rackweave.provision``."""

from __future__ import annotations

import os
import re

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: gpu_driver_facts
short_description: Observe PCI devices, kernel, modules and the loaded NVIDIA driver
description:
  - Reads sysfs and procfs below O(root) and returns what the role C(gpu_driver) decides from. Changes nothing.
options:
  root:
    description: Directory that holds C(sys/), C(proc/), C(lib/modules/) and C(dev/); another one for tests.
    type: path
    default: /
attributes:
  check_mode:
    support: full
    description: Reads only.
author: Rackweave authors
"""

EXAMPLES = r"""
- name: Observe the GPU software of the node
  rackweave.cluster.gpu_driver_facts:
  register: __gpu_driver_facts
"""

RETURN = r"""
facts:
  description:
    - C(pci) is a list of C(bdf), C(class), C(vendor), C(device) (hexadecimal); C(kernel) the running release;
      C(headers) whether its build directory exists; C(kernels) the installed releases, each with C(headers);
      C(modules) the names of loaded modules; C(loaded_driver) the
      version of the driver in the kernel or null; C(kernel_arguments) the kernel's command line; C(switch_devices)
      the number of device files of NVSwitches.
  type: dict
  returned: always
"""


def read_text(path: str) -> str | None:
    """Return the stripped text of a file, or ``None`` where there is none to read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as handle:
            return handle.read().strip()
    except OSError:
        return None


def parse_modules(text: str) -> list[str]:
    """Return the sorted names in ``/proc/modules``."""
    return sorted(line.split()[0] for line in text.splitlines() if line.strip())


def parse_driver_version(text: str) -> str | None:
    """Return the version in ``/proc/driver/nvidia/version`` (proprietary or open module), ``None`` if it has none."""
    match = re.search(r"NVRM version:.*?Kernel Module(?: for \S+)?\s+(\d{3}\.\d+(?:\.\d+)?)", text)
    return match.group(1) if match else None


def pci_rows(root: str) -> list[dict[str, str]]:
    """Return one row per PCI function, in the order of addresses."""
    directory = os.path.join(root, "sys/bus/pci/devices")
    rows = []
    for bdf in sorted(os.listdir(directory)) if os.path.isdir(directory) else []:
        values = {name: read_text(os.path.join(directory, bdf, name)) for name in ("class", "vendor", "device")}
        if all(values.values()):
            rows.append({"bdf": bdf, **{key: str(value) for key, value in values.items()}})
    return rows


def kernel_rows(root: str) -> list[dict[str, object]]:
    """Return one row per installed kernel: an image in ``/boot`` or beside its modules; leftovers are none."""
    boot, modules = os.path.join(root, "boot"), os.path.join(root, "lib/modules")
    found = {name[len("vmlinuz-") :] for name in _names(boot) if name.startswith("vmlinuz-")}
    found |= {name for name in _names(modules) if os.path.exists(os.path.join(modules, name, "vmlinuz"))}
    releases = sorted(name for name in found if "rescue" not in name)
    return [{"release": name, "headers": os.path.isdir(os.path.join(modules, name, "build"))} for name in releases]


def _names(directory: str) -> list[str]:
    return os.listdir(directory) if os.path.isdir(directory) else []


def collect(root: str) -> dict[str, object]:
    """Return the facts of the node below ``root``."""
    kernel = read_text(os.path.join(root, "proc/sys/kernel/osrelease")) or ""
    names = _names(os.path.join(root, "dev"))
    return {
        "pci": pci_rows(root),
        "kernel": kernel,
        "headers": bool(kernel) and os.path.isdir(os.path.join(root, "lib/modules", kernel, "build")),
        "kernels": kernel_rows(root),
        "modules": parse_modules(read_text(os.path.join(root, "proc/modules")) or ""),
        "loaded_driver": parse_driver_version(read_text(os.path.join(root, "proc/driver/nvidia/version")) or ""),
        "kernel_arguments": (read_text(os.path.join(root, "proc/cmdline")) or "").split(),
        "switch_devices": sum(1 for name in names if re.fullmatch(r"nvidia-nvswitch\d+", name)),
    }


def main() -> None:
    """Run as an Ansible module."""
    module = AnsibleModule(argument_spec={"root": {"type": "path", "default": "/"}}, supports_check_mode=True)
    module.exit_json(changed=False, facts=collect(module.params["root"]))


if __name__ == "__main__":
    main()
