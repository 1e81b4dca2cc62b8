#!/usr/bin/python
"""The one module that acts on a job or a node after a verdict: save, cancel, drain, set a checkpoint aside."""

from __future__ import annotations

import re
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.rackweave.errors import ParseError
from ..module_utils.rackweave.run.attempt import STOP_FILE
from ..module_utils.rackweave.run.slurm import base_state
from ..module_utils.rackweave.slurm.node_state import parse_node
from ..module_utils.rackweave.watch.recovery import REASON_PREFIX

DOCUMENTATION = r"""
module: job_control
short_description: Ask a job of ours to save and exit, cancel it, drain a node, or set a checkpoint aside
description:
  - Runs on the Slurm submit host; as the user who owns the job, or, to drain, as one whom Slurm lets do that.
  - Does nothing unless the switch of the action is on, and says so; a switch is the operator's consent. They are
    C(stop_ok) for C(save) and C(cancel), C(drain_ok) for C(drain), C(requeue_ok) for C(set_aside).
  - A node that is drained or down already keeps its state and its reason, whoever gave it.
options:
  action: {description: What to do., type: str, choices: [save, cancel, drain, set_aside], required: true}
  job_id: {description: The job to save or cancel., type: str}
  attempt_dir: {description: Directory of the running attempt; needed to ask for a save., type: path}
  node: {description: Name of the node to drain., type: str}
  reason: {description: "Reason of the drain; must begin with C(rackweave: ).", type: str}
  checkpoints:
    description: Directory of checkpoints. The newest is renamed if another validated one is left, so that the next
      start takes that one; nothing is deleted.
    type: path
  stop_ok: {description: Whether our own job may be stopped., type: bool, default: false}
  drain_ok: {description: Whether nodes may be drained., type: bool, default: false}
  requeue_ok: {description: Whether our own job may be started again., type: bool, default: false}
attributes:
  check_mode: {support: full, description: Changes nothing.}
author: Rackweave
"""
EXAMPLES = r"""
- name: Let the job save and exit
  rackweave.cluster.job_control:
    job_id: "12"
    action: save
    attempt_dir: /mnt/shared/runs/demo/attempts/12.0
    stop_ok: true
  become: true
  become_user: hpc
- name: Take a node out of use
  rackweave.cluster.job_control:
    action: drain
    node: gpu02
    reason: "rackweave: gpu.fallen_off_bus in attempt 12.0 of demo"
    drain_ok: true
  become: true
"""
RETURN = r"""
done: {description: Whether the action was carried out., returned: success, type: bool}
msg: {description: Why not., returned: when not done, type: str}
"""
SPEC = {
    "action": {"type": "str", "choices": ["save", "cancel", "drain", "set_aside"], "required": True},
    "job_id": {"type": "str"},
    "attempt_dir": {"type": "path"},
    "node": {"type": "str"},
    "reason": {"type": "str"},
    "checkpoints": {"type": "path"},
    "stop_ok": {"type": "bool", "default": False},
    "drain_ok": {"type": "bool", "default": False},
    "requeue_ok": {"type": "bool", "default": False},
}
NEEDED = [
    ("action", "save", ("job_id", "attempt_dir")),
    ("action", "cancel", ("job_id",)),
    ("action", "drain", ("node", "reason")),
    ("action", "set_aside", ("checkpoints",)),
]
SWITCH_OF = {"save": "stop_ok", "cancel": "stop_ok", "drain": "drain_ok", "set_aside": "requeue_ok"}
MEANING = {
    "stop_ok": "stopping our own job is switched off (training_job_stop_ok)",
    "drain_ok": "draining nodes is switched off (training_job_drain_ok)",
    "requeue_ok": "starting our own job again is switched off (training_job_requeue_ok)",
}
STEP = re.compile(r"step_(\d+)")


def leave(module: AnsibleModule, why: str) -> None:
    module.exit_json(changed=False, done=False, msg=why)


def check_job(module: AnsibleModule) -> None:
    """Leave if the job runs no more."""
    job_id = module.params["job_id"]
    code, out, err = module.run_command(["squeue", "--noheader", f"--jobs={job_id}", "--format=%T"])
    if code != 0 or base_state(out) in ("UNKNOWN", "COMPLETING"):
        leave(module, f"job {job_id} runs no more: {(err or out).strip()}")


def save(module: AnsibleModule) -> None:
    try:
        (Path(module.params["attempt_dir"]) / STOP_FILE).touch()
    except OSError as error:
        module.fail_json(msg=f"{error.filename} cannot be made ({error.strerror})")


def cancel(module: AnsibleModule) -> None:
    code, out, err = module.run_command(["scancel", module.params["job_id"]])
    if code != 0:
        module.fail_json(msg=f"scancel {module.params['job_id']} failed: {(err or out).strip()}")


def check_node(module: AnsibleModule) -> None:
    """Leave where somebody has taken the node out of use already; its reason is theirs."""
    name = module.params["node"]
    if not module.params["reason"].startswith(REASON_PREFIX):
        module.fail_json(
            msg=f"reason {module.params['reason']!r} must begin with {REASON_PREFIX!r}, which marks it as ours"
        )
    code, out, err = module.run_command(["scontrol", "--oneliner", "show", "node", name])
    try:
        state = parse_node(out + err)
    except ParseError as error:
        module.fail_json(msg=f"Slurm says nothing of node {name} (status {code}): {error}")
    if state is None:
        module.fail_json(msg=f"Slurm does not know node {name}")
    if state.words & {"DRAIN", "DRAINED", "DRAINING", "DOWN"}:
        leave(module, f"node {name} is {'+'.join(sorted(state.words))} already: {state.reason or 'no reason given'}")


def drain(module: AnsibleModule) -> None:
    name = module.params["node"]
    words = ["scontrol", "update", f"NodeName={name}", "State=DRAIN", f"Reason={module.params['reason']}"]
    code, out, err = module.run_command(words)
    if code != 0:
        module.fail_json(msg=f"node {name} could not be drained: {(err or out).strip()}")


def newest_checkpoint(module: AnsibleModule) -> Path:
    """Return the newest checkpoint; leave where no validated one would be left."""
    directory = Path(module.params["checkpoints"])
    entries = directory.iterdir() if directory.is_dir() else []
    found = sorted((int(match[1]), path) for path in entries if (match := STEP.fullmatch(path.name)) and path.is_dir())
    if not any((path / "validated.json").is_file() for _, path in found[:-1]):
        leave(module, f"{directory} holds no validated checkpoint before the newest one, so that one stays")
    return found[-1][1]


def set_aside(module: AnsibleModule) -> None:
    path = newest_checkpoint(module)
    path.rename(path.with_name(f"suspect_{path.name}"))


def main() -> None:
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True, required_if=NEEDED)
    action = module.params["action"]
    switch = SWITCH_OF[action]
    if not module.params[switch]:
        leave(module, MEANING[switch])
    check = {"save": check_job, "cancel": check_job, "drain": check_node, "set_aside": newest_checkpoint}[action]
    check(module)
    if not module.check_mode:
        {"save": save, "cancel": cancel, "drain": drain, "set_aside": set_aside}[action](module)
    module.exit_json(changed=True, done=not module.check_mode)


if __name__ == "__main__":
    main()
