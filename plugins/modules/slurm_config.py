#!/usr/bin/python
"""Write Slurm's configuration files on the controller; their texts come from the action plugin of the same name."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.rackweave.errors import RackweaveError
from ..module_utils.rackweave.slurm.change import (
    ACTIONS,
    check_jobs_survive,
    config_change,
    foreign_files,
    settled,
    with_left_alone,
)
from ..module_utils.rackweave.slurm.versions import version_pair

DOCUMENTATION = r"""
module: slurm_config
short_description: Write Slurm's files from node documents
description:
  - The action plugin of the same name runs on the Ansible controller. It reads the node documents of all hosts, those
    outside of C(--limit) included, and computes the texts; the module writes them on the Slurm controller.
  - What a change asks for is noted in O(mark) until somebody removes that file, so that a run that ends before it
    reconfigured or restarted Slurm leaves the duty to the next one.
  - A file that Rackweave did not write is never replaced unless O(adopt_ok); a copy of it is kept.
  - A change that would lose jobs Slurm knows is refused while there are any.
  - A slurm.conf that the installed Slurm cannot read is refused before anything is written.
  - Programs that every node must have are not added to slurm.conf by a run that does not reach all nodes.
options:
  documents_dir: {description: Directory on the Ansible controller with a document of every host., type: path}
  hosts: {description: All hosts that shall be in slurm.conf., type: list, elements: str}
  cluster_name: {description: ClusterName., type: str}
  controller: {description: Host name of slurmctld., type: str}
  parameters: {description: Further keys of slurm.conf., type: dict, default: {}}
  cgroup: {description: Keys of cgroup.conf., type: dict, default: {}}
  partitions: {description: Name to keys of each partition., type: dict, default: {}}
  memory_margin_percent: {description: How far RealMemory stays below what nodes report., type: float, default: 2.0}
  mem_spec_limit_mib: {description: Memory kept for the system in MiB; 0 for none., type: int, default: 0}
  hooks: {description: Keys of slurm.conf that name programs on the nodes., type: dict, default: {}}
  dbd_host: {description: Host of slurmdbd; empty for no accounting., type: str, default: ""}
  topology: {description: Switches by name with nodes or switches below them., type: dict, default: {}}
  topology_block_sizes: {description: Block sizes in nodes., type: list, elements: int, default: []}
  topology_from_networks: {description: Take the groups from the documents., type: bool, default: false}
  hosts_here: {description: Hosts that this run reaches; all of O(hosts) if not given., type: list, elements: str}
  absent:
    description: Hosts that this run does not reach; set by the action plugin.
    type: list
    elements: str
    default: []
  version: {description: Slurm's version such as 22.05.8; empty if not known., type: str, default: ""}
  directory: {description: Where the files lie on the Slurm controller., type: path, default: /etc/slurm}
  mark: {description: File that holds the action that is due., type: path, default: /run/rackweave-slurm-due}
  adopt_ok: {description: Replace files that are not ours., type: bool, default: false}
  files: {description: Texts by file name, set by the action plugin; an empty one is removed., type: dict}
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
action:
  description: What is due (none, reconfigure, restart_controller, or restart, that of slurmctld and slurmd).
  returned: success
  type: str
files_changed: {description: Names of the files that differ., returned: success, type: list, elements: str}
keys_changed: {description: Keys of slurm.conf that differ., returned: success, type: list, elements: str}
backups: {description: Copies of files that were adopted., returned: success, type: list, elements: str}
waiting: {description: Keys that wait for a run over all nodes., returned: success, type: list, elements: str}
nodes: {description: What each node must have by its document (for the scripts on it)., returned: success, type: dict}
"""
SPEC = {
    "files": {"type": "dict", "required": True},
    "absent": {"type": "list", "elements": "str", "default": []},
    "directory": {"type": "path", "default": "/etc/slurm"},
    "mark": {"type": "path", "default": "/run/rackweave-slurm-due"},
    "version": {"type": "str", "default": ""},
    "adopt_ok": {"type": "bool", "default": False},
}


# Slurm's parser takes well under a second, on a starved machine some. Longer than this, a daemon would wait too.
PARSER_LIMIT_S = 120.0


def read(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def write(path: Path, text: str) -> None:
    if not text:
        path.unlink(missing_ok=True)
        return
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "w") as file:
        file.write(text)
    os.chmod(temporary, 0o644)
    os.replace(temporary, path)


def due_action(mark: Path, new: str) -> str:
    """Return the stronger one of the new action and of what an earlier run left undone."""
    left = read(mark).strip()
    return max(left if left in ACTIONS else "none", new, key=ACTIONS.index)


def known_jobs(module: AnsibleModule) -> int:
    """Return how many jobs Slurm knows; none where no slurmctld answers."""
    squeue = module.get_bin_path("squeue")
    code, out, _ = module.run_command([squeue, "--noheader", "--states=all", "--format=%T"]) if squeue else (1, "", "")
    over = ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE")
    return sum(state.strip() not in over for state in out.splitlines()) if code == 0 else 0


def complaint(module: AnsibleModule, new: dict[str, str]) -> str:
    """Return why Slurm's own parser forbids the new slurm.conf; empty where it takes it or is not installed.

    Every client reads the file before anything else, and no daemon is asked for this. A slurmctld that was restarted
    with a file it cannot read would stay down.
    """
    scontrol = module.get_bin_path("scontrol")
    if not scontrol or not new.get("slurm.conf"):
        return ""
    directory = Path(tempfile.mkdtemp(dir=module.tmpdir))
    for name, text in new.items():
        write(directory / name, text)
    environment = {"SLURM_CONF": str(directory / "slurm.conf")}
    limit = Limit(PARSER_LIMIT_S)
    code, _, err = module.run_command(
        [scontrol, "show", "hostnames", "none"],
        environ_update=environment,
        before_communicate_callback=limit.start,
    )
    if limit.over():
        return (
            f"scontrol has not read the slurm.conf that would be written within {PARSER_LIMIT_S:g} s, so nothing was: "
            "run `scontrol show hostnames none` there, and see what it waits for (names, a file system that hangs)"
        )
    if code == 0 or "Unable to process configuration file" not in err:
        return ""
    said = [line.partition("error: ")[2] for line in err.splitlines() if "error: " in line]
    return (
        "this Slurm cannot read the slurm.conf that would be written, so nothing was: "
        f"{'; '.join(said).replace(f'{directory}/', '')}. Look at slurm_parameters and slurm_partitions; a key that is "
        "right in another version of Slurm is none here"
    )


class Limit:
    """Kills a program that runs longer than it may."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._timer: threading.Timer | None = None
        self._killed = False

    def start(self, process: subprocess.Popen[bytes]) -> None:
        """Begin to count, once the program was started."""
        self._timer = threading.Timer(self._seconds, self._kill, [process])
        self._timer.daemon = True
        self._timer.start()

    def over(self) -> bool:
        """Return whether the program was killed; called once it has ended."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()
        return self._killed

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        self._killed = process.poll() is None
        process.kill()


def adopt(directory: Path, foreign: tuple[str, ...], old: dict[str, str]) -> list[str]:
    """Keep a copy of every file that is about to be replaced."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    backups = [f"{directory}/{name}.before-rackweave-{stamp}" for name in foreign]
    for name, backup in zip(foreign, backups):
        write(Path(backup), old[name])
    return backups


def main() -> None:
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    directory, mark = Path(module.params["directory"]), Path(module.params["mark"])
    old = {name: read(directory / name) for name in module.params["files"]}
    new, waiting = settled(old, module.params["files"], module.params["absent"])
    foreign = foreign_files(old, new)
    if foreign and not module.params["adopt_ok"]:
        paths = ", ".join(f"{directory}/{name}" for name in foreign)
        module.fail_json(
            msg=f"{paths} was not written by Rackweave and is left as it is: set slurm_manage to false to work with "
            "this Slurm, or slurm_adopt_ok to replace the file (a copy is kept)"
        )
    new = with_left_alone(old, new, foreign)
    change = config_change(old, new, version_pair(module.params["version"]))
    try:
        check_jobs_survive(old, new, known_jobs(module) if change.files else 0)
    except RackweaveError as exc:
        module.fail_json(msg=str(exc))
    refused = complaint(module, new) if change.files else ""
    if refused:
        module.fail_json(msg=refused)
    action = due_action(mark, change.action)
    backups = []
    if change.files and not module.check_mode:
        write(mark, action)
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        backups = adopt(directory, foreign, old)
        for name in change.files:
            write(directory / name, new[name])
    module.exit_json(
        changed=bool(change.files),
        action=action,
        files_changed=list(change.files),
        keys_changed=list(change.keys),
        backups=backups,
        waiting=list(waiting),
        diff=[
            {"before": old[name], "after": new[name], "before_header": name, "after_header": name}
            for name in change.files
        ],
    )


if __name__ == "__main__":
    main()
