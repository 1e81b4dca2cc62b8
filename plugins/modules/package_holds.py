#!/usr/bin/python
"""Hold the installed kernel, NVIDIA and OFED packages at their versions; ``rackweave`` decides which these are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.rackweave.errors import ProvisionError
from ..module_utils.rackweave.provision.holds import lock_changes, to_hold
from ..module_utils.rackweave.provision.transactions import parse_installed

DOCUMENTATION = r"""
module: package_holds
short_description: Hold the installed kernel, NVIDIA and OFED packages at their versions
description:
  - C(apt-mark hold) or C(dnf versionlock) for every installed package of these families, so that unattended upgrades
    and other transactions leave them alone; all other packages go on being updated. Other holds are not touched.
  - With apt, C(/etc/rackweave/apt-move-held.conf) is written as well; C(APT_CONFIG) names it where a role moves them.
options:
  patterns:
    description: Regular expressions of further package names.
    type: list
    elements: str
    default: []
attributes:
  check_mode:
    support: full
    description: Says what would be held.
author: Rackweave
"""
EXAMPLES = r"""
- name: Hold kernel and driver
  rackweave.cluster.package_holds:
"""
RETURN = r"""
held:
  description: All packages that are held by this rule, sorted.
  type: list
  elements: str
  returned: success
added:
  description: Those that were not held before.
  type: list
  elements: str
  returned: success
"""
# apt keeps a held dependency even where it may change held packages. The roles, which move whole families on purpose,
# point APT_CONFIG to this file; everybody else's apt goes on respecting the holds.
MOVE_HELD_FILE = Path("/etc/rackweave/apt-move-held.conf")
MOVE_HELD = 'APT::Ignore-Hold "true";\n'
DPKG = ["dpkg-query", "--show", "--showformat=${Package}\t${Version}\t${db:Status-Status}\n"]
RPM = ["rpm", "--query", "--all", "--queryformat", "%{NAME}\t%{EPOCHNUM}:%{VERSION}-%{RELEASE}\tinstalled\n"]


def hold_dpkg(module: AnsibleModule, patterns: list[str]) -> dict[str, Any]:
    """Hold with apt-mark."""
    installed = parse_installed(module.run_command(DPKG, check_rc=True)[1])
    wanted = to_hold(installed, patterns)
    held = module.run_command(["apt-mark", "showhold"], check_rc=True)[1].split()
    missing = [name for name in wanted if name not in held]
    unwritten = bool(wanted) and not (MOVE_HELD_FILE.is_file() and MOVE_HELD_FILE.read_text() == MOVE_HELD)
    if unwritten and not module.check_mode:
        MOVE_HELD_FILE.parent.mkdir(mode=0o755, exist_ok=True)
        MOVE_HELD_FILE.write_text(MOVE_HELD)
        MOVE_HELD_FILE.chmod(0o644)
    if missing and not module.check_mode:
        module.run_command(["apt-mark", "hold", *missing], check_rc=True)
    return {"changed": bool(missing) or unwritten, "held": wanted, "added": missing}


def hold_rpm(module: AnsibleModule, patterns: list[str]) -> dict[str, Any]:
    """Hold with dnf versionlock."""
    rows = [line.split("\t")[:2] for line in module.run_command(RPM, check_rc=True)[1].splitlines()]
    names = to_hold(dict(rows), patterns)
    wanted = [f"{name}-{version}" for name, version in rows if name in names]
    code, out, err = module.run_command(["dnf", "--quiet", "versionlock", "list"])
    if code and not module.check_mode:
        module.fail_json(
            msg=f"dnf versionlock does not work ({err.strip()[-120:]}); python3-dnf-plugin-versionlock brings it"
        )
    changes = lock_changes(wanted, names, [] if code else out.split())
    for action in ("delete", "add"):
        if changes[action] and not module.check_mode:
            module.run_command(["dnf", "--quiet", "versionlock", action, *changes[action]], check_rc=True)
    return {"changed": bool(changes["add"] or changes["delete"]), "held": names, "added": changes["add"]}


def main() -> None:
    """Run as an Ansible module."""
    spec = {"patterns": {"type": "list", "elements": "str", "default": []}}
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    module.run_command_environ_update = {"LC_ALL": "C"}
    hold = hold_dpkg if module.get_bin_path("apt-mark") else hold_rpm
    try:
        module.exit_json(**hold(module, module.params["patterns"]))
    except ProvisionError as exc:
        module.fail_json(msg=str(exc))


if __name__ == "__main__":
    main()
