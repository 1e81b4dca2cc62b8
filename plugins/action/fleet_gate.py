"""Action plugin: the fleet gate. Compares hosts with each other and with what was accepted, on the controller."""

from __future__ import annotations

import datetime
from pathlib import Path

from ansible.plugins.action import ActionBase

from ..module_utils.rackweave.cli.documents import load_documents
from ..module_utils.rackweave.cli.json_files import read_json, replace_file
from ..module_utils.rackweave.errors import DocumentError, RackweaveError
from ..module_utils.rackweave.fabric.environment import render_environments
from ..module_utils.rackweave.fabric.gate import judge_fleet, read_waivers
from ..module_utils.rackweave.fabric.verification import origin_findings, verification_report
from ..module_utils.rackweave.hardware.document import as_json
from .nccl_environment import REQUEST_SPEC, build_request

ARGUMENT_SPEC = {
    "observed_dir": {"type": "path", "required": True},
    "accepted_dir": {"type": "path"},
    "hosts": {"type": "list", "elements": "str", "required": True},
    "waivers": {"type": "list", "elements": "dict", "default": []},
    "dest": {"type": "path"},
    "fail_on_block": {"type": "bool", "default": True},
    **REQUEST_SPEC,
}


class ActionModule(ActionBase):
    """Judge the hosts; write the verdict; fail where it blocks a launch."""

    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        _, args = self.validate_argument_spec(ARGUMENT_SPEC)
        try:
            request = build_request(args)
            accepted = by_host(args["accepted_dir"])
            documents = current_documents(args["hosts"], by_host(args["observed_dir"]), accepted)
            environments = render_environments(documents, request)
            waivers = read_waivers(args["waivers"])
            verdict = judge_fleet(
                documents, environments, request, waivers, datetime.date.today(), origin_findings(documents)
            )
            report = verification_report(verdict, documents, accepted)
            changed = self._write(args["dest"], as_json({**report, **acceptance_of(args["dest"])}))
        except (RackweaveError, OSError) as exc:
            return {**result, "failed": True, "msg": str(exc)}
        result.update(report, changed=changed, msg=summary(report))
        if verdict.blocked and args["fail_on_block"]:
            result["failed"] = True
        return result

    def _write(self, dest, text):
        if not dest:
            return False
        if self._task.check_mode:
            return not Path(dest).exists() or Path(dest).read_text(encoding="utf-8") != text
        Path(dest).parent.mkdir(parents=True, exist_ok=True)
        return replace_file(dest, text)


def acceptance_of(dest):
    """Return the acceptance report that the file holds already; this verdict stands beside it."""
    content = read_json(dest) if dest and Path(dest).exists() else {}
    kept = content.get("acceptance") if isinstance(content, dict) else None
    return {"acceptance": kept} if kept else {}


def by_host(directory):
    """Return the documents of a directory by host; none where it is not named or not there."""
    return {document.host: document for document in load_documents(Path(directory))} if directory else {}


def current_documents(hosts, observed, accepted):
    """Return what is known of each host: observed, else accepted (a host that is not reachable now).

    Raises:
        DocumentError: if nothing is known of one.
    """
    missing = [host for host in hosts if host not in observed and host not in accepted]
    if missing:
        raise DocumentError(f"no node document of {', '.join(missing)}: observe them first (playbooks/provision.yml)")
    return [observed.get(host) or accepted[host] for host in hosts]


def summary(report):
    """Return the findings that matter most, one a line."""
    findings = report["findings"]
    state = "launch is BLOCKED" if report["blocked"] else "nothing blocks a launch"
    lines = [f"{len(report['hosts'])} host(s), {len(findings)} finding(s): {state}"]
    lines += [f"{it['severity']} {it['host']}: {it['kind']}: {it['message']}" for it in findings]
    return "\n".join(lines)
