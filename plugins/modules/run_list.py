#!/usr/bin/python
"""List all runs of a shared directory with what is known of each."""

from __future__ import annotations

import json
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.rackweave.run.attempt import sort_attempts
from ..module_utils.rackweave.run.events import parse_events
from ..module_utils.rackweave.run.progress import Progress
from ..module_utils.rackweave.run.slurm import UNKNOWN, parse_squeue
from ..module_utils.rackweave.run.status_file import make_status, status_table

DOCUMENTATION = r"""
module: run_list
short_description: Show all runs side by side
description:
  - Runs on the Slurm submit host. Reads the last status of each run, the newest events and Slurm's queue.
options:
  runs_dir: {description: Directory with one directory for each run., type: path, required: true}
attributes:
  check_mode: {support: full, description: Only reads.}
author: Rackweave
"""
EXAMPLES = r"""
- name: List the runs
  rackweave.cluster.run_list:
    runs_dir: /mnt/shared/runs
"""
RETURN = r"""
runs: {description: One status for each run., returned: success, type: list, elements: dict}
table: {description: The same as lines for a terminal., returned: success, type: list, elements: str}
"""
SPEC = {"runs_dir": {"type": "path", "required": True}}
TAIL_BYTES = 50_000


def read_object(path: Path) -> dict:
    """Return a JSON object; an empty one where there is none or it cannot be read."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def tail_progress(run_dir: Path) -> Progress:
    """Return the newest attempt's progress from the end of its events."""
    attempts_dir = run_dir / "attempts"
    names = sort_attempts([entry.name for entry in attempts_dir.iterdir()]) if attempts_dir.is_dir() else ()
    if not names:
        return Progress("")
    attempt = attempts_dir / names[-1]
    progress = Progress(names[-1], read_object(attempt / "train.json").get("steps"))
    events = attempt / "events.jsonl"
    if events.is_file():
        size = events.stat().st_size
        with events.open("rb") as stream:
            stream.seek(max(0, size - TAIL_BYTES))
            piece = stream.read()
        whole = piece[piece.find(b"\n") + 1 :] if size > TAIL_BYTES else piece
        progress.add(parse_events(whole).events)
    return progress


def describe(run_dir: Path, queue: dict[str, str]) -> dict:
    """Return the status of one run: what is in the queue counts, else what was written at its end."""
    kept, job_id = read_object(run_dir / "status.json"), str(read_object(run_dir / "job.json").get("job_id", ""))
    same_job = kept.get("job_id") == job_id
    if job_id in queue or not same_job:
        state = queue.get(job_id) or (UNKNOWN if job_id else "not launched")
        progress = tail_progress(run_dir)
        if same_job and progress.last is None and kept.get("step") is not None:
            return {**kept, "state": state}  # a program without events: its watcher reads the steps from its logs
        updated = kept.get("updated", "") if same_job else ""
        return make_status(run_dir.name, job_id, state, updated, progress, None)
    return kept


def main() -> None:
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    runs_dir = Path(module.params["runs_dir"])
    code, out, _ = module.run_command(["squeue", "--noheader", "--format=%i|%T"])
    queue = dict(parse_squeue(out)) if code == 0 else {}
    directories = sorted(path for path in runs_dir.iterdir() if path.is_dir()) if runs_dir.is_dir() else []
    runs = [describe(path, queue) for path in directories]
    module.exit_json(changed=False, runs=runs, table=status_table(runs))


if __name__ == "__main__":
    main()
