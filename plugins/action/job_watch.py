"""Action plugin: follow a job to its end, say how it goes, and return how it really ended.

One module call on the submit host is one look; the controller opens no shared directory, and a new start of this
action finds the job again by itself.
"""

from __future__ import annotations

import time
from datetime import datetime, timezone
from pathlib import Path

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase

from ..module_utils.rackweave.errors import RackweaveError
from ..module_utils.rackweave.report.run_page import RunReport, render_run_page
from ..module_utils.rackweave.run.schema import write_json
from ..module_utils.rackweave.run.status_file import make_status
from ..module_utils.rackweave.watch.alive import SILENT_S
from ..module_utils.rackweave.watch.failing import Wanted
from ..module_utils.rackweave.watch.session import Session, WatchError, WatchSettings, World

ARGUMENT_SPEC = {
    "run": {"type": "str", "required": True},
    "shared_dir": {"type": "str", "required": True},
    "job_id": {"type": "str", "default": ""},
    "report_dir": {"type": "path", "required": True},
    "state_file": {"type": "path", "required": True},
    "stop_ok": {"type": "bool", "required": True},
    "poll_interval_s": {"type": "float", "default": 2.0},
    "line_interval_s": {"type": "float", "default": 5.0},
    "status_interval_s": {"type": "float", "default": 30.0},
    "hang_grace_s": {"type": "float", "default": 30.0},
    "silent_s": {"type": "float", "default": SILENT_S},
    "unreachable_s": {"type": "float", "default": 600.0},
    "until": {"type": "str", "choices": ["job", "attempt"], "default": "job"},
    "collect_hosts": {"type": "int", "default": 0},
    "collected": {"type": "list", "elements": "str", "default": []},
    "silent_hosts": {"type": "dict", "default": {}},
}

SHOWN_EVIDENCE = 6  # lines; all of it is in verdict.json


class ActionModule(ActionBase):
    """Validate, watch, write down, translate."""

    _supports_check_mode = True

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        _, args = self.validate_argument_spec(ARGUMENT_SPEC)
        if self._task.check_mode:
            return {**result, "skipped": True, "msg": "nothing is watched in check mode"}
        self._args, self._task_vars = args, task_vars
        self._run_dir = f"{args['shared_dir'].rstrip('/')}/runs/{args['run']}"
        names = ("run", "stop_ok", "job_id", "poll_interval_s", "line_interval_s", "status_interval_s", "hang_grace_s",
                 "silent_s")  # fmt: skip
        collecting = {"collect_hosts": args["collect_hosts"], "collected": tuple(args["collected"])}
        collecting["silent_hosts"] = args["silent_hosts"]
        collecting["until_attempt"] = args["until"] == "attempt"
        settings = WatchSettings(run_dir=self._run_dir, **{name: args[name] for name in names}, **collecting)
        world = World(self._call, self._display.display, time.monotonic, time.sleep)
        try:
            conclusion = Session(world, settings, self._keep_status, self._keep_verdict).run()
            if isinstance(conclusion, Wanted):
                return {**result, "wanted": {**vars(conclusion), "hosts": list(conclusion.hosts)}, "changed": False}
            report = self._write_down(conclusion)
        except (RackweaveError, OSError) as error:
            return {**result, "failed": True, "msg": str(error)}
        failed = not conclusion.end.ok and args["until"] == "job"
        return {**result, **answer(conclusion), "failed": failed, "report": report, "changed": True}

    def _call(self, module, arguments):
        """Run a module on the submit host; wait for a host that cannot be reached, since the job does not need us."""
        give_up = time.monotonic() + self._args["unreachable_s"]
        while True:
            try:
                found = self._execute_module(
                    f"rackweave.cluster.{module}", module_args=arguments, task_vars=self._task_vars
                )
                break
            except AnsibleConnectionFailure as error:
                if time.monotonic() > give_up:
                    raise WatchError(
                        f"the submit host has not answered for {self._args['unreachable_s']:.0f} s ({error}); the job "
                        "goes on without us, run playbooks/watch.yml again to attach to it"
                    ) from error
                self._display.display(f"[{self._args['run']}] the submit host does not answer, trying again")
                time.sleep(5)
        if found.get("failed"):
            raise WatchError(found.get("msg", f"module {module} failed without a message"))
        return found

    def _keep_status(self, session):
        status = make_status(
            self._args["run"], session.follower.job_id, session.follower.state, now(), session.follower.current, None
        )
        self._call("run_files", {"path": self._run_dir, "files": {"status.json": write_json(status)}})
        write_file(Path(self._args["state_file"]), write_json(status))

    def _keep_verdict(self, found):
        name = f"attempts/{found.document['attempt']}/verdict.json"
        self._call("run_files", {"path": self._run_dir, "files": {name: write_json(found.document)}})

    def _write_down(self, conclusion):
        """Leave verdict, status and page with the run, and the last two on the controller; return the page's path."""
        args, end = self._args, conclusion.end
        status = make_status(
            args["run"], conclusion.job_id, end.state, now(), conclusion.progress, conclusion.document["sentence"]
        )
        page = render_run_page(
            RunReport(
                run=args["run"],
                made_at=now(),
                attempts=conclusion.attempts,
                plan=conclusion.plan,
                state=end.state,
                verdict=conclusion.document,
                submission=conclusion.look.get("submission"),
                reference_loss=reference_loss(conclusion.data),
                incidents=tuple(item.document for item in conclusion.ended if item.document["severity"] != "info"),
            )
        )
        files = {"status.json": write_json(status), "report.html": page}
        if conclusion.progress.attempt:
            name = f"attempts/{conclusion.progress.attempt}/verdict.json"
            files[name] = write_json(conclusion.document)
        self._call("run_files", {"path": self._run_dir, "files": files})
        write_file(Path(args["state_file"]), write_json(status))
        report = Path(args["report_dir"]) / "report.html"
        write_file(report, page)
        return str(report)


def answer(conclusion):
    """Return the task's result: the real end state, and the figures that a caller compares."""
    progress, document = conclusion.progress, conclusion.document
    evaluations = [item.loss for item in progress.evaluations]
    losses = evaluations or [point.loss for point in progress.steps if point.loss is not None]
    reference = reference_loss(conclusion.data)
    return {
        "msg": document["sentence"],
        "diagnosis_class": document["diagnosis_class"],
        "first_action": document["first_action"],
        "evidence": document["evidence"][:SHOWN_EVIDENCE],
        "job_id": conclusion.job_id,
        "job_live": bool((conclusion.look.get("job") or {}).get("live")),
        "ended": [vars(item) for item in conclusion.ended],
        "attempt": progress.attempt,
        "state": conclusion.end.state,
        "culprit": document["culprit"],
        "last_step": progress.last.step if progress.last else None,
        "first_step": progress.steps[0].step if progress.steps else None,
        "target_step": progress.target_step,
        "checkpoint_step": progress.last_checkpoint.step if progress.last_checkpoint else None,
        "validation_losses": evaluations,
        "loss_mean_of_last_ten": sum(losses[-10:]) / len(losses[-10:]) if losses else None,
        "reference_loss": reference[1] if reference else None,
    }


def reference_loss(data):
    """Return name and value of the entropy that a model must beat, where the corpus was prepared by our trainer."""
    value = (data or {}).get("validation_byte_unigram_entropy_nats")
    return ("byte unigram entropy", float(value)) if isinstance(value, (int, float)) else None


def now():
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def write_file(path, text):
    """Write a file of the controller as a whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
