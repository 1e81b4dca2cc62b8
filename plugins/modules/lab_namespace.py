#!/usr/bin/python
"""Give podman the surroundings it needs on this machine, and take them away again."""

from __future__ import annotations

import fcntl
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: lab_namespace
short_description: Prepare a podman command for the embedded cluster
description:
  - Writes a podman command that works on this machine. Where the machine's cgroup tree is not a pure version 2 one,
    podman runs in a mount namespace of its own in which it is; the machine's own cgroups stay as they are.
  - Notes down what the machine looked like before (O(directory)/before.json), so that O(state=absent) can tell what is
    ours. The namespace serves all labs of the machine and stays until the last one is gone - one that is still being
    built counts too, though it has no container yet.
options:
  directory:
    description: Directory on this machine for the namespace and the notes.
    type: path
    default: /run/rackweave-lab
  lab: {description: Name of the lab that uses the namespace., type: str, required: true}
  checkout:
    description: Directory that owns the lab; a lab whose directory is gone does not count any more.
    type: str
    default: ""
  private_cgroup:
    description: Whether podman needs a mount namespace with a pure cgroup2 tree.
    type: bool
    default: false
  state: {description: Whether the namespace shall exist., type: str, choices: [present, absent], default: present}
attributes:
  check_mode: {support: full, description: Says whether it would change something.}
author: Rackweave
"""
EXAMPLES = r"""
- name: Prepare podman
  rackweave.cluster.lab_namespace:
    lab: rackweave
    checkout: /srv/rackweave
    private_cgroup: true
"""
RETURN = r"""
podman: {description: Path of the podman command to use., returned: success, type: str}
"""

SPEC = {
    "directory": {"type": "path", "default": "/run/rackweave-lab"},
    "lab": {"type": "str", "required": True},
    "checkout": {"type": "str", "default": ""},
    "private_cgroup": {"type": "bool", "default": False},
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
}
LOCK = Path("/run/lock/rackweave-lab")
LABS = "labs"
CGROUP_PARENTS = ("/sys/fs/cgroup/libpod_parent", "/sys/fs/cgroup/unified/libpod_parent")
MAKE_PURE_CGROUP = "umount -R /sys/fs/cgroup && mount -t cgroup2 cgroup2 /sys/fs/cgroup"


def wrapper(namespace: Path, private: bool) -> str:
    """Return the podman command as a shell script.

    runc, because crun's device filter needs limits that the host may not have.
    """
    if not private:
        return '#!/bin/sh\nexec podman "$@"\n'
    options = "--runtime runc --cgroup-manager cgroupfs"
    return f'#!/bin/sh\nexec nsenter --mount={namespace} --wd="$PWD" podman {options} "$@"\n'


def mounted(path: Path) -> bool:
    return any(line.split()[1] == str(path) for line in Path("/proc/self/mounts").read_text().splitlines())


def write_if_changed(module: AnsibleModule, path: Path, text: str, mode: int) -> bool:
    if path.exists() and path.read_text() == text:
        return False
    if not module.check_mode:
        path.write_text(text)
        path.chmod(mode)
    return True


def state_before() -> dict[str, object]:
    """Return what a lab may change on this machine, as it is now."""
    tables = subprocess.run(["nft", "list", "tables"], capture_output=True, text=True, check=False).stdout
    return {
        "ip_forward": Path("/proc/sys/net/ipv4/ip_forward").read_text().strip(),
        "ip_tables": [line.split()[2] for line in tables.splitlines() if line.startswith("table ip ")],
        "cgroup_parents": [path for path in CGROUP_PARENTS if Path(path).exists()],
    }


def present(module: AnsibleModule, directory: Path) -> None:
    private = module.params["private_cgroup"]
    mount_dir, script = directory / "mnt", directory / "podman"
    namespace = mount_dir / "ns"
    changed = not directory.exists()
    if not module.check_mode:
        directory.mkdir(mode=0o700, exist_ok=True)
        register(module, directory)
        if not (directory / "before.json").exists():
            (directory / "before.json").write_text(json.dumps(state_before()))
    if private and not mounted(namespace):
        changed = True
        if not module.check_mode:
            make_namespace(module, mount_dir, namespace)
    if not module.check_mode or directory.exists():
        changed |= write_if_changed(module, script, wrapper(namespace, private), 0o755)
    module.exit_json(changed=changed, podman=str(script))


def make_namespace(module: AnsibleModule, mount_dir: Path, namespace: Path) -> None:
    """Keep a mount namespace alive by a file; the file must lie on a private mount."""
    mount_dir.mkdir(exist_ok=True)
    if not mounted(mount_dir):
        module.run_command(["mount", "--bind", str(mount_dir), str(mount_dir)], check_rc=True)
        module.run_command(["mount", "--make-private", str(mount_dir)], check_rc=True)
    namespace.touch()
    command = ["unshare", f"--mount={namespace}", "--propagation", "private", "sh", "-c", MAKE_PURE_CGROUP]
    code, _, err = module.run_command(command)
    if code:
        module.fail_json(msg=f"could not make a mount namespace with a pure cgroup2 tree: {err.strip()}")


def absent(module: AnsibleModule, directory: Path) -> None:
    mount_dir = directory / "mnt"
    namespace = mount_dir / "ns"
    changed = directory.exists()
    others = other_labs(module, directory)
    if not module.check_mode:
        (directory / LABS / module.params["lab"]).unlink(missing_ok=True)
    if changed and (others or containers_left(module, directory / "podman")):
        msg = f"kept: the lab {', '.join(others)} uses it" if others else "kept: there are containers"
        module.exit_json(changed=False, podman=str(directory / "podman"), msg=msg)
    if changed and not module.check_mode:
        before = json.loads((directory / "before.json").read_text()) if (directory / "before.json").exists() else {}
        for path in (namespace, mount_dir):
            while mounted(path):
                module.run_command(["umount", str(path)], check_rc=True)
        remove_cgroups([path for path in CGROUP_PARENTS if path not in before.get("cgroup_parents", [])])
        for path in (namespace, directory / "podman", directory / "before.json"):
            path.unlink(missing_ok=True)
        for name in other_labs(module, directory, gone=True):
            (directory / LABS / name).unlink(missing_ok=True)
        for path in (mount_dir, directory / LABS, directory):
            if path.exists():
                path.rmdir()
    module.exit_json(changed=changed, podman="")


def register(module: AnsibleModule, directory: Path) -> None:
    """Note that a lab uses the namespace, before it has any container."""
    (directory / LABS).mkdir(mode=0o700, exist_ok=True)
    (directory / LABS / module.params["lab"]).write_text(module.params["checkout"])


def other_labs(module: AnsibleModule, directory: Path, gone: bool = False) -> list[str]:
    """Return the other labs that are noted, whose checkout is there, or, with `gone`, is not there any more."""
    notes = sorted((directory / LABS).iterdir()) if (directory / LABS).is_dir() else []
    others = [note for note in notes if note.name != module.params["lab"]]
    return [note.name for note in others if gone is not Path(note.read_text() or "/").is_dir()]


@contextmanager
def alone() -> Iterator[None]:
    """Let one lab at a time make or remove the namespace."""
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def containers_left(module: AnsibleModule, podman: Path) -> bool:
    """Return whether containers of any lab are left; podman keeps one list of them, so they share the namespace."""
    if not podman.exists():
        return False
    _, out, _ = module.run_command([str(podman), "ps", "--all", "--quiet"])
    return bool(out.split())


def remove_cgroups(parents: list[str]) -> None:
    """Remove podman's empty parent cgroups; the kernel refuses while something lives there, and that is right."""
    for parent in map(Path, parents):
        if not parent.exists():
            continue
        inner = sorted((path for path in parent.rglob("*") if path.is_dir()), reverse=True)
        for path in [*inner, parent]:
            try:
                path.rmdir()
            except OSError:
                break


def main() -> None:
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    directory = Path(module.params["directory"])
    with alone():
        if module.params["state"] == "present":
            present(module, directory)
        absent(module, directory)


if __name__ == "__main__":
    main()
