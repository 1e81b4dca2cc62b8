"""Documentation of the action plugin of the same name, which runs on the controller and calls modules on the host."""

DOCUMENTATION = r"""
module: job_submit
short_description: Submit a plan as a detached Slurm job, or attach to the live job of its run
description:
  - Runs on the Slurm submit host (delegate it) as the user who owns the job; the controller opens no shared directory.
  - States the three switches, refuses plans made from example documents, and never touches the plan under a live job.
options:
  run: {description: Name of the run., type: str, required: true}
  plan_dir: {description: Directory of the run files on the controller., type: path, required: true}
  shared_dir: {description: Directory on the shared file system, as the nodes see it., type: str, required: true}
  stop_ok: {description: Whether the watcher may stop our own job., type: bool, required: true}
  requeue_ok: {description: Whether the job may requeue itself., type: bool, required: true}
  drain_ok: {description: Whether the watcher may drain nodes., type: bool, required: true}
  further_drains:
    description: Who else may drain nodes, only to be said; variable to what it allows, on how many nodes, of how many.
    type: dict
    default: {}
  check_only: {description: Only say on the controller whether the plan can be launched., type: bool, default: false}
author: Rackweave
"""
EXAMPLES = r"""
- name: Submit the run
  rackweave.cluster.job_submit:
    run: demo
    plan_dir: .state/lab/plan/demo
    shared_dir: /mnt/shared
    stop_ok: true
    requeue_ok: false
    drain_ok: false
  delegate_to: ctl
  become: true
  become_user: hpc
  run_once: true
"""
RETURN = r"""
job_id: {description: Id of the job., returned: success, type: str}
attached: {description: Whether the job was live before., returned: success, type: bool}
plan_differs: {description: Whether a live job runs with another plan., returned: when attached, type: bool}
run_dir: {description: Directory of the run on the shared file system., returned: success, type: str}
hosts: {description: Hosts of the job in node-rank order., returned: when submitted, type: list, elements: str}
"""
