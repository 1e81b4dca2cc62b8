"""Action plugin: copy a plan from the controller to the run's directory and submit it, or attach to its live job.

The shared directory is reached through modules on the submit host alone, as the user who owns the job.
"""

from __future__ import annotations

from pathlib import Path

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ..module_utils.rackweave.errors import DocumentError, RackweaveError
from ..module_utils.rackweave.run.batch import check_run_name
from ..module_utils.rackweave.run.plan_file import parse_plan

display = Display()

ARGUMENT_SPEC = {
    "run": {"type": "str", "required": True},
    "plan_dir": {"type": "path", "required": True},
    "shared_dir": {"type": "str", "required": True},
    "stop_ok": {"type": "bool", "required": True},
    "requeue_ok": {"type": "bool", "required": True},
    "drain_ok": {"type": "bool", "required": True},
    "further_drains": {"type": "dict", "default": {}},
    "check_only": {"type": "bool", "default": False},
}
SWITCHES = ("stop_ok", "requeue_ok", "drain_ok")


class ActionModule(ActionBase):
    """Validate the plan, find a live job, else copy and submit."""

    _supports_check_mode = True

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        _, args = self.validate_argument_spec(ARGUMENT_SPEC)
        switches = {name: args[name] for name in SWITCHES}
        try:
            check_run_name(args["run"])
            plan, files = read_plan_dir(Path(args["plan_dir"]))
            check_launchable(plan, files, args["run"])
        except RackweaveError as error:
            return {**result, "failed": True, "msg": str(error)}
        if args["check_only"]:
            return {**result, "changed": False, "hosts": list(plan.hosts), "msg": "the plan can be launched"}
        display.display(f"run {args['run']}: " + switches_line(switches, args["further_drains"]))
        run_dir = f"{args['shared_dir'].rstrip('/')}/runs/{args['run']}"
        submit = {"run": args["run"], "run_dir": run_dir, "switches": switches}
        found = self._call("run_submit", {**submit, "find_only": True}, task_vars)
        if found.get("failed"):
            return {**result, **found}
        if found["job_id"]:
            return {**result, **self._attach(found, run_dir, files, task_vars)}
        copied = self._call("run_files", {"path": f"{run_dir}/plan", "files": files, "purge": True}, task_vars)
        if copied.get("failed"):
            return {**result, **copied}
        submitted = self._call("run_submit", submit, task_vars)
        if submitted.get("failed"):
            return {**result, **submitted}
        return {**result, **answer(submitted, run_dir, plan), "changed": submitted["changed"] or copied["changed"]}

    def _attach(self, found, run_dir, files, task_vars):
        """Describe the live job; its own plan stays as it is, a different one on the controller is said."""
        comparison = {"path": f"{run_dir}/plan", "files": files, "purge": True, "compare_only": True}
        differs = self._call("run_files", comparison, task_vars).get("differs", False)
        if differs:
            self._display.warning(
                f"job {found['job_id']} runs with an older plan than the one on this controller; it is left alone, "
                "launch again after its end"
            )
        return {**answer(found, run_dir, None), "changed": False, "plan_differs": differs}

    def _call(self, module, arguments, task_vars):
        return self._execute_module(f"rackweave.cluster.{module}", module_args=arguments, task_vars=task_vars)


def read_plan_dir(directory):
    """Return the checked plan and all its files by name.

    Raises:
        DocumentError: if there is no plan, or it breaks its schema.
    """
    if not (directory / "plan.json").is_file():
        raise DocumentError(f"{directory} holds no plan; run playbooks/plan.yml first")
    paths = [path for path in directory.rglob("*") if path.is_file() and not path.name.startswith(".")]
    files = {str(path.relative_to(directory)): path.read_text(encoding="utf-8") for path in sorted(paths)}
    return parse_plan(files["plan.json"], str(directory / "plan.json")), files


def check_launchable(plan, files, run):
    """Refuse a plan that can be looked at but not started.

    Raises:
        DocumentError: with the reason and the way out.
    """
    if plan.run != run:
        raise DocumentError(f"the plan is of run {plan.run!r}, not of {run!r}; run playbooks/plan.yml for {run!r}")
    if plan.origin == "example":
        raise DocumentError(
            f"the plan of run {run!r} was made from example documents, which describe no machine of yours; "
            "provision the nodes and plan again"
        )
    if plan.origin == "declared":
        raise DocumentError(
            f"the plan of run {run!r} was made from a declared hardware class ({plan.document['cluster']['source']}), "
            "not from what the nodes are; provision them and plan again"
        )
    if not plan.document["fits"]:
        raise DocumentError(f"the plan of run {run!r} does not fit: {plan.document['reason']}")
    missing = [host for host in plan.hosts if f"nccl/{host}.conf" not in files]
    if missing:
        raise DocumentError(f"the plan of run {run!r} has no environment for {', '.join(missing)}; plan again")


def switches_line(switches, further=None):
    """Say what may happen to the job, and to nodes, without asking again; ``further`` has more that drains."""
    words = {"stop_ok": "stop our own job", "requeue_ok": "requeue our own job", "drain_ok": "drain nodes"}
    said = [f"{words[name]} {'on' if switches[name] else 'off'}" for name in SWITCHES]
    for variable, (what, nodes, of) in (further or {}).items():
        said.append(f"{what} {f'on for {nodes} of {of} nodes' if nodes else 'off'} ({variable})")
    return "switches: " + ", ".join(said)


def answer(found, run_dir, plan):
    """Return what the user and the next task want to know of a job."""
    job_id = found["job_id"]
    verb = "attached to" if found["attached"] else "submitted as"
    state = f" ({found['state'].lower()})" if found.get("state") else ""
    answered = {"job_id": job_id, "attached": found["attached"], "run_dir": run_dir}
    if plan is not None:
        answered["hosts"] = list(plan.hosts)
    return {**answered, "msg": f"{verb} job {job_id}{state}" if job_id else "would be submitted"}
