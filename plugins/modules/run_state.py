#!/usr/bin/python
"""Read where a run stands: Slurm's state of its job, and what the newest attempt has written since the last look."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.rackweave.errors import RackweaveError
from ..module_utils.rackweave.run.attempt import parse_job, sort_attempts
from ..module_utils.rackweave.run.events import job_is_silent
from ..module_utils.rackweave.run.slurm import SlurmJob, parse_sacct_job, parse_scontrol_job
from ..module_utils.rackweave.watch.log_steps import step_records

DOCUMENTATION = r"""
module: run_state
short_description: Read job state, events, results and phases of a run
description:
  - Runs on the Slurm submit host, which mounts the shared file system; one call is one look. Nothing is changed.
  - Events are returned from a byte offset on, so that following a run costs what is new and not what is old.
options:
  run_dir: {description: Directory of the run., type: path, required: true}
  job_id: {description: Job to ask Slurm for; empty takes the last submission., type: str, default: ""}
  attempt: {description: Attempt to read; empty takes the newest of the job., type: str, default: ""}
  offset: {description: Bytes of C(events.jsonl) that are known already., type: int, default: 0}
  max_bytes: {description: Most bytes of events to return., type: int, default: 1000000}
  known_step:
    description: Newest step that is known; only for a program that writes nothing into C(events.jsonl), whose steps are
      read from the end of its logs.
    type: int
    default: -1
  ranks: {description: Whether results and phases of all ranks are read., type: bool, default: true}
  beats: {description: Whether the nodes' signs of life are read., type: bool, default: true}
  documents: {description: Whether plan and training settings are returned too., type: bool, default: false}
attributes:
  check_mode: {support: full, description: Only reads.}
author: Rackweave
"""
EXAMPLES = r"""
- name: Look at a run
  rackweave.cluster.run_state:
    run_dir: /mnt/shared/runs/demo
  become: true
  become_user: hpc
"""
RETURN = r"""
time: {description: Clock of the submit host, ISO 8601., returned: success, type: str}
job_id: {description: The job; empty where the run was never submitted., returned: success, type: str}
job: {description: State of the job in Slurm, or null where it is not known., returned: success, type: dict}
slurm_error: {description: Why Slurm gave no answer., returned: success, type: str}
submission: {description: Content of C(job.json), or null., returned: success, type: dict}
attempts: {description: All attempts of the run, oldest first., returned: success, type: list, elements: str}
attempt: {description: The attempt that was read; empty where there is none yet., returned: success, type: str}
events: {description: New part of C(events.jsonl)., returned: success, type: str}
offset: {description: Bytes known after this look., returned: success, type: int}
more: {description: Whether more is there already., returned: success, type: bool}
rank_results: {description: Result file of each rank., returned: success, type: dict}
phases: {description: Phase file of each rank., returned: success, type: dict}
beats: {description: "Newest sign of life of each node's launcher, by host.", returned: success, type: dict}
exits: {description: How each node's launcher ended, by host., returned: success, type: dict}
documents:
  description: Texts of C(plan.json) and C(train.json), the validation set's C(data.json), start of the attempt.
  returned: when asked for
  type: dict
end: {description: How the batch script ended, or null., returned: success, type: dict}
"""
SPEC = {
    "run_dir": {"type": "path", "required": True},
    "job_id": {"type": "str", "default": ""},
    "attempt": {"type": "str", "default": ""},
    "offset": {"type": "int", "default": 0},
    "max_bytes": {"type": "int", "default": 1_000_000},
    "known_step": {"type": "int", "default": -1},
    "ranks": {"type": "bool", "default": True},
    "beats": {"type": "bool", "default": True},
    "documents": {"type": "bool", "default": False},
}


HEAD_BYTES = 65_536  # of the events; the first of a program that writes them come before any step
LOG_TAIL_BYTES = 65_536  # of each rank's output; a step line is some hundred bytes


def read_object(path: Path) -> dict | None:
    """Return a JSON object, or None where it is missing or being written."""
    try:
        value = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def read_objects(directory: Path) -> dict[str, dict]:
    """Return all JSON objects of a directory by their file's stem; hidden files are half written ones."""
    paths = [path for path in directory.glob("*.json") if not path.name.startswith(".")]
    return {path.stem: value for path in paths if (value := read_object(path)) is not None}


def ask_slurm(module: AnsibleModule, job_id: str) -> tuple[SlurmJob | None, str]:
    """Return the job's state, or the reason why there is none; a job that is long over is known to accounting only."""
    code, out, err = module.run_command(["scontrol", "--oneliner", "show", "job", job_id])
    if code == 0:
        return parse_scontrol_job(out), ""
    reason = (err or out).strip()
    for source in ([], ["--completion"]):
        words = ["sacct", *source, "--noheader", "--parsable2", "--allocations", f"--jobs={job_id}"]
        code, out, _ = module.run_command([*words, "--format=JobID,JobName,State,ExitCode,NodeList"])
        job = parse_sacct_job(out) if code == 0 else None
        if job is not None:
            return job, ""
    return None, reason


def read_events(path: Path, offset: int, max_bytes: int) -> dict:
    """Return the complete lines behind an offset; a file that shrank is another file and read from its start."""
    try:
        size = path.stat().st_size
        start = offset if offset <= size else 0
        with path.open("rb") as stream:
            stream.seek(start)
            piece = stream.read(max_bytes)
    except OSError:
        return {"events": "", "offset": offset, "more": False}
    complete = piece[: piece.rfind(b"\n") + 1]
    end = start + len(complete)
    return {"events": complete.decode("utf-8", errors="replace"), "offset": end, "more": bool(complete) and end < size}


def head(path: Path) -> bytes:
    """Return the beginning of a file; nothing where it cannot be read."""
    try:
        with path.open("rb") as stream:
            return stream.read(HEAD_BYTES)
    except OSError:
        return b""


def printed_steps(directory: Path, known_step: int) -> str:
    """Return the steps that the logs of a foreign program report, as events of our own form."""
    newest: list[dict] = []
    for path in directory.glob("logs/*/*/std*.log"):
        try:
            changed = datetime.datetime.fromtimestamp(path.stat().st_mtime, datetime.timezone.utc)
            with path.open("rb") as stream:
                stream.seek(max(0, path.stat().st_size - LOG_TAIL_BYTES))
                text = stream.read().decode("utf-8", errors="replace")
        except OSError:
            continue
        complete = text[: text.rfind("\n") + 1].splitlines()
        found = step_records(complete, known_step, changed.isoformat(timespec="milliseconds"))
        if found and (not newest or found[-1]["step"] > newest[-1]["step"]):
            newest = found
    return "".join(json.dumps(record) + "\n" for record in newest)


def newest(attempts: tuple[str, ...], job_id: str) -> str:
    """Return the newest attempt of a job, or an empty text."""
    own = [name for name in attempts if name.split(".")[0] == job_id]
    return own[-1] if own else ""


def read_attempt(directory: Path, params: dict) -> dict:
    events = directory / "events.jsonl"
    found = read_events(events, params["offset"], params["max_bytes"])
    if params["ranks"] and params["max_bytes"] > 0 and job_is_silent(head(events)):
        found["events"] += printed_steps(directory, params["known_step"])
    exits = {path.parent.name: read_object(path) for path in directory.glob("logs/*/exit.json")}
    return {
        **found,
        "rank_results": read_objects(directory / "result") if params["ranks"] else {},
        "phases": read_objects(directory / "phase") if params["ranks"] else {},
        "beats": read_objects(directory / "alive") if params["beats"] else {},
        "exits": {host: value for host, value in exits.items() if value is not None},
        "end": read_object(directory / "end.json"),
    }


def validation_prefix(train: dict) -> str | None:
    """Return the prefix of the first validation set; None where there is none, whatever the document is."""
    data = train.get("data")
    sets = data.get("validation") if isinstance(data, dict) else None
    first = sets[0] if isinstance(sets, list) and sets else None
    prefix = first.get("prefix") if isinstance(first, dict) else None
    return prefix if isinstance(prefix, str) else None


def read_documents(directory: Path) -> dict:
    """Return the run files that explain an attempt; what is missing is null."""
    texts = {
        name: (directory / f"{name}.json").read_text(encoding="utf-8", errors="replace")
        if (directory / f"{name}.json").is_file()
        else None
        for name in ("plan", "train")
    }
    prefix = validation_prefix(read_object(directory / "train.json") or {})
    started = (read_object(directory / "attempt.json") or {}).get("started")
    data = read_object(Path(prefix).parent / "data.json") if prefix else None
    return {**texts, "data": data, "started": started}


def main() -> None:
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    run_dir = Path(module.params["run_dir"])
    if not run_dir.is_dir():
        module.fail_json(
            msg=f"{run_dir} does not exist on this host: launch the run first, or check training_job_shared_dir"
        )
    attempts_dir = run_dir / "attempts"
    names = [entry.name for entry in attempts_dir.iterdir() if entry.is_dir()] if attempts_dir.is_dir() else []
    attempts = sort_attempts(names)
    submission, job, slurm_error = None, None, ""
    try:
        if (run_dir / "job.json").exists():
            text = (run_dir / "job.json").read_text(encoding="utf-8", errors="replace")
            submission = parse_job(text, str(run_dir / "job.json"))
        job_id = module.params["job_id"] or (submission or {}).get("job_id", "")
        if job_id:
            job, slurm_error = ask_slurm(module, job_id)
    except RackweaveError as error:
        module.fail_json(msg=str(error))
    attempt = module.params["attempt"] or newest(attempts, job_id)
    directory = run_dir / "attempts" / attempt if attempt else run_dir / "attempts" / ".none"
    module.exit_json(
        changed=False,
        time=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds"),
        job_id=job_id,
        job=None if job is None else {**vars(job), "live": job.live, "ended": job.ended},
        slurm_error=slurm_error,
        submission=submission,
        attempts=list(attempts),
        attempt=attempt,
        **read_attempt(directory, module.params),
        **({"documents": read_documents(directory)} if module.params["documents"] else {}),
    )


if __name__ == "__main__":
    main()
