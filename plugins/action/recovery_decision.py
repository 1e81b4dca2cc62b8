"""Action plugin: decide, on the controller, what follows from how attempts of a run ended; write it into the journal.

Nothing is done here: the tasks behind it act, each through ``job_control`` and its switch. Drains are journaled before
they are carried out, so that a crash in between never makes the cap forget one.
"""

from __future__ import annotations

import fcntl
import time
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path

from ansible.plugins.action import ActionBase

from ..module_utils.rackweave.cli.json_files import append_lines, read_text, replace_file
from ..module_utils.rackweave.errors import RackweaveError
from ..module_utils.rackweave.run.exit_codes import SAVED
from ..module_utils.rackweave.watch.journal import Journal, entry_line, parse_journal
from ..module_utils.rackweave.watch.policy import Switches
from ..module_utils.rackweave.watch.recovery import Ended, Setting, recover
from ..module_utils.rackweave.watch.strikes import Ledger, from_json, to_json

ARGUMENT_SPEC = {
    "run": {"type": "str", "required": True},
    "ended": {"type": "list", "elements": "dict", "required": True},
    "job_live": {"type": "bool", "required": True},
    "directory": {"type": "path", "required": True},
    "nodes": {"type": "list", "elements": "str", "required": True},
    "stop_ok": {"type": "bool", "required": True},
    "requeue_ok": {"type": "bool", "required": True},
    "drain_ok": {"type": "bool", "required": True},
    "standing_drains": {"type": "dict", "default": {}},
    "restart_budget": {"type": "int", "default": 8},
    "dry_run": {"type": "bool", "default": False},
    "settings": {"type": "dict", "default": {}},
}
JOURNAL, STRIKES = "journal.jsonl", "strikes.json"


class ActionModule(ActionBase):
    """Read memory, decide, write memory, translate."""

    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        _, args = self.validate_argument_spec(ARGUMENT_SPEC)
        directory = Path(args["directory"])
        dry = args["dry_run"] or bool(self._task.check_mode)
        try:
            with locked(directory):
                plan, lines = decide(args, directory, dry)
                if lines:
                    append_lines(directory / JOURNAL, "".join(lines))
                if lines and not dry:
                    replace_file(directory / STRIKES, to_json(plan.ledger))
        except (RackweaveError, OSError) as error:
            return {**result, "failed": True, "msg": str(error)}
        newest = args["ended"][-1]["document"] if args["ended"] else {}
        answer = {**plan.as_dict(), "dry_run": dry, "job_live": args["job_live"]}
        answer["completed"] = newest.get("state") == "COMPLETED"
        answer["saved"] = newest.get("code") == SAVED and not args["job_live"]
        answer["strikes"] = dict(plan.ledger.worst())
        return {**result, **answer, **args["settings"], "changed": bool(lines) and not dry, "msg": said(plan, dry)}


def decide(args, directory, dry):
    """Return the plan and the lines that the journal gains: decisions, then the drains that are about to be made."""
    now = time.time()
    moment = datetime.fromtimestamp(now, timezone.utc).isoformat(timespec="milliseconds")
    setting = Setting(
        run=args["run"],
        nodes=tuple(args["nodes"]),
        switches=Switches(args["stop_ok"], args["requeue_ok"], args["drain_ok"]),
        restart_budget=args["restart_budget"],
        time=moment,
        time_s=now,
        job_is_alive=args["job_live"],
        dry_run=dry,
        standing_drains={node: float(age) for node, age in args["standing_drains"].items() if node in args["nodes"]},
        leave_suspected=args["settings"].get("shrink") == "suspected",
    )
    ended = [Ended(one["document"], one["started"], one["requeued"]) for one in args["ended"]]
    plan = recover(ended, read_journal(directory), read_ledger(directory), setting)
    drains = [
        entry_line(moment, now, args["run"], "drain", reason, node=node, dry_run=dry)
        for node, reason in plan.drain.items()
    ]
    return plan, [*plan.lines, *drains]


def said(plan, dry):
    """One sentence for people: what is done, or what would be and why it is not."""
    parts = [f"{plan.action}: {plan.why}"]
    if plan.frozen:
        parts.append("FROZEN: the cap on drains per hour is reached, a person has to look")
    held = [node for node in plan.wanted_drain if node not in plan.drain]
    if held:
        parts.append(f"not drained: {', '.join(held)}")
    if plan.repair:
        parts.append(f"for repair: {', '.join(plan.repair)}")
    if plan.leave:
        parts.append(f"a new start should avoid {', '.join(plan.leave)}")
    return ("would be " if dry else "") + "; ".join(parts)


def read_journal(directory):
    path = directory / JOURNAL
    return parse_journal(read_text(path), str(path)) if path.is_file() else Journal()


def read_ledger(directory):
    path = directory / STRIKES
    return from_json(read_text(path), str(path)) if path.is_file() else Ledger()


@contextmanager
def locked(directory):
    """Two watchers of one inventory share cap and ledger, so they decide one after the other."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
