"""Documentation of the action plugin of the same name, which runs on the controller."""

DOCUMENTATION = r"""
---
module: run_refresh
short_description: Give a plan that was made anew to a job that waits with the old one
description:
  - An attempt copies the run's plan when it starts, so a job that waits takes a new one, as long as the batch script
    that Slurm holds is the same. Where it is not, nothing is copied and C(keep_hold) says that the job must not start.
options:
  run: {description: "Name of the run.", type: str, required: true}
  plan_dir: {description: "Directory of the plan on the controller.", type: path, required: true}
  shared_dir: {description: "Directory of the shared file system.", type: str, required: true}
  jobs: {description: "Jobs that wait for the node (job_id, name, user).", type: list, elements: dict, default: []}
  other_runs_differ: {description: "Whether plans of other runs are out of date too.", type: bool, default: false}
attributes:
  check_mode: {support: full, description: Says what would be copied.}
author: Rackweave
"""
EXAMPLES = r"""
- name: Give the new plan to the job that waits
  rackweave.cluster.run_refresh:
    run: demo
    plan_dir: .state/lab/plan/demo
    shared_dir: /mnt/shared
    jobs: "{{ begun.jobs }}"
  delegate_to: ctl
"""
RETURN = r"""
keep_hold: {description: Whether the job's batch script is out of date., returned: success, type: bool}
"""
