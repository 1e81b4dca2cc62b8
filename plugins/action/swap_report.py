"""Action plugin: remember what a node was before its rebuild, and say afterwards what changed and what follows."""

from __future__ import annotations

from pathlib import Path

from ansible.plugins.action import ActionBase

from ..module_utils.rackweave.cli.json_files import replace_file
from ..module_utils.rackweave.errors import DocumentError, RackweaveError
from ..module_utils.rackweave.hardware.document import document_text
from ..module_utils.rackweave.rebuild.swap import loss_words, swap_report
from .fleet_gate import by_host
from .nccl_environment import REQUEST_SPEC, build_request

ARGUMENT_SPEC = {
    "host": {"type": "str", "required": True},
    "step": {"type": "str", "choices": ["remember", "report", "forget"], "required": True},
    "observed_dir": {"type": "path", "required": True},
    "accepted_dir": {"type": "path", "required": True},
    "before_dir": {"type": "path", "required": True},
    **REQUEST_SPEC,
    "fabric": {"type": "dict", "default": {"kind": "ethernet"}},
}


class ActionModule(ActionBase):
    """Compare with the accepted document, else with the one that was observed before the rebuild began."""

    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        _, args = self.validate_argument_spec(ARGUMENT_SPEC)
        try:
            outcome = getattr(self, f"_{args['step']}")(args)
        except (RackweaveError, OSError) as exc:
            return {**result, "failed": True, "msg": str(exc)}
        return {**result, "changed": False, **outcome}

    def _remember(self, args):
        """Keep the last observed document, unless a rebuild that died has kept one already."""
        kept = Path(args["before_dir"]) / f"{args['host']}.json"
        document = by_host(args["observed_dir"]).get(args["host"])
        if kept.exists() or document is None or self._task.check_mode:
            return {"msg": f"{args['host']}: {'kept from a rebuild before' if kept.exists() else 'nothing to keep'}"}
        kept.parent.mkdir(parents=True, exist_ok=True)
        replace_file(str(kept), document_text(document))
        return {"msg": f"{args['host']}: kept {kept}"}

    def _report(self, args):
        host = args["host"]
        observed = by_host(args["observed_dir"]).get(host)
        if observed is None:
            raise DocumentError(f"no node document of {host}: it was not observed in this run")
        accepted, before = by_host(args["accepted_dir"]).get(host), by_host(args["before_dir"]).get(host)
        baseline = "that was accepted" if accepted else "as it was before the rebuild" if before else "none"
        report = swap_report(observed, accepted or before, baseline, build_request(args))
        return {"report": report.as_dict(), "lines": list(report.lines), "loss": loss_words(report)}

    def _forget(self, args):
        if not self._task.check_mode:
            (Path(args["before_dir"]) / f"{args['host']}.json").unlink(missing_ok=True)
        return {"msg": f"{args['host']}: the next rebuild compares with this one"}
