#!/usr/bin/python
"""Say whether a change that could hurt a job may be made on a node now."""

from __future__ import annotations

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.rackweave.errors import ParseError
from ..module_utils.rackweave.slurm.node_state import may_disrupt, parse_node

DOCUMENTATION = r"""
module: slurm_node_state
short_description: Say whether a disruptive change may be made on a node
description:
  - Asks Slurm for the state of the node and counts the job step daemons on the machine it runs on. A disruptive change
    (driver, kernel line, container runtime, restart of slurmd) is allowed only where Slurm reports the node drained and
    idle, or does not know it.
options:
  node: {description: Name of the node in Slurm., type: str, required: true}
  controller: {description: Name or address of the Slurm controller; only for the messages., type: str, default: ""}
attributes:
  check_mode: {support: full, description: Only reads.}
author: Rackweave
"""
EXAMPLES = r"""
- name: Ask Slurm about the node
  rackweave.cluster.slurm_node_state:
    node: gpu01
  register: __slurm_node_state
"""
RETURN = r"""
disruptive_ok: {description: Whether a disruptive change may be made now., returned: success, type: bool}
reason: {description: Why., returned: success, type: str}
known: {description: Whether Slurm knows the node., returned: success, type: bool}
state: {description: State words of the node., returned: success, type: list, elements: str}
drain_reason: {description: Reason of a drain; empty if there is none., returned: success, type: str}
"""
SPEC = {"node": {"type": "str", "required": True}, "controller": {"type": "str", "default": ""}}


def job_steps() -> int:
    count = 0
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            count += (entry / "comm").read_text().strip() == "slurmstepd"
        except OSError:  # it ended meanwhile
            continue
    return count


def main() -> None:
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    name = module.params["node"]
    scontrol = module.get_bin_path("scontrol")
    code, out, err = (1, "", "scontrol is not installed")
    if scontrol:
        code, out, err = module.run_command([scontrol, "--oneliner", "show", "node", name])
    text = out + err
    answers = code == 0 or "not found" in text
    try:
        state = parse_node(text) if answers else None
    except ParseError as exc:
        module.fail_json(msg=str(exc))
    steps = job_steps()
    decision = may_disrupt(state, answers, steps)
    module.exit_json(
        changed=False,
        disruptive_ok=decision.ok,
        reason=decision.reason,
        known=state is not None,
        state=sorted(state.words) if state else [],
        drain_reason=state.reason if state else "",
    )


if __name__ == "__main__":
    main()
