"""Documentation of the action plugin of the same name, which runs on the controller."""

DOCUMENTATION = r"""
module: plan_documents
short_description: Choose the node documents that a plan is made from
description:
  - For each host, the document in the first directory that holds one is taken; the message says where each comes from.
  - Hosts without any are named; the declared hardware class stands in for them.
  - Without a document of any host, example documents are taken where there is one for every host. A plan made from them
    never launches.
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
files: {description: The chosen document of each host., returned: success, type: dict}
hosts: {description: Hosts that have one, in the order given., returned: success, type: list, elements: str}
declared: {description: Hosts that have none., returned: success, type: list, elements: str}
"""
