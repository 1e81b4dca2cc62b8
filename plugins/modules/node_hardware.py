#!/usr/bin/python
"""Observe what a node really is. Runs on the node; thinks nothing: parsing is in ``rackweave.hardware``."""

from __future__ import annotations

import os
import platform
import tempfile

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.rackweave.cli.nvml import nvml_reader
from ..module_utils.rackweave.cli.system import LocalSystem
from ..module_utils.rackweave.errors import RackweaveError
from ..module_utils.rackweave.hardware.collect import collect_node
from ..module_utils.rackweave.hardware.document import document_text

DOCUMENTATION = r"""
module: node_hardware
short_description: Collect the hardware document of a node
version_added: "0.1.0"
description:
  - Reads GPUs, RDMA devices with their GID tables and QoS, PCIe paths, ACS, versions and limits of the node, and
    returns them as one document (schema C(rackweave.node/1), under 20 kB).
  - GPUs are read through NVML where the Python package C(nvidia-ml-py) is installed, else by C(nvidia-smi -q -x), else
    from sysfs. The document says which (C(collection.gpu_source)) and lists what could not be read
    (C(collection.warnings)).
  - Reads only, except for O(dest).
options:
  host:
    description: Name of the node in the inventory; becomes C(host) of the document.
    type: str
    required: true
  origin:
    description:
      - What the document says of itself.
      - With V(simulated), character devices C(/dev/nvidia0) and so on count as GPUs where no driver is loaded; their
        UUIDs are then made up from O(host) and the index, and a warning in the document says so.
    type: str
    choices: [measured, simulated]
    default: measured
  root:
    description: Directory that stands for C(/), to read a recorded tree. Tools are taken from below it too.
    type: path
    default: /
  overlay:
    description:
      - Directory with a simulated tree that lies over O(root); what it has replaces what the node has.
      - Only with O(origin=simulated).
    type: path
  dest:
    description: File on the node that receives the document. Nothing is written where it is left out.
    type: path
attributes:
  check_mode:
    support: full
    description: Reads as always, writes nothing.
author:
  - Rackweave contributors
"""

EXAMPLES = r"""
- name: Observe the node
  rackweave.cluster.node_hardware:
    host: "{{ inventory_hostname }}"
  register: observed

- name: Observe a node of the lab
  rackweave.cluster.node_hardware:
    host: "{{ inventory_hostname }}"
    origin: simulated
"""

RETURN = r"""
document:
  description: The node document; C(docs/contracts.md), section 1, describes each key.
  type: dict
  returned: success
seconds:
  description: Time that the collection took, in seconds.
  type: float
  returned: success
"""

ARGUMENT_SPEC = {
    "host": {"type": "str", "required": True},
    "origin": {"type": "str", "choices": ["measured", "simulated"], "default": "measured"},
    "root": {"type": "path", "default": "/"},
    "overlay": {"type": "path"},
    "dest": {"type": "path"},
}


def write_if_changed(module, path, text):
    """Write a file atomically if its content differs (not in check mode); return whether it differs."""
    if os.path.exists(path):
        with open(path, encoding="utf-8", errors="replace") as file:
            if file.read() == text:
                return False
    if not module.check_mode:
        handle, temporary = tempfile.mkstemp(dir=module.tmpdir)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        module.atomic_move(temporary, path)
    return True


def main():
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    parameters = module.params
    roots = [parameters["root"]]
    if parameters["overlay"]:
        if parameters["origin"] != "simulated":
            module.fail_json(msg="overlay needs origin=simulated: a document with made-up parts must say so")
        roots.insert(0, parameters["overlay"])
    missing = [root for root in roots if not os.path.isdir(root)]
    if missing:
        module.fail_json(msg="no such directory: " + ", ".join(missing))
    system = LocalSystem(roots)
    nvml = nvml_reader() if roots == ["/"] else None  # NVML sees this machine, not a recorded tree
    try:
        document = collect_node(system, parameters["host"], parameters["origin"], platform.python_version(), nvml)
    except RackweaveError as error:
        module.fail_json(msg=str(error))
    values = document.as_dict()
    changed = bool(parameters["dest"]) and write_if_changed(module, parameters["dest"], document_text(document))
    module.exit_json(changed=changed, document=values, seconds=round(system.seconds(), 3))


if __name__ == "__main__":
    main()
