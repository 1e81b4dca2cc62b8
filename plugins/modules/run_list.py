#!/usr/bin/python
"""List all runs of a shared directory with what is known of each."""

from __future__ import annotations

import json
import os
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.rackweave.errors import RackweaveError
from ..module_utils.rackweave.run.attempt import sort_attempts
from ..module_utils.rackweave.run.events import parse_events
from ..module_utils.rackweave.run.progress import Progress
from ..module_utils.rackweave.run.slurm import UNKNOWN, parse_squeue
from ..module_utils.rackweave.run.status_file import make_status, parse_status, status_table

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
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def read_status(path: Path) -> dict:
    """Return what the run's last watcher wrote; an empty object where it wrote nothing, or half of it."""
    try:
        return parse_status(path.read_text(encoding="utf-8", errors="replace"))
    except (OSError, RackweaveError):
        return {}


def names_in(directory: Path) -> list[str]:
    """Return the names of the directories in a directory; none where it cannot be read."""
    try:
        return [entry.name for entry in directory.iterdir() if entry.is_dir()]
    except OSError:
        return []


def tail(path: Path) -> bytes:
    """Return the last whole lines of a file; nothing where it cannot be read."""
    try:
        with path.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            stream.seek(max(0, size - TAIL_BYTES))
            piece = stream.read()
    except OSError:
        return b""
    return piece[piece.find(b"\n") + 1 :] if size > TAIL_BYTES else piece


def tail_progress(run_dir: Path) -> Progress:
    """Return the newest attempt's progress from the end of its events."""
    names = sort_attempts(names_in(run_dir / "attempts"))
    if not names:
        return Progress("")
    attempt = run_dir / "attempts" / names[-1]
    target = read_object(attempt / "train.json").get("steps")
    progress = Progress(names[-1], target if isinstance(target, int) else None)
    progress.add(parse_events(tail(attempt / "events.jsonl")).events)
    return progress


def describe(run_dir: Path, queue: dict[str, str]) -> dict:
    """Return the status of one run: what is in the queue counts, else what was written at its end."""
    kept, job_id = read_status(run_dir / "status.json"), str(read_object(run_dir / "job.json").get("job_id", ""))
    launched = bool(job_id) or os.path.lexists(run_dir / "job.json")
    same_job = bool(kept) and kept.get("job_id") == job_id
    if job_id in queue or not same_job:
        state = queue.get(job_id) or (UNKNOWN if launched else "not launched")
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
    runs = [describe(runs_dir / name, queue) for name in sorted(names_in(runs_dir))]
    module.exit_json(changed=False, runs=runs, table=status_table(runs))


if __name__ == "__main__":
    main()
