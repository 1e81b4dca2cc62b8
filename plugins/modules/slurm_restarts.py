#!/usr/bin/python
"""Keep, on the Slurm controller, the list of nodes that still owe a restart of slurmd."""

from __future__ import annotations

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.rackweave.slurm.restarts import start_times, update_notes

DOCUMENTATION = r"""
module: slurm_restarts
short_description: Keep the list of nodes that still owe a restart of slurmd
description:
  - Runs on the Slurm controller. A run with C(--limit) may change slurm.conf so that the daemons of all nodes need a
    restart; those it does not reach are kept here, with the start time of their slurmd, until they were restarted, by a
    later run or by a boot.
options:
  directory: {description: Directory with one note per node., type: path, default: /var/lib/rackweave/slurm-restarts}
  nodes: {description: Nodes of slurm.conf., type: list, elements: str, required: true}
  asked: {description: Whether a restart of all nodes becomes due now., type: bool, default: false}
attributes:
  check_mode: {support: full, description: Only reads.}
author: Rackweave
"""
EXAMPLES = r"""
- name: Look which nodes owe a restart
  rackweave.cluster.slurm_restarts:
    nodes: [gpu01, gpu02]
"""
RETURN = r"""
due: {description: Nodes that owe a restart of slurmd., returned: success, type: list, elements: str}
"""
SPEC = {
    "directory": {"type": "path", "default": "/var/lib/rackweave/slurm-restarts"},
    "nodes": {"type": "list", "elements": "str", "required": True},
    "asked": {"type": "bool", "default": False},
}


def starts(module: AnsibleModule) -> dict[str, str]:
    """Return when the slurmd of each node started, as far as Slurm answers."""
    scontrol = module.get_bin_path("scontrol")
    code, out, _ = module.run_command([scontrol, "--oneliner", "show", "nodes"]) if scontrol else (1, "", "")
    return start_times(out) if code == 0 else {}


def main() -> None:
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    directory, nodes = Path(module.params["directory"]), module.params["nodes"]
    noted = {path.name: path.read_text().strip() for path in directory.iterdir()} if directory.is_dir() else {}
    if not noted and not module.params["asked"]:
        module.exit_json(changed=False, due=[])
    notes = update_notes(noted, nodes if module.params["asked"] else [], starts(module), nodes)
    if not module.check_mode:
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        for node in noted.keys() - notes.keep.keys():
            (directory / node).unlink(missing_ok=True)
        for node, start in notes.keep.items():
            (directory / node).write_text(start + "\n")
    # What is due is no change of the machine; the change that made it due was reported where it was made.
    module.exit_json(changed=False, due=list(notes.due))


if __name__ == "__main__":
    main()
