"""Action plugin: the NCCL environment of all hosts of a job, once, on the controller."""

from __future__ import annotations

from pathlib import Path

from ansible.plugins.action import ActionBase

from ..module_utils.rackweave.cli.documents import files_of, load_file
from ..module_utils.rackweave.cli.json_files import differences, write_files
from ..module_utils.rackweave.cli.nccl import stale_environments
from ..module_utils.rackweave.errors import DocumentError, RackweaveError
from ..module_utils.rackweave.fabric.block import read_fabric
from ..module_utils.rackweave.fabric.environment import render_environment
from ..module_utils.rackweave.fabric.findings import BLOCK
from ..module_utils.rackweave.fabric.request import PROFILES, EnvironmentRequest
from ..module_utils.rackweave.hardware.document import read_document

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
            documents = choose_documents(
                args["documents"], args["documents_dir"], args["hosts"], args["document_files"]
            )
            environments, findings, stale = render(documents, request, args["dest"])
            files = {name: text for name, text in stale.items() if name.endswith(".conf")}
            diff = differences(args["dest"], files) if files and self._task.diff else []
            if stale and not self._task.check_mode:
                write_files(args["dest"], stale)
        except (RackweaveError, OSError) as exc:
            return {**result, "failed": True, "msg": str(exc)}
        blocking = [it for it in findings if it["severity"] == BLOCK]
        if blocking and args["fail_on_block"]:
            lines = "\n".join(f"{it['host']}: {it['kind']}: {it['message']}" for it in blocking)
            return {**result, "failed": True, "msg": lines, "findings": findings}
        return {
            **result,
            "changed": bool(stale),
            "files_changed": sorted(stale),
            "environments": environments,
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


def render(documents, request, dest):
    """Return the variables of each host, all findings, and the texts of the files in `dest` that differ.

    One host after the other, and of each only this is kept: what a thousand documents hold at the same time would cost
    each of them more than the same document alone.
    """
    variables, findings, stale = {}, [], {}
    for document in documents:
        environment = render_environment(document, request)
        variables[document.host] = environment.variables
        findings += [it.as_dict() for it in environment.findings]
        if dest:
            stale.update(stale_environments(dest, {document.host: environment}, request))
    return variables, findings, stale


def choose_documents(documents, directory, hosts, files=None):
    """Return the documents given, or read them one by one; of the named hosts only, in their order.

    Args:
        documents: parsed documents, as a list or a mapping by host; or None for those of `files` (paths by host), else
            of `directory`.

    Raises:
        DocumentError: if a host has none.
    """
    if documents is not None:
        values = documents.values() if isinstance(documents, dict) else documents
        sources = {document.host: document for document in map(read_document, values)}
    elif files is not None:
        sources = {host: Path(path) for host, path in files.items()}
    else:
        sources = files_of(Path(directory))
    missing = [host for host in hosts or [] if host not in sources]
    if missing or not sources:
        wanted = ", ".join(missing) or "any host"
        raise DocumentError(
            f"no node document of {wanted}{' in ' + str(directory) if directory else ''}; observe it first"
        )
    chosen = {host: sources[host] for host in hosts} if hosts else sources
    return (load_file(host, it) if isinstance(it, Path) else it for host, it in chosen.items())
