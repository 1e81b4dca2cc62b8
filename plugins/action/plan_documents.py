"""Action plugin: choose the directory of node documents that a plan is made from, and say what it is."""

from __future__ import annotations

from pathlib import Path

from ansible.plugins.action import ActionBase

ARGUMENT_SPEC = {
    "directories": {"type": "list", "elements": "path", "required": True},
    "examples": {"type": "path"},
    "hosts": {"type": "list", "elements": "str", "required": True},
}


class ActionModule(ActionBase):
    """The first directory with documents counts; there it must have one for every host."""

    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        _, args = self.validate_argument_spec(ARGUMENT_SPEC)
        for directory in map(Path, args["directories"]):
            present = {path.stem for path in directory.glob("*.json")}
            if not present:
                continue
            missing = [host for host in args["hosts"] if host not in present]
            if missing:
                return {**result, "failed": True, "msg": incomplete(directory, missing)}
            return {**result, "changed": False, "directory": str(directory), "msg": f"node documents: {directory}"}
        examples = args["examples"]
        if examples and all((Path(examples) / f"{host}.json").is_file() for host in args["hosts"]):
            return {**result, "changed": False, "directory": str(examples), "msg": f"example documents: {examples}"}
        tried = ", ".join(str(place) for place in [*args["directories"], *([examples] if examples else [])])
        return {**result, "changed": False, "directory": "", "msg": f"no documents of all these nodes in {tried}"}


def incomplete(directory, missing):
    """Say why a plan is not made from the documents of some hosts and guesses for the others."""
    return (
        f"{directory} holds node documents, but none of {', '.join(missing)}: "
        "provision these nodes, or leave them out of training_job_hosts"
    )
