"""Documentation of the action plugin of the same name, which runs on the controller and calls modules on the host."""

DOCUMENTATION = r"""
module: job_watch
short_description: Follow the job of a run to its end and return how it really ended
description:
  - Runs on the Slurm submit host (delegate it) as the user who owns the job.
  - Shows job state, phase, step, loss, speed and time left while the job runs.
  - Fails where the job failed, and names rank and host of the culprit where evidence does.
  - Attaches to whatever job the run has, so it may be started again at any time. A job that is over is concluded again.
  - A job that hangs is stopped only with C(stop_ok), after its own time-outs and after evidence is collected.
options:
  run: {description: Name of the run., type: str, required: true}
  shared_dir: {description: Directory on the shared file system, as the nodes see it., type: str, required: true}
  job_id: {description: Job to follow; empty takes the last submission., type: str, default: ""}
  report_dir: {description: Directory on the controller for C(report.html)., type: path, required: true}
  state_file: {description: File on the controller that keeps the last known status., type: path, required: true}
  stop_ok: {description: Whether our own job may be stopped when it hangs., type: bool, required: true}
  poll_interval_s: {description: Seconds between looks., type: float, default: 2.0}
  line_interval_s: {description: Least seconds between two progress lines., type: float, default: 5.0}
  status_interval_s: {description: Seconds between updates of C(status.json)., type: float, default: 30.0}
  hang_grace_s: {description: Seconds that a hung job is left to its own time-outs., type: float, default: 30.0}
  silent_s:
    description:
      - Seconds without a sign of life after which a node is named, while the other nodes go on writing theirs (one each
        3 s). If all are late at once, it is the shared file system and no node is named. 0 switches it off.
    type: float
    default: 18.0
  collect_hosts:
    description:
      - Of at most so many nodes evidence is wanted when the job hangs or fails. The task then returns C(wanted), before
        anything is ended; collect with C(job_evidence), and start this module again with C(collected).
    type: int
    default: 0
  collected: {description: Attempts of which evidence was collected., type: list, elements: str, default: []}
  silent_hosts: {description: "Nodes that gave no evidence, and why.", type: dict, default: {}}
  unreachable_s: {description: Seconds to wait for a submit host that does not answer., type: float, default: 600.0}
  until:
    description:
      - Whether to follow the job to its end and fail where it failed, or to return after each attempt, also one that
        the job follows by another, and leave it to the caller what a failure means.
    type: str
    choices: [job, attempt]
    default: job
author: Rackweave
"""
EXAMPLES = r"""
- name: Watch the run
  rackweave.cluster.job_watch:
    run: demo
    shared_dir: /mnt/shared
    report_dir: .state/lab/report/demo
    state_file: .state/lab/runs/demo.json
    stop_ok: true
  delegate_to: ctl
  become: true
  become_user: hpc
  run_once: true
"""
RETURN = r"""
state: {description: Final state of the job in Slurm., returned: always, type: str}
culprit: {description: "C(rank:N) or C(host:NAME), comma separated, or C(none).", returned: always, type: str}
diagnosis_class: {description: Class of the cause., returned: always, type: str}
first_action: {description: What to do first., returned: always, type: str}
evidence: {description: First lines; all are in C(verdict.json)., returned: always, type: list, elements: str}
job_id: {description: The job., returned: always, type: str}
job_live: {description: Whether the job goes on., returned: always, type: bool}
ended:
  description: Attempts judged so far, each with its verdict C(document), when it C(started), and C(requeued).
  returned: always
  type: list
  elements: dict
attempt: {description: Its last attempt., returned: always, type: str}
first_step: {description: First step of that attempt., returned: always, type: int}
last_step: {description: Last step of that attempt., returned: always, type: int}
target_step: {description: Step at which training was to end., returned: always, type: int}
checkpoint_step: {description: Step of the newest usable checkpoint of that attempt., returned: always, type: int}
validation_losses: {description: Its validation losses in nats., returned: always, type: list, elements: float}
loss_mean_of_last_ten:
  description: Mean of the last ten validation losses, or of training losses where nothing was evaluated.
  returned: always
  type: float
reference_loss: {description: Byte unigram entropy of the validation split in nats., returned: always, type: float}
wanted: {description: "Hosts, attempt and job of which evidence is wanted.", returned: when asked for, type: dict}
report: {description: Path of the page on the controller., returned: always, type: str}
"""
