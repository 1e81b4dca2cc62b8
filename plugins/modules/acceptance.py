"""Documentation of the action plugin of the same name, which runs on the controller."""

DOCUMENTATION = r"""
---
module: acceptance
short_description: Measure nodes through Slurm and judge the figures
description:
  - Runs on the controller; reaches the cluster through modules on the Slurm submit host, to which it is delegated.
  - Nodes that a job holds, that are drained or down are C(pending) and not touched.
  - A node that passed with the same document, settings and bars is not measured again unless C(repeat) is true.
  - A figure that misses its bar is measured a second time before it counts.
  - Never fails because of a bad figure; the caller decides.
options:
  hosts: {description: Nodes to test., type: list, elements: str, required: true}
  neighbours: {description: Idle nodes that may be the other end of a pair., type: list, elements: str, default: []}
  cluster: {description: All nodes that exist., type: list, elements: str, required: true}
  reservation: {description: Slurm reservation to run in., type: str, default: ""}
  documents_dir: {description: Directory of node documents on the controller., type: path, required: true}
  scripts_dir: {description: Directory of the job's programs on the controller., type: path, required: true}
  runtime_script:
    description: The program on the controller that enters the runtime of the training job.
    type: path
    required: true
  runtime_conf: {description: Settings of that runtime., type: str, required: true}
  directory: {description: Directory for the job on the shared file system., type: str, required: true}
  dest: {description: JSON file on the controller whose key C(acceptance) receives the report., type: path}
  repeat: {description: Measure again what has passed., type: bool, default: false}
  settings: {description: How much is measured; see the role's defaults., type: dict, required: true}
  bars: {description: Your own bars by test., type: dict, default: {}}
  virtual_ok: {description: Whether nodes may be virtual machines., type: bool, default: false}
  sbatch_options: {description: Further options of C(sbatch)., type: list, elements: str, default: []}
  start_timeout_s: {description: How long the job may wait for its nodes., type: int, default: 60}
  time_limit_minutes: {description: Limit of one measurement., type: int, default: 15}
  fabric: {description: The fabric block., type: dict, required: true}
  nccl_version: {description: NCCL that the job loads., type: str}
  torch_version: {description: PyTorch of the job., type: str}
attributes:
  check_mode: {support: full, description: Measures nothing and returns what is known.}
author: Rackweave
"""
EXAMPLES = r"""
- name: Measure two nodes
  rackweave.cluster.acceptance:
    hosts: [gpu01, gpu02]
    cluster: [gpu01, gpu02]
    documents_dir: "{{ rackweave_state_dir }}/observed"
    scripts_dir: "{{ role_path }}/files"
    runtime_script: "{{ role_path }}/../training_job/files/runtime.sh"
    runtime_conf: "{{ __acceptance_runtime_conf }}"
    directory: /mnt/shared/acceptance
    settings: "{{ __acceptance_settings }}"
    fabric: "{{ rackweave_fabric }}"
  delegate_to: ctl
  become: true
  become_user: hpc
  run_once: true
"""
RETURN = r"""
report: {description: The report (rackweave.acceptance/1)., returned: success, type: dict}
table: {description: The report as lines., returned: success, type: list, elements: str}
measured: {description: Hosts that this run measured., returned: success, type: list, elements: str}
"""
