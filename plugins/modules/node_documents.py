"""Documentation of the action plugin of the same name, which runs on the controller."""

DOCUMENTATION = r"""
---
module: node_documents
short_description: Write the node documents of a run to the controller
description:
  - Takes the results of M(rackweave.cluster.node_hardware) from a registered variable of each host and writes one file
    per host. Run it once per play; hosts that are not part of the run keep the documents they have.
options:
  directory: {description: Directory on the Ansible controller., type: path, required: true}
  hosts: {description: Hosts of this run., type: list, elements: str, required: true}
  variable: {description: Name of the registered variable., type: str, required: true}
attributes:
  check_mode: {support: full, description: Says which documents differ.}
author: Rackweave
"""
EXAMPLES = r"""
- name: Keep the documents
  rackweave.cluster.node_documents:
    directory: .state/lab/observed
    hosts: "{{ ansible_play_hosts }}"
    variable: provision_hardware
  run_once: true
"""
RETURN = r"""
hosts_changed: {description: Hosts whose document differs., returned: success, type: list, elements: str}
"""
