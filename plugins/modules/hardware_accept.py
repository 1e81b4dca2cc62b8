"""Documentation of the action plugin of the same name, which runs on the controller."""

DOCUMENTATION = r"""
---
module: hardware_accept
short_description: Make observed hardware the accepted baseline
description:
  - Writes the observed document of each host, without volatile values, to the directory of accepted documents, to be
    reviewed and committed. Examples cannot be accepted, and a simulated document never replaces a measured one.
options:
  observed_dir: {description: "Directory of observed documents.", type: path, required: true}
  accepted_dir: {description: "Directory of accepted documents.", type: path, required: true}
  hosts: {description: "Hosts to accept; files of others are left alone.", type: list, elements: str, required: true}
  tests:
    description: "How the nodes were just tested; the document says so. Else, what it said of equal hardware stays."
    type: dict
    suboptions:
      node_test: {description: "Tests of the node alone.", type: str, choices: [pass, pending]}
      pair_test: {description: "Tests together with another node.", type: str, choices: [pass, pending]}
attributes:
  check_mode: {support: full, description: Says what would change.}
author: Rackweave
"""
EXAMPLES = r"""
- name: Accept the hardware of a repaired node
  rackweave.cluster.hardware_accept:
    observed_dir: "{{ rackweave_state_dir }}/observed"
    accepted_dir: "{{ rackweave_checkout }}/inventory/hardware/{{ rackweave_inventory }}"
    hosts: [trn02]
  run_once: true
"""
RETURN = r"""
acceptances:
  description: For each host whether it is the first, the changes in words, and what follows.
  returned: success
  type: list
  elements: dict
files_changed: {description: Files that were written or would be., returned: success, type: list, elements: str}
"""
