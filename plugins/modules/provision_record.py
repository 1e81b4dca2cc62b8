"""Documentation of the action ``provision_record``, which runs on the controller."""

DOCUMENTATION = r"""
module: provision_record
short_description: Record what a role held back or skipped on this host
description:
  - Adds entries to the facts C(rackweave_pending) (changes that wait for the node to be drained and idle) and
    C(rackweave_skipped) (steps that this place cannot do). Runs on the controller and changes nothing.
options:
  role: {description: The role that records., type: str, required: true}
  changes:
    description: What would change, as a sentence fragment, to whether it would.
    type: dict
    default: {}
  held_back: {description: Whether the changes were held back; false records none of them., type: bool, default: true}
  skipped: {description: Steps that were left out., type: list, elements: str, default: []}
  reason: {description: Why they were left out; required with O(skipped)., type: str, default: ""}
attributes:
  check_mode: {support: full, description: Changes nothing.}
author: Rackweave
"""
EXAMPLES = r"""
- name: Record what a container cannot do
  rackweave.cluster.provision_record:
    role: gpu_driver
    skipped: [kernel modules]
    reason: a container has no kernel of its own
"""
RETURN = r"""
ansible_facts:
  description: Both lists with the new entries; each entry has C(role), C(reason) and C(change) or C(skipped).
  type: dict
  returned: always
"""
