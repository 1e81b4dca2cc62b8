#!/usr/bin/python
"""Say which nodes Slurm can give to a job."""

from __future__ import annotations

from datetime import datetime

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.rackweave.slurm.drains import FORMAT, our_drains
from ..module_utils.rackweave.slurm.nodes import parse_sinfo, usable

DOCUMENTATION = r"""
module: slurm_nodes
short_description: List the nodes that Slurm knows and those that a job can be started on
description:
  - Runs on the Slurm submit host. A node that is drained, down or does not respond is not usable; one that another job
    holds is.
  - Drains that a part of Rackweave made are listed with their age, for the cap on drains per hour.
options: {}
attributes:
  check_mode: {support: full, description: Only reads.}
author: Rackweave
"""
EXAMPLES = r"""
- name: Ask which nodes can be used
  rackweave.cluster.slurm_nodes:
  register: nodes
"""
RETURN = r"""
states: {description: State of each node in Slurm's words., returned: success, type: dict}
drains: {description: Nodes that stand drained by us; hours since each drain., returned: success, type: dict}
usable: {description: Nodes that a job can be started on., returned: success, type: list, elements: str}
"""


def main() -> None:
    module = AnsibleModule(argument_spec={}, supports_check_mode=True)
    code, out, err = module.run_command(["sinfo", "--Node", "--noheader", f"--format={FORMAT}"])
    if code != 0:
        module.fail_json(msg=f"sinfo failed on this host, is it a submit host of the cluster? {(err or out).strip()}")
    states = parse_sinfo(out)
    names = [name for name, state in states.items() if usable(state)]
    module.exit_json(changed=False, states=states, usable=names, drains=our_drains(out, datetime.now()))


if __name__ == "__main__":
    main()
