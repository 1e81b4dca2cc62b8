#!/usr/bin/python
"""Keep a directory of small text files as given; used for run files and reports on the shared file system."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: run_files
short_description: Keep a directory of small text files exactly as given
description:
  - Runs on a host that mounts the shared file system, as the user who owns the job; the controller never opens it.
  - Each file is replaced as a whole; a reader sees the old text or the new one.
options:
  path: {description: Absolute path of the directory; made where it is missing., type: path, required: true}
  files: {description: Text of each file by its path below the directory., type: dict, required: true}
  purge: {description: Whether other files below the directory are removed., type: bool, default: false}
  compare_only: {description: Only say whether the directory differs., type: bool, default: false}
attributes:
  check_mode: {support: full, description: Says what would change.}
author: Rackweave
"""
EXAMPLES = r"""
- name: Copy the plan of a run
  rackweave.cluster.run_files:
    path: /mnt/shared/runs/demo/plan
    files: {launch.sh: "#!/bin/bash\n"}
    purge: true
  become: true
  become_user: hpc
"""
RETURN = r"""
differs: {description: Whether the directory differed from the given files., returned: success, type: bool}
written: {description: Files that were written., returned: success, type: list, elements: str}
removed: {description: Files that were removed., returned: success, type: list, elements: str}
"""
SPEC = {
    "path": {"type": "path", "required": True},
    "files": {"type": "dict", "required": True},
    "purge": {"type": "bool", "default": False},
    "compare_only": {"type": "bool", "default": False},
}


def differing(directory: Path, files: dict[str, str]) -> list[str]:
    """Return the names whose text on disk is absent or another."""
    found = []
    for name, text in files.items():
        path = directory / name
        if not path.is_file() or path.read_bytes() != text.encode():
            found.append(name)
    return sorted(found)


def unwanted(directory: Path, files: dict[str, str]) -> list[str]:
    """Return the files below the directory that are not among the given ones."""
    if not directory.is_dir():
        return []
    present = {str(path.relative_to(directory)) for path in directory.rglob("*") if not path.is_dir()}
    return sorted(present - set(files))


def replace(path: Path, text: str) -> None:
    """Write a file beside its place and move it there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as stream:
        stream.write(text)
    os.chmod(part, 0o644)
    os.replace(part, path)


def main() -> None:
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    directory, files = Path(module.params["path"]), module.params["files"]
    outside = [name for name in files if Path(name).is_absolute() or ".." in Path(name).parts]
    if outside or not directory.is_absolute():
        module.fail_json(msg=f"{(outside or [str(directory)])[0]!r} does not name a file below an absolute directory")
    try:
        written = differing(directory, files)
        removed = unwanted(directory, files) if module.params["purge"] else []
        if not module.check_mode and not module.params["compare_only"]:
            directory.mkdir(parents=True, exist_ok=True)
            for name in written:
                replace(directory / name, files[name])
            for name in removed:
                (directory / name).unlink()
    except OSError as error:
        module.fail_json(
            msg=f"{error.filename or directory} cannot be written by uid {os.getuid()} ({error.strerror}); "
            "the shared directory must belong to the user who owns the job"
        )
    changed = bool(written or removed) and not module.params["compare_only"]
    module.exit_json(changed=changed, differs=bool(written or removed), written=written, removed=removed)


if __name__ == "__main__":
    main()
