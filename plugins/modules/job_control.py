#!/usr/bin/python
"""Ask for a save, or cancel a job of ours; the only module that ends anything."""

from __future__ import annotations

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.rackweave.run.attempt import STOP_FILE
from ..module_utils.rackweave.run.slurm import base_state

DOCUMENTATION = r"""
module: job_control
short_description: Ask a job of ours to save and exit, or cancel it
description:
  - Runs on the Slurm submit host as the user who owns the job.
  - Does nothing unless C(stop_ok) is true, and says so; that switch is the operator's consent.
options:
  job_id: {description: The job., type: str, required: true}
  action: {description: What to do., type: str, choices: [save, cancel], required: true}
  attempt_dir: {description: Directory of the running attempt; needed to ask for a save., type: path}
  stop_ok: {description: Whether our own job may be stopped., type: bool, default: false}
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
"""
RETURN = r"""
done: {description: Whether the action was carried out., returned: success, type: bool}
"""
SPEC = {
    "job_id": {"type": "str", "required": True},
    "action": {"type": "str", "choices": ["save", "cancel"], "required": True},
    "attempt_dir": {"type": "path"},
    "stop_ok": {"type": "bool", "default": False},
}


def main() -> None:
    module = AnsibleModule(
        argument_spec=SPEC, supports_check_mode=True, required_if=[("action", "save", ("attempt_dir",))]
    )
    params = module.params
    if not params["stop_ok"]:
        module.exit_json(changed=False, done=False, msg="stopping our own job is switched off (training_job_stop_ok)")
    code, out, err = module.run_command(["squeue", "--noheader", f"--jobs={params['job_id']}", "--format=%T"])
    state = base_state(out)
    if code != 0 or state in ("UNKNOWN", "COMPLETING"):
        module.exit_json(changed=False, done=False, msg=f"job {params['job_id']} runs no more: {(err or out).strip()}")
    if module.check_mode:
        module.exit_json(changed=True, done=False)
    if params["action"] == "save":
        try:
            (Path(params["attempt_dir"]) / STOP_FILE).touch()
        except OSError as error:
            module.fail_json(msg=f"{error.filename} cannot be made ({error.strerror})")
    else:
        code, out, err = module.run_command(["scancel", params["job_id"]])
        if code != 0:
            module.fail_json(msg=f"scancel {params['job_id']} failed: {(err or out).strip()}")
    module.exit_json(changed=True, done=True)


if __name__ == "__main__":
    main()
