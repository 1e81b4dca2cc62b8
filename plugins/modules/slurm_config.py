#!/usr/bin/python
"""Write Slurm's configuration files on the controller. The texts come from the action plugin of the same name."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.rackweave.slurm.change import config_change, is_ours

DOCUMENTATION = r"""
module: slurm_config
short_description: Write slurm.conf, gres.conf and cgroup.conf from node documents
description:
  - The action plugin of the same name runs on the Ansible controller. It reads the node documents of all hosts, those
    outside of C(--limit) included, and computes the texts; the module writes them on the Slurm controller.
  - What a change asks for is noted in O(mark) until somebody removes that file, so that a run that ends before it
    reconfigured or restarted Slurm leaves the duty to the next one.
  - A slurm.conf that Rackweave did not write is never replaced unless O(adopt_ok); a copy of it is kept.
options:
  documents_dir: {description: Directory on the Ansible controller with a document of every host., type: path}
  hosts: {description: All hosts that shall be in slurm.conf., type: list, elements: str}
  cluster_name: {description: ClusterName., type: str}
  controller: {description: Host name of slurmctld., type: str}
  parameters: {description: Further keys of slurm.conf., type: dict, default: {}}
  cgroup: {description: Keys of cgroup.conf., type: dict, default: {}}
  partitions: {description: Name to keys of each partition., type: dict, default: {}}
  memory_margin_percent: {description: How far RealMemory stays below what nodes report., type: float, default: 2.0}
  version: {description: Slurm's version such as 22.05.8; empty if not known., type: str, default: ""}
  directory: {description: Where the files lie on the Slurm controller., type: path, default: /etc/slurm}
  mark: {description: File that holds the action that is due., type: path, default: /run/rackweave-slurm-due}
  adopt_ok: {description: Replace a slurm.conf that is not ours., type: bool, default: false}
  files: {description: Texts by file name; set by the action plugin., type: dict}
attributes:
  check_mode: {support: full, description: Says what it would write.}
author: Rackweave
"""
EXAMPLES = r"""
- name: Write Slurm's files
  rackweave.cluster.slurm_config:
    documents_dir: .state/lab/observed
    hosts: [gpu01, gpu02]
    cluster_name: lab
    controller: ctl
"""
RETURN = r"""
action: {description: What is due (none, reconfigure, restart)., returned: success, type: str}
files_changed: {description: Names of the files that differ., returned: success, type: list, elements: str}
keys_changed: {description: Keys of slurm.conf that differ., returned: success, type: list, elements: str}
backup: {description: Copy of a slurm.conf that was adopted; null otherwise., returned: success, type: str}
"""
SPEC = {
    "files": {"type": "dict", "required": True},
    "directory": {"type": "path", "default": "/etc/slurm"},
    "mark": {"type": "path", "default": "/run/rackweave-slurm-due"},
    "adopt_ok": {"type": "bool", "default": False},
}
ACTIONS = ("none", "reconfigure", "restart")


def read(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def write(path: Path, text: str) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "w") as file:
        file.write(text)
    os.chmod(temporary, 0o644)
    os.replace(temporary, path)


def due_action(mark: Path, new: str) -> str:
    """Return the stronger one of the new action and of what an earlier run left undone."""
    left = read(mark).strip()
    return max(left if left in ACTIONS else "none", new, key=ACTIONS.index)


def main() -> None:
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    directory, new = Path(module.params["directory"]), module.params["files"]
    old = {name: read(directory / name) for name in new}
    backup = None
    foreign = old["slurm.conf"] and not is_ours(old["slurm.conf"])
    if foreign and not module.params["adopt_ok"]:
        module.fail_json(
            msg=f"{directory}/slurm.conf was not written by Rackweave and is left as it is: set slurm_manage to "
            "false to work with this Slurm, or slurm_adopt_ok to replace the file (a copy is kept)"
        )
    change = config_change(old, new)
    mark = Path(module.params["mark"])
    action = due_action(mark, change.action)
    if change.files and not module.check_mode:
        write(mark, action)
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        if foreign:
            backup = f"{directory}/slurm.conf.before-rackweave-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
            write(Path(backup), old["slurm.conf"])
        for name in change.files:
            write(directory / name, new[name])
    module.exit_json(
        changed=bool(change.files),
        action=action,
        files_changed=list(change.files),
        keys_changed=list(change.keys),
        backup=backup,
        diff=[
            {"before": old[name], "after": new[name], "before_header": name, "after_header": name}
            for name in change.files
        ],
    )


if __name__ == "__main__":
    main()
