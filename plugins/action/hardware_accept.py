"""Action plugin: make observed hardware the accepted baseline, as files for git."""

from __future__ import annotations

from ansible.plugins.action import ActionBase

from ..module_utils.rackweave.cli.json_files import differences, stale_files, write_files
from ..module_utils.rackweave.errors import DocumentError, RackweaveError
from ..module_utils.rackweave.hardware.accept import accept_document
from ..module_utils.rackweave.hardware.node import AcceptanceTests
from .fleet_gate import by_host

ARGUMENT_SPEC = {
    "observed_dir": {"type": "path", "required": True},
    "accepted_dir": {"type": "path", "required": True},
    "hosts": {"type": "list", "elements": "str", "required": True},
    "tests": {
        "type": "dict",
        "options": {name: {"type": "str", "choices": ["pass", "pending"]} for name in ("node_test", "pair_test")},
    },
}


class ActionModule(ActionBase):
    """Write accepted documents of the named hosts; other hosts' files are left alone."""

    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        _, args = self.validate_argument_spec(ARGUMENT_SPEC)
        try:
            observed, accepted = by_host(args["observed_dir"]), by_host(args["accepted_dir"])
            missing = [host for host in args["hosts"] if host not in observed]
            if missing:
                raise DocumentError(f"{', '.join(missing)}: not observed, so there is nothing to accept")
            tests = AcceptanceTests(**args["tests"]) if args["tests"] else None
            acceptances = [accept_document(observed[host], accepted.get(host), tests) for host in args["hosts"]]
            stale = stale_files(args["accepted_dir"], {f"{it.host}.json": it.content for it in acceptances})
            diff = differences(args["accepted_dir"], stale)
            if stale and not self._task.check_mode:
                write_files(args["accepted_dir"], stale)
        except (RackweaveError, OSError) as exc:
            return {**result, "failed": True, "msg": str(exc)}
        hosts = [it.as_dict() for it in acceptances]
        return {**result, "changed": bool(stale), "files_changed": sorted(stale), "acceptances": hosts, "diff": diff}
