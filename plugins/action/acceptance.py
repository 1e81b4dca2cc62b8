"""Action plugin: measure nodes through Slurm and judge the figures. Never fails because of a bad figure."""

from __future__ import annotations

import datetime
import hashlib
from pathlib import Path

from ansible.plugins.action import ActionBase

from ..module_utils.rackweave.accept.bars import UNITS, read_overrides
from ..module_utils.rackweave.accept.context import Context
from ..module_utils.rackweave.accept.figures import Observations, read_observations
from ..module_utils.rackweave.accept.judge import judge
from ..module_utils.rackweave.accept.report import better, report_document, table
from ..module_utils.rackweave.accept.schedule import Settings, build_schedule, inputs_digest, stages_of
from ..module_utils.rackweave.cli.documents import load_documents
from ..module_utils.rackweave.cli.json_files import read_json, replace_file
from ..module_utils.rackweave.errors import DocumentError, RackweaveError
from ..module_utils.rackweave.fabric.environment import render_environments
from ..module_utils.rackweave.hardware.document import as_json
from .nccl_environment import REQUEST_SPEC, build_request

NAMES = {"type": "list", "elements": "str"}
ARGUMENT_SPEC = {
    "hosts": {**NAMES, "required": True},
    "neighbours": {**NAMES, "default": []},
    "cluster": {**NAMES, "required": True},
    "reservation": {"type": "str", "default": ""},
    "documents_dir": {"type": "path", "required": True},
    "scripts_dir": {"type": "path", "required": True},
    "runtime_script": {"type": "path", "required": True},
    "runtime_conf": {"type": "str", "required": True},
    "directory": {"type": "str", "required": True},
    "dest": {"type": "path"},
    "repeat": {"type": "bool", "default": False},
    "settings": {"type": "dict", "required": True},
    "bars": {"type": "dict", "default": {}},
    "virtual_ok": {"type": "bool", "default": False},
    "sbatch_options": {**NAMES, "default": []},
    "start_timeout_s": {"type": "int", "default": 60},
    "time_limit_minutes": {"type": "int", "default": 15},
    **REQUEST_SPEC,
    "profile": {**REQUEST_SPEC["profile"], "default": "acceptance"},
}


class ActionModule(ActionBase):
    """Choose what is due, measure it, judge it, measure again what failed, keep the report."""

    _supports_check_mode = True

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        _, args = self.validate_argument_spec(ARGUMENT_SPEC)
        try:
            return {**result, **self._accept(args, task_vars)}
        except (RackweaveError, OSError) as error:
            return {**result, "failed": True, "msg": str(error)}

    def _accept(self, args, task_vars):
        settings, bars = read_settings(args["settings"]), read_overrides(args["bars"])
        args["hosts"] = ordered(args["hosts"], args["cluster"])
        neighbours = [host for host in ordered(args["neighbours"], args["cluster"]) if host not in args["hosts"]]
        documents = documents_of(args["documents_dir"], [*args["hosts"], *neighbours])
        environments = render_environments(documents.values(), build_request(args))
        verify = stored(args["dest"])
        earlier = verify.get("acceptance") or {}
        more = {"bars": args["bars"], "virtual_ok": args["virtual_ok"], "alone": len(args["cluster"]) == 1}
        inputs = {host: inputs_digest(documents[host], settings, more) for host in args["hosts"]}
        due = [host for host in args["hosts"] if args["repeat"] or not passed(earlier, host, inputs[host])]
        if not due or self._task.check_mode:
            return answer(earlier, [], False, due)
        rates = {host: tuple(rail.rate_gbps for rail in it.rails.rails) for host, it in environments.items()}
        context = Context(
            documents, rates, bars, figures_of(earlier), args["virtual_ok"], settings.dcgm_level, more["alone"]
        )
        # Nodes that passed before serve as peers, where they are idle.
        others = [host for host in (*args["hosts"], *neighbours) if host not in due]
        seen = self._measure(due, others, (args, settings, documents, environments), task_vars)
        report = judge(due, seen, context)
        if any(host.doubtful for host in report.hosts):
            second = [host for host in due if host not in seen.pending]
            again = self._measure(second, others, (args, settings, documents, environments), task_vars)
            report = better(report, judge(second, again, context))
        time = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        document = report_document(report, time, inputs, earlier, args["cluster"])
        changed = keep(args["dest"], verify, document)
        return answer(document, [host for host in due if host not in seen.pending], changed, due)

    def _measure(self, hosts, others, known, task_vars):
        """Return the figures of `hosts`, measured with those of `others` that are idle."""
        args, settings, documents, environments = known
        states = self._call("acceptance_run", task_vars, hosts=[*hosts, *others], states_only=True,
                            reservation=args["reservation"])  # fmt: skip
        pending = {host: states["pending"][host] for host in hosts if host in states["pending"]}
        tested = [host for host in hosts if host not in pending]
        if not tested:
            return Observations(pending=pending)
        peers = [host for host in others if host not in states["pending"]][: settings.partners + 1]
        schedule = build_schedule(tested, peers, documents, environments, settings)
        here = [documents[host] for host in schedule["hosts"]]
        directory = f"{args['directory'].rstrip('/')}/{name_of(schedule['hosts'])}"
        files = {path.name: path.read_text(encoding="utf-8") for path in Path(args["scripts_dir"]).iterdir()}
        files["runtime.sh"] = Path(args["runtime_script"]).read_text(encoding="utf-8")
        files["runtime.conf"] = args["runtime_conf"]
        files.update({f"nccl/{host}.conf": environments[host].conf() for host in schedule["hosts"]})
        self._call("run_files", task_vars, path=directory, files=files)
        found = self._call(
            "acceptance_run", task_vars, hosts=schedule["hosts"], directory=directory, schedule=schedule,
            stages=stages_of(schedule, settings, here), reservation=args["reservation"],
            sbatch_options=[*gres_options(here), *args["sbatch_options"]],
            start_timeout_s=args["start_timeout_s"], time_limit_s=60 * args["time_limit_minutes"],
        )  # fmt: skip
        observations = found["observations"]
        observations["pending"] = {**pending, **{k: v for k, v in observations["pending"].items() if k in tested}}
        return read_observations(observations)

    def _call(self, module, task_vars, **arguments):
        found = self._execute_module(f"rackweave.cluster.{module}", module_args=arguments, task_vars=task_vars)
        if found.get("failed"):
            raise DocumentError(str(found.get("msg") or found.get("module_stderr") or found))
        return found


def read_settings(values):
    """Return the settings with their types; they come from templates as texts.

    Raises:
        DocumentError: if one is missing, unknown or no number.
    """
    fields = Settings.__dataclass_fields__
    wrong = sorted(set(values) ^ set(fields))
    if wrong:
        raise DocumentError(
            f"acceptance settings: {', '.join(wrong)} missing or unknown; needed are {', '.join(fields)}"
        )
    try:
        kinds = {"int": int, "float": float, "str": str}
        typed = {
            name: tuple(int(size) for size in values[name])
            if name == "message_bytes"
            else kinds[field.type](values[name])
            for name, field in fields.items()
        }
    except (TypeError, ValueError) as error:
        raise DocumentError(f"acceptance settings: {error}") from error
    return Settings(**typed)


def ordered(hosts, cluster):
    """Return hosts in the order of the cluster, each once, so that reports and directories do not depend on a set."""
    return sorted(set(hosts), key=lambda host: (cluster.index(host) if host in cluster else len(cluster), host))


def documents_of(directory, hosts):
    """Return the documents of hosts by name.

    Raises:
        DocumentError: if a host has none.
    """
    known = {document.host: document for document in load_documents(Path(directory))}
    missing = [host for host in hosts if host not in known]
    if missing:
        raise DocumentError(f"no node document of {', '.join(missing)} in {directory}; observe it first")
    return {host: known[host] for host in hosts}


def stored(dest):
    """Return the content of the file that holds earlier reports; nothing where there is none."""
    content = read_json(dest) if dest and Path(dest).exists() else {}
    return content if isinstance(content, dict) else {}


def keep(dest, verify, document):
    """Write the report into its file beside what else the file holds; say whether it changed."""
    if not dest:
        return False
    Path(dest).parent.mkdir(parents=True, exist_ok=True)
    return replace_file(dest, as_json({**verify, "acceptance": document}))


def passed(earlier, host, digest):
    entry = earlier.get("hosts", {}).get(host, {})
    return bool(entry.get("complete")) and entry.get("inputs") == digest


def figures_of(earlier):
    """Return test to host to value of an earlier report, as peers of a node that is measured alone."""
    found = {name: {} for name in UNITS}
    for host, entry in earlier.get("hosts", {}).items():
        for test in entry.get("tests", ()):
            if test["verdict"] == "pass" and test["value"] is not None and test["name"] in found:
                found[test["name"]][host] = test["value"]
    return found


def gres_options(documents):
    """Ask for all GPUs of the node that has the fewest."""
    count = min((len(document.gpus) for document in documents), default=0)
    return [f"--gres=gpu:{count}"] if count else []


def name_of(hosts):
    """Return a directory name for a set of hosts, the same each time, so that runs leave one directory."""
    return hashlib.sha256(" ".join(hosts).encode()).hexdigest()[:12]


def answer(report, measured, changed, due):
    if not report:
        return {"changed": False, "report": {}, "table": [f"not measured: {', '.join(due)}"], "measured": []}
    return {"changed": changed, "report": report, "table": table(report), "measured": measured, "due": due}
