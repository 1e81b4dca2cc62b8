"""Action plugin: write the node documents that the hosts of this run returned, once for all of them."""

from __future__ import annotations

from pathlib import Path

from ansible.plugins.action import ActionBase

from ..module_utils.rackweave.cli.documents import stale_documents, write_documents
from ..module_utils.rackweave.errors import RackweaveError
from ..module_utils.rackweave.hardware.document import read_document

ARGUMENT_SPEC = {
    "directory": {"type": "path", "required": True},
    "hosts": {"type": "list", "elements": "str", "required": True},
    "variable": {"type": "str", "required": True},
}


class ActionModule(ActionBase):
    """Write ``<host>.json`` on the controller for every host whose variable holds a document."""

    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        _, args = self.validate_argument_spec(ARGUMENT_SPEC)
        directory = Path(args["directory"])
        try:
            documents = {}
            for host in args["hosts"]:
                registered = task_vars["hostvars"][host].get(args["variable"]) or {}
                if "document" in registered:
                    documents[host] = read_document(registered["document"])
            stale = stale_documents(directory, documents)
        except RackweaveError as exc:
            return {**result, "failed": True, "msg": str(exc)}
        if stale and not self._task.check_mode:
            write_documents(directory, {host: new for host, (_, new) in stale.items()})
        diff = [
            {"before": old, "after": new, "before_header": host, "after_header": host}
            for host, (old, new) in sorted(stale.items())
        ]
        return {**result, "changed": bool(stale), "hosts_changed": sorted(stale), "diff": diff}
