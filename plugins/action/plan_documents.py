"""Action plugin: choose the node documents that a plan is made from, host by host, and say what they are."""

from __future__ import annotations

from pathlib import Path

from ansible.plugins.action import ActionBase

ARGUMENT_SPEC = {
    "directories": {"type": "list", "elements": "path", "required": True},
    "examples": {"type": "path"},
    "hosts": {"type": "list", "elements": "str", "required": True},
}


class ActionModule(ActionBase):
    """For each host, the first directory with its document counts; a host without any is left to the declared class."""

    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        _, args = self.validate_argument_spec(ARGUMENT_SPEC)
        chosen = choose(args["directories"], args["hosts"])
        if not chosen and args["examples"]:
            chosen = choose([args["examples"]], args["hosts"])
            # Examples describe no machine; they stand in for all hosts or for none.
            chosen = chosen if len(chosen) == len(args["hosts"]) else {}
            words = "example documents"
        else:
            words = "node documents"
        tried = [*args["directories"], *([args["examples"]] if args["examples"] else [])]
        return {
            **result,
            "changed": False,
            "files": {host: str(path) for host, path in chosen.items()},
            "hosts": list(chosen),
            "declared": [host for host in args["hosts"] if host not in chosen],
            "msg": said(chosen, args["hosts"], tried, words),
        }


def choose(directories, hosts):
    """Return the file of each host that has one, from the first directory that holds it."""
    places = [(Path(directory), names(directory)) for directory in directories]
    found = {host: next((place / f"{host}.json" for place, held in places if host in held), None) for host in hosts}
    return {host: path for host, path in found.items() if path is not None}


def names(directory):
    """Return the hosts of a directory, read once: a look for each host would cost a thousand of them."""
    return {path.stem for path in Path(directory).glob("*.json")}


def said(chosen, hosts, tried, words):
    """Say in one line where the documents come from, and for which hosts there are none."""
    if not chosen:
        return f"no documents of all these nodes in {', '.join(map(str, tried))}"
    by_place = {}
    for host, path in chosen.items():
        by_place.setdefault(path.parent, []).append(host)
    absent = [host for host in hosts if host not in chosen]
    if len(by_place) == 1 and not absent:
        return f"{words}: {next(iter(by_place))}"
    parts = [f"{place} ({shown(of)})" for place, of in by_place.items()]
    text = f"{words}: {', '.join(parts)}"
    if absent:
        text += (
            f"; none of {shown(absent)}: the declared hardware class stands in for them, and no environment is "
            "rendered for them: provision them before a launch, or leave them out of training_job_hosts"
        )
    return text


def shown(hosts):
    """Return the names of a few hosts, and how many more there are."""
    return ", ".join(hosts[:4]) + (f" and {len(hosts) - 4} more" if len(hosts) > 4 else "")
