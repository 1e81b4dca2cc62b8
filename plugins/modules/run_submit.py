#!/usr/bin/python
"""Submit the batch script of a run, or find the live job that it already has."""

from __future__ import annotations

import datetime
import fcntl
import os
import pwd
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.rackweave.errors import RackweaveError
from ..module_utils.rackweave.run.attempt import JOB_SCHEMA
from ..module_utils.rackweave.run.batch import job_name
from ..module_utils.rackweave.run.schema import write_json
from ..module_utils.rackweave.run.slurm import LIVE_STATES, parse_sbatch, parse_squeue

DOCUMENTATION = r"""
module: run_submit
short_description: Submit the batch script of a run, detached, unless the run has a live job
description:
  - Runs on the Slurm submit host as the user who owns the job; root is refused.
  - A live job (pending, running, waiting for its requeue) is returned instead of a second submission.
  - Finding and submitting happen under one lock, so that two launches at once make one job.
options:
  run: {description: Name of the run., type: str, required: true}
  run_dir: {description: Directory of the run on the shared file system., type: path, required: true}
  switches:
    description: What the watcher and the job may do; recorded in C(job.json).
    type: dict
    required: true
  find_only: {description: Only look for a live job., type: bool, default: false}
attributes:
  check_mode: {support: full, description: Looks for a live job and submits nothing.}
author: Rackweave
"""
EXAMPLES = r"""
- name: Submit the run
  rackweave.cluster.run_submit:
    run: demo
    run_dir: /mnt/shared/runs/demo
    switches: {stop_ok: false, requeue_ok: false, drain_ok: false}
  become: true
  become_user: hpc
"""
RETURN = r"""
job_id: {description: Id of the job; empty if there is none., returned: success, type: str}
attached: {description: Whether the job was live before., returned: success, type: bool}
state: {description: Slurm state of a job that was live before., returned: success, type: str}
"""
SPEC = {
    "run": {"type": "str", "required": True},
    "run_dir": {"type": "path", "required": True},
    "switches": {"type": "dict", "required": True},
    "find_only": {"type": "bool", "default": False},
}


def live_job(module: AnsibleModule) -> tuple[str, str]:
    """Return id and state of this user's newest live job of the run, or two empty texts."""
    user = pwd.getpwuid(os.getuid()).pw_name
    name = job_name(module.params["run"])
    command = ["squeue", "--noheader", f"--name={name}", f"--user={user}", "--format=%i|%T", "--states=all"]
    code, out, err = module.run_command(command)
    if code != 0:
        module.fail_json(msg=f"squeue failed on this host, is it a submit host of the cluster? {(err or out).strip()}")
    live = [(job_id, state) for job_id, state in parse_squeue(out) if state in LIVE_STATES]
    return max(live, key=lambda pair: int(pair[0]), default=("", ""))


def submit(module: AnsibleModule, run_dir: Path) -> str:
    """Submit the script with an environment of our own: the login shell's variables must not reach the ranks."""
    account = pwd.getpwuid(os.getuid())
    environment = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": account.pw_dir,
        "USER": account.pw_name,
        "LOGNAME": account.pw_name,
        "SHELL": "/bin/bash",
        "LANG": "C.UTF-8",
    }
    if "SLURM_CONF" in os.environ:
        environment["SLURM_CONF"] = os.environ["SLURM_CONF"]
    words = [
        module.get_bin_path("env", required=True),
        "-i",
        *(f"{name}={value}" for name, value in environment.items()),
    ]
    words += [module.get_bin_path("sbatch", required=True), "--parsable", str(run_dir / "plan" / "job.sbatch")]
    code, out, err = module.run_command(words, cwd=str(run_dir))
    if code != 0:
        module.fail_json(msg=f"Slurm refused the job: {(err or out).strip()}")
    return parse_sbatch(out)


def main() -> None:
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    run_dir = Path(module.params["run_dir"])
    if os.getuid() == 0:
        module.fail_json(msg="a training job never belongs to root: become the user of training_job_user")
    if module.params["find_only"] or module.check_mode:
        job_id, state = live_job(module)
        module.exit_json(changed=module.check_mode and not job_id, job_id=job_id, attached=bool(job_id), state=state)
    try:
        with open(run_dir / ".submit.lock", "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            job_id, state = live_job(module)
            if job_id:
                module.exit_json(changed=False, job_id=job_id, attached=True, state=state)
            job_id = submit(module, run_dir)
            document = {
                "schema": JOB_SCHEMA,
                "run": module.params["run"],
                "job_id": job_id,
                "submitted": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
                "switches": module.params["switches"],
            }
            part = run_dir / ".job.json"
            part.write_text(write_json(document), encoding="utf-8")
            part.replace(run_dir / "job.json")
    except RackweaveError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{error.filename or run_dir} cannot be written ({error.strerror})")
    module.exit_json(changed=True, job_id=job_id, attached=False, state="PENDING")


if __name__ == "__main__":
    main()
