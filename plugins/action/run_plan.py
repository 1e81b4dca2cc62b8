"""Action plugin: write the run files of a plan into the controller's state directory, once, only where they differ."""

from __future__ import annotations

import json
from pathlib import Path

from ansible.plugins.action import ActionBase

from ..module_utils.rackweave.cli.json_files import stale_files, write_files
from ..module_utils.rackweave.errors import RackweaveError
from ..module_utils.rackweave.run.batch import BatchSettings, check_run_name
from ..module_utils.rackweave.run.files import NODE_SCRIPTS, SCRIPT_BODY, compose_run_files, engine_line, plan_table
from ..module_utils.rackweave.run.plan_file import parse_plan, serialise_plan

_SETTINGS = {
    "run_dir": {"type": "str", "required": True},
    "venv": {"type": "str", "required": True},
    "command": {"type": "list", "elements": "str", "required": True},
    "time_limit_s": {"type": "int", "required": True},
    "save_signal_s": {"type": "int", "required": True},
    "stall_s": {"type": "int", "required": True},
    "requeue_ok": {"type": "bool", "required": True},
    "max_restarts": {"type": "int", "required": True},
    "gres": {"type": "str", "default": "gpu"},
    "exclusive": {"type": "bool", "default": True},
    "partition": {"type": "str", "default": ""},
    "account": {"type": "str", "default": ""},
    "qos": {"type": "str", "default": ""},
    "environment": {"type": "dict", "default": {}},
    "sbatch_options": {"type": "list", "elements": "str", "default": []},
}
ARGUMENT_SPEC = {
    "run": {"type": "str", "required": True},
    "directory": {"type": "path", "required": True},
    "scripts_dir": {"type": "path", "required": True},
    "layout": {"type": "dict", "required": True},
    "train": {"type": "dict", "required": True},
    "settings": {"type": "dict", "required": True, "options": _SETTINGS},
    "runtime_conf": {"type": "str", "default": ""},
    "waivers": {"type": "list", "elements": "dict", "default": []},
}


class ActionModule(ActionBase):
    """Write plan.json, train.json, ds_config.json and the scripts; the fabric's ``nccl/`` is left alone."""

    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        _, args = self.validate_argument_spec(ARGUMENT_SPEC)
        directory = Path(args["directory"])
        try:
            check_run_name(args["run"])
            layout = parse_plan(serialise_plan(args["layout"]))
            gpus_per_node = len(layout.ranks_on(layout.master_host))
            settings = batch_settings(args["run"], gpus_per_node, args["settings"])
            scripts = read_scripts(args["scripts_dir"])
            files = compose_run_files(
                args["layout"], args["train"], settings, scripts, args["runtime_conf"], args["waivers"]
            )
            plan = parse_plan(files["plan.json"])
            changed = stale_files(str(directory), files)
            if changed and not self._task.check_mode:
                write_files(str(directory), changed)
        except (RackweaveError, OSError) as error:
            return {**result, "failed": True, "msg": str(error)}
        return {
            **result,
            "changed": bool(changed),
            "written": sorted(changed),
            "table": engine_line(plan, args["train"], settings.command) + plan_table(plan),
            "hosts": list(plan.hosts),
            "directory": str(directory),
        }


def batch_settings(run, gpus_per_node, given):
    """Return the settings of the batch script from the task's arguments."""
    values = {**given, "environment": {name: text(value) for name, value in given["environment"].items()}}
    for name in ("command", "sbatch_options"):
        values[name] = tuple(values[name])
    return BatchSettings(run=run, gpus_per_node=gpus_per_node, **values)


def text(value):
    """Return an environment value as it is meant in YAML: numbers as written, booleans as 1 and 0."""
    return str(int(value)) if isinstance(value, bool) else value if isinstance(value, str) else json.dumps(value)


def read_scripts(directory):
    """Return the static scripts of the role by name."""
    return {name: Path(directory, name).read_text(encoding="utf-8") for name in (SCRIPT_BODY, *NODE_SCRIPTS)}
