"""Documentation of the action plugin of the same name, which runs on the controller."""

DOCUMENTATION = r"""
---
module: validate_inventory
short_description: Find every configuration error of an inventory
description:
  - Compares the variables of all hosts with the argument specifications of the roles - unknown names with the nearest
    known one, types, choices, missing values - and reports all errors at once. Hosts with equal variables are checked
    once.
options:
  hosts: {description: Hosts to check., type: list, elements: str, required: true}
  required: {description: Variables that every host needs., type: list, elements: str, default: []}
attributes:
  check_mode: {support: full, description: Only reads.}
author: Rackweave
"""
EXAMPLES = r"""
- name: Check the inventory
  rackweave.cluster.validate_inventory:
    hosts: "{{ ansible_play_hosts_all }}"
    required: [rackweave_state_dir]
  run_once: true
"""
RETURN = r"""
problems: {description: One sentence for each error, with its hosts., returned: always, type: list, elements: str}
representatives: {description: One host of each set of variables., returned: success, type: list, elements: str}
"""
