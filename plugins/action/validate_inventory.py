"""Action plugin: find every configuration error of the inventory in one pass, before the first change."""

from __future__ import annotations

from pathlib import Path

import yaml
from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase

from ..module_utils.rackweave.errors import DocumentError
from ..module_utils.rackweave.provision.placeholders import is_secret
from ..module_utils.rackweave.provision.variables import Problem, check_host, owner, sentences
from ..module_utils.rackweave.run.batch import check_run_name
from ..module_utils.rackweave.slurm.hostlist import compress

ARGUMENT_SPEC = {
    "hosts": {"type": "list", "elements": "str", "required": True},
    "required": {"type": "list", "elements": "str", "default": []},
}
ROLES = Path(__file__).resolve().parents[2] / "roles"


class ActionModule(ActionBase):
    """Compare the variables of all hosts with the argument specifications of the roles."""

    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        _, args = self.validate_argument_spec(ARGUMENT_SPEC)
        specs = role_specs(ROLES)
        hostvars = task_vars["hostvars"]
        problems, representatives = [], []
        here = set(task_vars.get("ansible_play_hosts_all") or args["hosts"])
        for hosts in alike(hostvars, args["hosts"], specs, args["required"]):
            # A limited run checks a host that it includes.
            representatives.append(next((host for host in hosts if host in here), hosts[0]))
            values, undefined = templated(hostvars[hosts[0]], specs)
            missing = {name: {"required": True} for name in args["required"] if name not in hostvars[hosts[0]]}
            found = check_host(hosts[0], values, {**specs, "inventory": missing} if missing else specs)
            empty = [name for name in args["required"] if values.get(name, name) in (None, "")]
            undefined += [f"{name} is empty; inventory/README.md says what it means" for name in empty]
            undefined += wrong_run_name(values.get("training_job_run"))
            found += [Problem(text, hosts[0]) for text in undefined]
            problems += [Problem(problem.text, host) for problem in found for host in hosts]
        lines = [f"{text} ({compress(hosts)})" for text, hosts in sentences(problems)]
        if lines:
            return {
                **result,
                "failed": True,
                "problems": lines,
                "msg": f"{len(lines)} configuration errors: " + "; ".join(lines),
            }
        return {
            **result,
            "changed": False,
            "problems": [],
            "representatives": representatives,
            "msg": f"{len(args['hosts'])} hosts have no configuration error",
        }


def role_specs(directory):
    """Return role to options of all roles of the checkout."""
    specs = {}
    for path in sorted(directory.glob("*/meta/argument_specs.yml")):
        entries = yaml.safe_load(path.read_text(encoding="utf-8"))["argument_specs"]
        specs[path.parents[1].name] = (entries.get("main") or {}).get("options") or {}
    return specs


def wrong_run_name(name):
    """Return the sentence about a name that no run can have, in a list; none where no name is given."""
    try:
        check_run_name(str(name or "none"))
    except DocumentError as error:
        return [f"training_job_run: {error}"]
    return []


def alike(hostvars, hosts, specs, required):
    """Group the hosts whose raw variables are equal, so that each distinct set is templated and checked once."""
    groups = {}
    for host in hosts:
        raw = hostvars.raw_get(host)
        own = {name: value for name, value in raw.items() if owner(name, specs) or name in required or is_secret(name)}
        groups.setdefault(repr(sorted(own.items())), []).append(host)
    return list(groups.values())


def templated(variables, specs):
    """Return the values of the roles' variables and of all secrets, and a sentence for each that cannot be computed.

    A variable that needs facts is left to its role, which has them; a secret needs none.
    """
    values, undefined = {}, []
    for name in variables:
        if not owner(name, specs) and not is_secret(name):
            continue
        try:
            values[name] = variables[name]
        except KeyError:
            continue
        except AnsibleError as exc:
            if "ansible_facts" not in str(exc):
                hint = "; a secret comes from a vault (inventory/README.md)" if is_secret(name) else ""
                undefined.append(f"{name} has no value: {exc.message}{hint}")
    return values, undefined
