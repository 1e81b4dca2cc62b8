"""Documentation of the action plugin of the same name, which runs on the controller."""

DOCUMENTATION = r"""
module: recovery_decision
short_description: Decide what follows from how attempts of a run ended
description:
  - A table from class to action, budgets, switches, the strike ledger over jobs, and a cap on drains. Nothing is
    done; C(job_control) acts, with the same switches.
  - Appends to C(journal.jsonl) and keeps C(strikes.json) in I(directory). Nothing is decided twice on the same
    evidence.
  - In check mode and with C(dry_run) the journal says what would be done, and that does not count.
options:
  run: {description: Name of the run., type: str, required: true}
  ended: {description: What C(job_watch) returned under that name., type: list, elements: dict, required: true}
  job_live: {description: Whether the job goes on., type: bool, required: true}
  directory: {description: Directory on the controller for journal and ledger., type: path, required: true}
  nodes:
    description: Nodes of the cluster. Only these are ever drained, at most max(1, 2 %) of them in an hour.
    type: list
    elements: str
    required: true
  stop_ok: {description: Whether our own job may be stopped., type: bool, required: true}
  requeue_ok: {description: Whether our own job may be started again., type: bool, required: true}
  drain_ok: {description: Whether nodes may be drained., type: bool, required: true}
  standing_drains:
    description: What C(slurm_nodes) returned as C(drains); they count for the cap like those of the journal.
    type: dict
    default: {}
  restart_budget: {description: Most new starts of a run until it ends well., type: int, default: 8}
  dry_run: {description: Whether this is only tried., type: bool, default: false}
  settings: {description: Passed on into the result., type: dict, default: {}}
attributes:
  check_mode: {support: full, description: Decides as in a dry run.}
author: Rackweave
"""
EXAMPLES = r"""
- name: Decide what to do
  rackweave.cluster.recovery_decision:
    run: demo
    ended: "{{ watched.ended }}"
    job_live: "{{ watched.job_live }}"
    directory: .state/lab/recovery
    nodes: [gpu01, gpu02]
    stop_ok: true
    requeue_ok: true
    drain_ok: true
"""
RETURN = r"""
action:
  description: C(observe), C(retry), C(retry_elsewhere), C(drain_and_requeue) or C(stop).
  returned: success
  type: str
why: {description: One sentence., returned: success, type: str}
drain: {description: Nodes to drain now, with the reason for Slurm., returned: success, type: dict}
wanted_drain:
  description: Nodes that would be drained if switch and cap allowed it.
  returned: success
  type: list
  elements: str
leave: {description: Nodes that a new start should avoid., returned: success, type: list, elements: str}
suspected: {description: Those of them that are only suspected., returned: success, type: list, elements: str}
repair: {description: Nodes that were blamed three times., returned: success, type: list, elements: str}
stop_job: {description: Whether the job is to be cancelled., returned: success, type: bool}
resubmit: {description: Whether the run is to be submitted anew., returned: success, type: bool}
checkpoints_back: {description: How many of the newest checkpoints are not to be trusted., returned: success, type: int}
stuck: {description: Whether only a person can go on., returned: success, type: bool}
frozen: {description: Whether the cap on drains was reached., returned: success, type: bool}
completed: {description: Whether the job ended well., returned: success, type: bool}
saved: {description: Whether it saved on request and ended before its last step., returned: success, type: bool}
strikes: {description: How often each node was blamed., returned: success, type: dict}
"""
