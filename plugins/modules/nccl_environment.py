"""Documentation of the action plugin of the same name, which runs on the controller."""

DOCUMENTATION = r"""
---
module: nccl_environment
short_description: Compute the NCCL environment of every node from its document
description:
  - Computes from each node document and the fabric block the variables that NCCL, gloo and PyTorch's watchdog need on
    that node, with the reason for every value and for every value left out.
  - Writes C(<host>.conf) (C(KEY=value) lines) and C(<host>.reasons.json) into O(dest) for all hosts in one call; use it
    with C(run_once). No node needs to be reachable.
options:
  documents: {description: "Node documents, as a list or a mapping by host.", type: raw}
  documents_dir: {description: "Directory of node documents, instead of O(documents).", type: path}
  document_files: {description: "Files of node documents by host, instead of O(documents).", type: dict}
  hosts: {description: "Hosts to render; all that have a document where left out.", type: list, elements: str}
  dest: {description: "Directory on the controller that receives the files.", type: path}
  fail_on_block: {description: "Whether a finding that blocks a launch fails the task.", type: bool, default: true}
  fabric: {description: "The fabric block, see C(docs/fabric.md).", type: dict, required: true}
  nccl_version:
    description: "NCCL that the job loads, such as V(2.22.3); needed for every kind of fabric but V(ethernet)."
    type: str
  torch_version: {description: "PyTorch of the job.", type: str}
  profile:
    description: "V(production) and V(lab) log warnings only; V(acceptance) logs which transport is chosen."
    type: str
    choices: [production, acceptance, lab]
    default: production
  image: {description: "Whether the job runs in a container image.", type: bool, default: false}
  image_plugins:
    description: "NCCL network plugins of that image (empty list: none); unknown where left out."
    type: list
    elements: str
  log_directory: {description: "Directory where ranks may write NCCL and flight recorder files.", type: str}
  collective_timeout_s: {description: "Timeout of a collective in seconds.", type: int, default: 600}
attributes:
  check_mode: {support: full, description: Says which files differ.}
author: Rackweave
"""
EXAMPLES = r"""
- name: Render the NCCL environment of all nodes
  rackweave.cluster.nccl_environment:
    documents_dir: inventory/hardware/examples/prod-8hca
    fabric: "{{ rackweave_fabric }}"
    nccl_version: 2.22.3
    image: true
    dest: "{{ rackweave_state_dir }}/plan/demo/nccl"
  run_once: true
"""
RETURN = r"""
environments: {description: Variables of each host., returned: success, type: dict}
findings:
  description: What is wrong or worth knowing; each has kind, severity, host and message.
  returned: always
  type: list
  elements: dict
files_changed: {description: Files that were written or would be., returned: success, type: list, elements: str}
"""
