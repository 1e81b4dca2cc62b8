"""Documentation of the action plugin of the same name, which runs on the controller."""

DOCUMENTATION = r"""
module: plan_documents
short_description: Choose the directory of node documents that a plan is made from
description:
  - Returns the first directory that holds node documents; fails where it lacks one of a host that is planned with.
  - Without any, example documents are taken where there is one for every host. A plan made from them never launches.
options:
  directories: {description: "Directories to try, best first.", type: list, elements: path, required: true}
  examples: {description: Directory of example documents., type: path}
  hosts: {description: Hosts that are planned with., type: list, elements: str, required: true}
author: Rackweave
"""
EXAMPLES = r"""
- name: Choose the documents
  rackweave.cluster.plan_documents:
    directories: [inventory/hardware/prod, .state/prod/observed]
    hosts: "{{ groups['gpu_nodes'] }}"
  register: documents
  run_once: true
"""
RETURN = r"""
directory: {description: The chosen directory; empty if none holds a document., returned: success, type: str}
"""
