#!/usr/bin/python
"""Run the acceptance job through Slurm and bring its figures back; or only say which nodes could be tested now."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import socket
import threading
import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.rackweave.accept.availability import why_not
from ..module_utils.rackweave.errors import RackweaveError
from ..module_utils.rackweave.run.slurm import ENDING_STATES, LIVE_STATES, parse_sbatch, parse_squeue
from ..module_utils.rackweave.slurm.hostlist import compress
from ..module_utils.rackweave.slurm.node_state import parse_node

DOCUMENTATION = r"""
module: acceptance_run
short_description: Measure nodes inside a Slurm job
description:
  - Runs on the Slurm submit host as the user who owns jobs. Submits C(job.sh) of a prepared directory on all hosts at
    once, waits for its end and returns the figures; judging them is not done here.
  - Gives up, and cancels its own job, where the job does not start in time or outlives its limit. Where this module is
    killed, the job ends by itself.
  - Answers the echo that nodes measure their round trip with, for as long as the job runs.
options:
  hosts: {description: Nodes to test or to look at., type: list, elements: str, required: true}
  reservation: {description: Slurm reservation to run in., type: str, default: ""}
  states_only: {description: Only return which nodes could not be tested now., type: bool, default: false}
  directory: {description: Directory of the job on the shared file system., type: path}
  schedule: {description: What the job is to do., type: dict}
  stages: {description: Steps of the job in order., type: list, elements: str}
  sbatch_options: {description: Further options of C(sbatch)., type: list, elements: str, default: []}
  start_timeout_s: {description: How long the job may wait for its nodes., type: int, default: 60}
  time_limit_s: {description: Limit of the whole job., type: int, default: 900}
attributes:
  check_mode: {support: none}
author: Rackweave
"""
EXAMPLES = r"""
- name: See which nodes could be tested now
  rackweave.cluster.acceptance_run:
    hosts: [gpu01, gpu02]
    states_only: true
  become: true
  become_user: hpc
"""
RETURN = r"""
pending: {description: Nodes that cannot be tested now and why., returned: success, type: dict}
observations: {description: Figures of the job., returned: unless states_only, type: dict}
"""
SPEC = {
    "hosts": {"type": "list", "elements": "str", "required": True},
    "reservation": {"type": "str", "default": ""},
    "states_only": {"type": "bool", "default": False},
    "directory": {"type": "path"},
    "schedule": {"type": "dict"},
    "stages": {"type": "list", "elements": "str"},
    "sbatch_options": {"type": "list", "elements": "str", "default": []},
    "start_timeout_s": {"type": "int", "default": 60},
    "time_limit_s": {"type": "int", "default": 900},
}
POLL_S = 0.5
LOG_BYTES = 20_000


def pending_hosts(module: AnsibleModule) -> dict[str, str]:
    """Return the nodes that cannot be tested now, and why."""
    hosts = module.params["hosts"]
    command = [module.get_bin_path("scontrol", required=True), "--oneliner", "show", "node", compress(hosts)]
    code, out, err = module.run_command(command)
    found = {}
    for line in out.splitlines():
        if "NodeName=" in line:
            state = parse_node(line)
            if state is not None:
                found[state.name] = (state, "*" not in line.split(" State=", 1)[-1].split()[0])
    if not found and code != 0:
        module.fail_json(msg=f"slurmctld does not answer on this host: {(err or out).strip()}")
    reasons = {host: why_not(*found.get(host, (None, False)), module.params["reservation"]) for host in hosts}
    return {host: reason for host, reason in reasons.items() if reason}


def answer_echo(listener: socket.socket) -> None:
    """Send back what each node sends, until the listener is closed."""

    def serve(connection: socket.socket) -> None:
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                while data := connection.recv(4096):
                    connection.sendall(data)
            except OSError:
                return

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()


def own_address(host: str) -> str:
    """Return the address of this machine that a node sees; sends nothing."""
    family, kind, _, _, target = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(target)
        return str(probe.getsockname()[0])


def submit(module: AnsibleModule, directory: Path) -> str:
    """Submit the job with an environment of its own and return its id."""
    params, account = module.params, pwd.getpwuid(os.getuid())
    environment = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": account.pw_dir,
        "USER": account.pw_name,
        "LANG": "C.UTF-8",
        "RACKWEAVE_ACCEPTANCE": str(directory),
        "RACKWEAVE_PYTHON": params["schedule"]["python"],
        "RACKWEAVE_STORAGE": params["schedule"]["storage"]["path"],
        "RACKWEAVE_STEP_S": str(params["time_limit_s"] // 2),
    }
    if "SLURM_CONF" in os.environ:
        environment["SLURM_CONF"] = os.environ["SLURM_CONF"]
    words = [module.get_bin_path("env", required=True), "-i", *(f"{key}={text}" for key, text in environment.items())]
    words += [module.get_bin_path("sbatch", required=True), "--parsable", "--job-name=rackweave-acceptance"]
    words += ["--no-requeue", "--no-kill", "--exclusive", "--mem=0", f"--nodes={len(params['hosts'])}"]
    words += [f"--nodelist={compress(params['hosts'])}", f"--time={max(1, -(-params['time_limit_s'] // 60))}"]
    words += [f"--output={directory}/job.log", f"--chdir={directory}", "--ntasks-per-node=1"]
    if params["reservation"]:
        words.append(f"--reservation={params['reservation']}")
    words += [*params["sbatch_options"], str(directory / "job.sh"), *params["stages"]]
    code, out, err = module.run_command(words, cwd=str(directory))
    if code != 0:
        module.fail_json(msg=f"Slurm refused the acceptance job: {(err or out).strip()}")
    return parse_sbatch(out)


def wait(module: AnsibleModule, job_id: str) -> str:
    """Wait for the end of the job; return why it was given up, empty if it ran."""
    params, begin = module.params, time.monotonic()
    started = None
    while True:
        command = ["squeue", "--noheader", f"--jobs={job_id}", "--format=%i|%T", "--states=all"]
        _, out, _ = module.run_command(command)
        state = next((word for _, word in parse_squeue(out)), "")
        now = time.monotonic()
        if state in ("PENDING", "CONFIGURING") and now - begin > params["start_timeout_s"]:
            return f"Slurm did not start the test within {params['start_timeout_s']} s (job {job_id} was {state})"
        if state not in (*LIVE_STATES, *ENDING_STATES):
            return ""
        if state not in ("PENDING", "CONFIGURING"):
            started = started or now
            if now - started > params["time_limit_s"] + 30:
                return f"the test did not end within {params['time_limit_s']} s (job {job_id})"
        time.sleep(POLL_S)


def collect(directory: Path) -> dict[str, object]:
    """Return the figures by node, group and rail, and the end of the job's log."""
    nodes: dict[str, dict[str, object]] = {}
    found: dict[str, list[object]] = {"collectives": [], "rails": []}
    for path in sorted((directory / "results").glob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        kind = path.name.split(".")[0]
        if kind == "node":
            entry = nodes.setdefault(content["host"], {"errors": {}})
            errors = {**entry["errors"], **content.pop("errors")}
            entry.update(content, errors=errors)
        else:
            found["collectives" if kind == "collective" else "rails"].append(content)
    log = directory / "job.log"
    text = log.read_bytes()[-LOG_BYTES:].decode(errors="replace") if log.exists() else ""
    return {"nodes": list(nodes.values()), **found, "log": text}


def measure(module: AnsibleModule) -> dict[str, object]:
    """Run the job; what it did not bring back in time makes its hosts pending."""
    params, directory = module.params, Path(module.params["directory"])
    shutil.rmtree(directory / "results", ignore_errors=True)
    (directory / "results").mkdir(parents=True)
    (directory / "job.log").unlink(missing_ok=True)
    with socket.socket() as listener:
        listener.bind(("", 0))
        listener.listen(128)
        answer_echo(listener)
        address = [own_address(params["hosts"][0]), listener.getsockname()[1]]
        (directory / "schedule.json").write_text(json.dumps({**params["schedule"], "echo": address}), encoding="utf-8")
        job_id = submit(module, directory)
        given_up = ""
        try:
            given_up = wait(module, job_id)
        finally:
            # After the end of the job this says only that there is no such job.
            module.run_command(["scancel", "--quiet", job_id])
    observations = collect(directory)
    observations["pending"] = dict.fromkeys(params["hosts"], given_up) if given_up else {}
    return observations


def main() -> None:
    module = AnsibleModule(
        argument_spec=SPEC, required_if=[("states_only", False, ("directory", "schedule", "stages"))]
    )
    try:
        pending = pending_hosts(module)
        if module.params["states_only"]:
            module.exit_json(changed=False, pending=pending)
        observations = measure(module)
    except RackweaveError as error:
        module.fail_json(msg=str(error))
    except (OSError, ValueError) as error:
        module.fail_json(msg=f"the acceptance job could not be run in {module.params['directory']}: {error}")
    module.exit_json(changed=False, pending=pending, observations=observations)


if __name__ == "__main__":
    main()
