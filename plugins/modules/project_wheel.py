#!/usr/bin/python
"""Build the wheel of this project on the controller, once for each state of its sources."""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: project_wheel
short_description: Build the wheel of Rackweave and its trainer
description:
  - Builds a wheel from the checkout, without its dependencies, in a directory named after a digest of the sources. The
    same sources are never built twice, and nothing is written into the checkout's source tree.
options:
  checkout: {description: Directory of the checkout., type: path, required: true}
  directory: {description: Where wheels are kept., type: path, required: true}
attributes:
  check_mode: {support: full, description: Says whether it would build; RV(wheel) may not exist then.}
author: Rackweave
"""
EXAMPLES = r"""
- name: Build the project's wheel
  rackweave.cluster.project_wheel:
    checkout: "{{ rackweave_checkout }}"
    directory: "{{ rackweave_checkout }}/.cache/project"
  delegate_to: localhost
  run_once: true
"""
RETURN = r"""
wheel: {description: Path of the wheel., returned: success, type: str}
digest: {description: Digest of the sources., returned: success, type: str}
"""
SPEC = {"checkout": {"type": "path", "required": True}, "directory": {"type": "path", "required": True}}
FILES = ("pyproject.toml", "README.md", "LICENSE")
PACKAGES = ("plugins/module_utils/rackweave", "trainer")


def sources(checkout: Path) -> list[Path]:
    """Return the files that a wheel is made of, relative to the checkout, in a fixed order."""
    found = [Path(name) for name in FILES if (checkout / name).exists()]
    for package in PACKAGES:
        found += [path.relative_to(checkout) for path in (checkout / package).rglob("*.py")]
    return sorted(found)


def digest_of(checkout: Path, files: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        content = (checkout / path).read_bytes()
        digest.update(f"{path}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:16]


def build(module: AnsibleModule, checkout: Path, files: list[Path], target: Path) -> None:
    """Build in a copy of the sources; the finished wheel is moved into place at the end."""
    work = Path(tempfile.mkdtemp(prefix="rackweave-wheel-"))
    try:
        for path in files:
            (work / "source" / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(checkout / path, work / "source" / path)
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(work / "wheel")]
        code, out, err = module.run_command([*command, str(work / "source")])
        if code:
            lines = err.strip().splitlines() or ["no message"]
            module.fail_json(msg=f"pip could not build the project's wheel: {lines[-1]}", stdout=out, stderr=err)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(target, ignore_errors=True)
        shutil.move(str(work / "wheel"), str(target))
    finally:
        shutil.rmtree(work, ignore_errors=True)


def main() -> None:
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    checkout, directory = Path(module.params["checkout"]), Path(module.params["directory"])
    files = sources(checkout)
    digest = digest_of(checkout, files)
    target = directory / digest
    due = not list(target.glob("rackweave-*.whl"))
    if due and not module.check_mode:
        build(module, checkout, files, target)
    wheels = sorted(target.glob("rackweave-*.whl"))
    module.exit_json(changed=due, digest=digest, wheel=str(wheels[0]) if wheels else "")


if __name__ == "__main__":
    main()
