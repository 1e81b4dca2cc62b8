"""Documentation of the action plugin of the same name, which runs on the controller."""

DOCUMENTATION = r"""
module: run_plan
short_description: Write the run files of a plan on the controller
description:
  - Writes C(plan.json), C(train.json), C(ds_config.json), C(megatron.args), C(job.sbatch), scripts.
  - No host is contacted.
  - A file is touched only where its text differs, so equal inputs leave the directory unchanged.
options:
  run: {description: Name of the run., type: str, required: true}
  directory: {description: Directory on the controller., type: path, required: true}
  scripts_dir: {description: Directory with the role's static scripts., type: path, required: true}
  layout: {description: The plan as returned by C(parallel_layout)., type: dict, required: true}
  train: {description: Content of C(train.json)., type: dict, required: true}
  settings:
    description: How the job is submitted.
    type: dict
    required: true
    suboptions:
      run_dir: {description: Directory of the run on the shared file system., type: str, required: true}
      venv: {description: Python environment of the trainer on the shared file system., type: str, required: true}
      command:
        description: Program of each rank; C({attempt}), C({run_dir}) and the word C({megatron_args}) are filled in.
        type: list
        elements: str
        required: true
      time_limit_s: {description: Time limit in seconds., type: int, required: true}
      save_signal_s: {description: How many seconds before the limit a save is asked for., type: int, required: true}
      stall_s: {description: Seconds without progress after which a launcher gives up., type: int, required: true}
      requeue_ok: {description: Whether the batch script may requeue itself., type: bool, required: true}
      max_restarts: {description: How often at most., type: int, required: true}
      gres: {description: Name of the generic resource., type: str, default: gpu}
      exclusive: {description: Whether nodes are asked for alone., type: bool, default: true}
      partition: {description: Slurm partition; empty for the default., type: str, default: ""}
      account: {description: Slurm account., type: str, default: ""}
      qos: {description: Slurm quality of service., type: str, default: ""}
      environment: {description: Variables exported by the batch script., type: dict, default: {}}
      sbatch_options: {description: Further options of the batch script., type: list, elements: str, default: []}
  runtime_conf:
    description:
      - Content of C(runtime.conf), as the filter C(job_runtime_conf) renders it; empty for the virtual environment.
    type: str
    default: ""
  waivers:
    description:
      - Findings that somebody answers for (docs/fabric.md, section 5); the check inside the job honours them too.
    type: list
    elements: dict
    default: []
author: Rackweave
"""
EXAMPLES = r"""
- name: Write the run files
  rackweave.cluster.run_plan:
    run: demo
    directory: .state/lab/plan/demo
    scripts_dir: roles/training_job/files
    layout: "{{ plan.layout }}"
    train: "{{ train }}"
    settings: "{{ settings }}"
  run_once: true
"""
RETURN = r"""
written: {description: Files that were written., returned: success, type: list, elements: str}
table: {description: The plan as lines for a terminal., returned: success, type: list, elements: str}
hosts: {description: Hosts in node-rank order., returned: success, type: list, elements: str}
directory: {description: Where the files lie., returned: success, type: str}
"""
