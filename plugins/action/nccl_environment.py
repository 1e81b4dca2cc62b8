"""Action plugin: the NCCL environment of all hosts of a job, once, on the controller."""

from __future__ import annotations

from pathlib import Path

from ansible.plugins.action import ActionBase

from ..module_utils.rackweave.cli.documents import load_documents, load_files
from ..module_utils.rackweave.cli.json_files import differences, write_files
from ..module_utils.rackweave.cli.nccl import stale_environments
from ..module_utils.rackweave.errors import DocumentError, RackweaveError
from ..module_utils.rackweave.fabric.block import read_fabric
from ..module_utils.rackweave.fabric.environment import render_environments
from ..module_utils.rackweave.fabric.findings import BLOCK
from ..module_utils.rackweave.fabric.request import PROFILES, EnvironmentRequest
from ..module_utils.rackweave.hardware.document import NodeDocument, read_document

REQUEST_SPEC = {
    "fabric": {"type": "dict", "required": True},
    "nccl_version": {"type": "str"},
    "torch_version": {"type": "str"},
    "profile": {"type": "str", "choices": list(PROFILES), "default": "production"},
    "image": {"type": "bool", "default": False},
    "image_plugins": {"type": "list", "elements": "str"},
    "log_directory": {"type": "str"},
    "collective_timeout_s": {"type": "int", "default": 600},
}
ARGUMENT_SPEC = {
    "documents": {"type": "raw"},
    "documents_dir": {"type": "path"},
    "document_files": {"type": "dict"},
    "hosts": {"type": "list", "elements": "str"},
    "dest": {"type": "path"},
    "fail_on_block": {"type": "bool", "default": True},
    **REQUEST_SPEC,
}


class ActionModule(ActionBase):
    """Render ``<host>.conf`` and ``<host>.reasons.json`` of every host; the cost per host is constant."""

    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        _, args = self.validate_argument_spec(
            ARGUMENT_SPEC,
            required_one_of=[["documents", "documents_dir", "document_files"]],
            mutually_exclusive=[["documents", "documents_dir", "document_files"]],
        )
        try:
            request = build_request(args)
            given = args["documents"]
            if args["document_files"] is not None:
                given = load_files({host: Path(path) for host, path in args["document_files"].items()})
            documents = choose_documents(given, args["documents_dir"], args["hosts"])
            environments = render_environments(documents, request)
            stale = stale_environments(args["dest"], environments, request) if args["dest"] else {}
            files = {name: text for name, text in stale.items() if name.endswith(".conf")}
            diff = differences(args["dest"], files) if files and self._task.diff else []
            if stale and not self._task.check_mode:
                write_files(args["dest"], stale)
        except (RackweaveError, OSError) as exc:
            return {**result, "failed": True, "msg": str(exc)}
        findings = [it.as_dict() for environment in environments.values() for it in environment.findings]
        blocking = [it for it in findings if it["severity"] == BLOCK]
        if blocking and args["fail_on_block"]:
            lines = "\n".join(f"{it['host']}: {it['kind']}: {it['message']}" for it in blocking)
            return {**result, "failed": True, "msg": lines, "findings": findings}
        return {
            **result,
            "changed": bool(stale),
            "files_changed": sorted(stale),
            "environments": {host: environment.variables for host, environment in environments.items()},
            "findings": findings,
            "diff": diff,
        }


def build_request(args):
    """Return the request that the arguments make."""
    plugins = args["image_plugins"]
    return EnvironmentRequest(
        fabric=read_fabric(args["fabric"]),
        nccl_version=args["nccl_version"],
        torch_version=args["torch_version"],
        profile=args["profile"],
        nccl_plugins=None if plugins is None else tuple(plugins),
        image=args["image"],
        log_directory=args["log_directory"],
        collective_timeout_s=args["collective_timeout_s"],
    )


def choose_documents(documents, directory, hosts):
    """Return the documents given, or those of a directory; of the named hosts only, in their order.

    Raises:
        DocumentError: if a host has none.
    """
    if documents is None:
        found = load_documents(Path(directory))
    else:
        values = documents.values() if isinstance(documents, dict) else documents
        found = [item if isinstance(item, NodeDocument) else read_document(item) for item in values]
    by_host = {document.host: document for document in found}
    missing = [host for host in hosts or [] if host not in by_host]
    if missing or not found:
        wanted = ", ".join(missing) or "any host"
        raise DocumentError(
            f"no node document of {wanted}{' in ' + str(directory) if directory else ''}; observe it first"
        )
    return [by_host[host] for host in hosts] if hosts else found
