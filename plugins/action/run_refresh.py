"""Action plugin: give a plan that was made anew to a job that waits with the old one."""

from __future__ import annotations

from pathlib import Path

from ansible.plugins.action import ActionBase

from ..module_utils.rackweave.errors import RackweaveError
from ..module_utils.rackweave.run.batch import JOB_NAME_PREFIX, job_name
from .job_submit import check_launchable, read_plan_dir

ARGUMENT_SPEC = {
    "run": {"type": "str", "required": True},
    "plan_dir": {"type": "path", "required": True},
    "shared_dir": {"type": "str", "required": True},
    "jobs": {"type": "list", "elements": "dict", "default": []},
    "other_runs_differ": {"type": "bool", "default": False},
}


class ActionModule(ActionBase):
    """Replace the run's plan where the batch script that Slurm holds fits it; else say that the job is old."""

    _supports_check_mode = True

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        _, args = self.validate_argument_spec(ARGUMENT_SPEC)
        notes = other_notes(args["jobs"], args["run"]) if args["other_runs_differ"] else []
        own = [job for job in args["jobs"] if job.get("name") == job_name(args["run"])]
        if not own or not (Path(args["plan_dir"]) / "plan.json").is_file():
            what = (
                f"there is no plan of run {args['run']} here"
                if own
                else f"no job of run {args['run']} waits for the node"
            )
            words = "; ".join([what, *notes])
            return {**result, "changed": False, "keep_hold": False, "msg": words}
        try:
            plan, files = read_plan_dir(Path(args["plan_dir"]))
            check_launchable(plan, files, args["run"])
        except RackweaveError as error:
            return {**result, "failed": True, "msg": str(error)}
        outcome = self._refresh(args, own[0]["job_id"], files, task_vars)
        return {**result, **outcome, "msg": "; ".join([outcome["msg"], *notes])}

    def _refresh(self, args, job_id, files, task_vars):
        plan_dir = f"{args['shared_dir'].rstrip('/')}/runs/{args['run']}/plan"
        script = {"path": plan_dir, "files": {"job.sbatch": files["job.sbatch"]}, "compare_only": True}
        compared = self._call(script, task_vars)
        if compared.get("failed"):
            return compared
        if compared["differs"]:
            words = (
                f"job {job_id} waits with a batch script that no longer fits the nodes and stays held: "
                f"scancel {job_id}, then playbooks/launch.yml; it resumes from its checkpoint"
            )
            return {"changed": False, "keep_hold": True, "msg": words}
        copied = self._call({"path": plan_dir, "files": files, "purge": True}, task_vars)
        if copied.get("failed"):
            return copied
        words = "got the new plan" if copied["changed"] else "has the right plan already"
        return {"changed": copied["changed"], "keep_hold": False, "msg": f"job {job_id} of run {args['run']} {words}"}

    def _call(self, arguments, task_vars):
        return self._execute_module("rackweave.cluster.run_files", module_args=arguments, task_vars=task_vars)


def other_notes(jobs, run):
    """Say which waiting jobs of other runs were planned for the node as it was."""
    others = [job for job in jobs if job["name"].startswith(JOB_NAME_PREFIX) and job["name"] != job_name(run)]
    return [
        f"job {job['job_id']} ({job['name']}) waits for the node with a plan of before: plan that run again "
        f"(-e training_job_run={job['name'][len(JOB_NAME_PREFIX) :]})"
        for job in others
    ]
