#!/usr/bin/python
"""Say whether, and how, this machine can carry the embedded cluster."""

from __future__ import annotations

import dataclasses
import os
import resource
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.rackweave.lab.host import HostFacts, LabError, check_host

DOCUMENTATION = r"""
module: lab_host
short_description: Check that a machine can carry the embedded cluster
description:
  - Reads the user, distribution, cgroup mounts, running Slurm daemons and limits of the machine, and fails with one
    sentence where the lab cannot be started. Changes nothing.
options: {}
attributes:
  check_mode: {support: full, description: Only reads.}
author: Rackweave
"""
EXAMPLES = r"""
- name: Check the host
  rackweave.cluster.lab_host:
  register: __lab_node_host
"""
RETURN = r"""
mode:
  description: How containers are started here (private_cgroup, raise_limits, nofile, nproc, verified).
  returned: success
  type: dict
"""


def own_processes() -> tuple[str, ...]:
    """Return the names of processes in this PID namespace; those inside containers do not belong to the host."""
    own = os.readlink("/proc/self/ns/pid")
    names = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if os.readlink(entry / "ns/pid") == own:
                names.append((entry / "comm").read_text().strip())
        except OSError:  # it ended meanwhile
            continue
    return tuple(names)


def status_value(key: str) -> str:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return line.split(":", 1)[1].strip()
    return ""


def distribution() -> str:
    release = Path("/etc/os-release")
    if not release.exists():
        return ""
    for line in release.read_text().splitlines():
        if line.startswith("ID="):
            return line[3:].strip().strip('"')
    return ""


def gather() -> HostFacts:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return HostFacts(
        user_id=os.geteuid(),
        distribution=distribution(),
        mounts=Path("/proc/self/mounts").read_text(),
        init_name=Path("/proc/1/comm").read_text().strip(),
        processes=own_processes(),
        effective_capabilities=int(status_value("CapEff") or "0", 16),
        nofile_hard_limit=-1 if hard == resource.RLIM_INFINITY else hard,
    )


def main() -> None:
    module = AnsibleModule(argument_spec={}, supports_check_mode=True)
    try:
        mode = check_host(gather())
    except LabError as exc:
        module.fail_json(msg=str(exc))
    module.exit_json(changed=False, mode=dataclasses.asdict(mode))


if __name__ == "__main__":
    main()
