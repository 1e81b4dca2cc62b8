"""Documentation of the action plugin of the same name, which runs on the controller."""

DOCUMENTATION = r"""
---
module: fleet_gate
short_description: Compare the hosts of a job with each other and with what was accepted
description:
  - Names the odd one out by majority, checks each host's RoCE settings, limits, driver and GID rows, and compares each
    with its accepted document. A host that was not observed counts with its accepted document.
  - Blocks where a difference would make a job hang, fail or run slowly without an error, unless waived by name and
    date.
options:
  observed_dir: {description: "Directory of observed documents.", type: path, required: true}
  accepted_dir: {description: "Directory of accepted documents.", type: path}
  hosts: {description: "Hosts of the job.", type: list, elements: str, required: true}
  waivers:
    description: "Decisions to launch in spite of a finding: kind, host (all where left out), by, until (date), reason."
    type: list
    elements: dict
    default: []
  dest: {description: "File on the controller that receives the verdict (JSON).", type: path}
  fail_on_block: {description: "Whether a blocking finding fails the task.", type: bool, default: true}
  fabric: {description: "The fabric block, see C(docs/fabric.md).", type: dict, required: true}
  nccl_version: {description: "NCCL that the job loads; needed for every kind of fabric but V(ethernet).", type: str}
  torch_version: {description: "PyTorch of the job.", type: str}
  profile:
    description: "Profile of the environment that is judged."
    type: str
    choices: [production, acceptance, lab]
    default: production
  image: {description: "Whether the job runs in a container image.", type: bool, default: false}
  image_plugins: {description: "NCCL network plugins of that image.", type: list, elements: str}
  log_directory: {description: "Directory for per-rank files.", type: str}
  collective_timeout_s: {description: "Timeout of a collective in seconds.", type: int, default: 600}
attributes:
  check_mode: {support: full, description: Judges as always, writes nothing.}
author: Rackweave
"""
EXAMPLES = r"""
- name: Compare the nodes
  rackweave.cluster.fleet_gate:
    observed_dir: "{{ rackweave_state_dir }}/observed"
    accepted_dir: "{{ rackweave_checkout }}/inventory/hardware/{{ rackweave_inventory }}"
    hosts: "{{ groups['gpu_nodes'] }}"
    fabric: "{{ rackweave_fabric }}"
    nccl_version: 2.22.3
    dest: "{{ rackweave_state_dir }}/verify.json"
  run_once: true
"""
RETURN = r"""
blocked: {description: Whether a launch is blocked., returned: always, type: bool}
blocked_hosts: {description: Hosts with a blocking finding., returned: always, type: list, elements: str}
findings:
  description: Findings with kind, severity, host and message; the worst first.
  returned: always
  type: list
  elements: dict
waived: {description: Findings that were waived and by whom., returned: always, type: list, elements: dict}
differences:
  description: Changes of each host since it was accepted, in words, and what follows.
  returned: always
  type: dict
"""
