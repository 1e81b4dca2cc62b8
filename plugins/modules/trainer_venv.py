#!/usr/bin/python
"""A Python environment for the trainer, made on the node that runs this."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: trainer_venv
short_description: Make the Python environment of the trainer
description:
  - Makes a virtual environment with the node's own Python and installs pinned packages and the project's wheel. A stamp
    in the environment says what it was made from; nothing happens while that is the same.
  - Another package list makes the environment anew; another project wheel only replaces the project.
options:
  path: {description: Directory of the environment., type: path, required: true}
  python: {description: Interpreter that the environment is made with., type: str, default: python3}
  packages: {description: Requirements with pinned versions., type: list, elements: str, required: true}
  find_links: {description: Directories or addresses with further wheels., type: list, elements: str, default: []}
  index_url: {description: Package index; empty for pip's own setting; V(none) for no index., type: str, default: ""}
  extra_index_urls: {description: Further package indexes., type: list, elements: str, default: []}
  project_wheel:
    description: Path of the project's wheel on the node; empty leaves the project out.
    type: str
    default: ""
  project_digest: {description: Digest of the project's sources., type: str, default: ""}
  ca_bundle: {description: Authorities that pip trusts; empty for pip's own., type: str, default: ""}
  cache_dir: {description: Where pip keeps downloads; empty for none., type: str, default: ""}
attributes:
  check_mode: {support: full, description: Says what is due.}
author: Rackweave
"""
EXAMPLES = r"""
- name: Make the trainer's environment
  rackweave.cluster.trainer_venv:
    path: /mnt/shared/venv
    packages: [numpy==2.2.6]
"""
RETURN = r"""
due: {description: What had to be done (packages, project)., returned: success, type: list, elements: str}
"""
SPEC = {
    "path": {"type": "path", "required": True},
    "python": {"type": "str", "default": "python3"},
    "packages": {"type": "list", "elements": "str", "required": True},
    "find_links": {"type": "list", "elements": "str", "default": []},
    "index_url": {"type": "str", "default": ""},
    "extra_index_urls": {"type": "list", "elements": "str", "default": []},
    "project_wheel": {"type": "str", "default": ""},
    "project_digest": {"type": "str", "default": ""},
    "ca_bundle": {"type": "str", "default": ""},
    "cache_dir": {"type": "str", "default": ""},
}
STAMP = ".rackweave-runtime.json"
NO_INDEX = "none"
# Operators are compiled when they are first used, not at installation; a CPU node has no compiler for them.
ENVIRONMENT = {"DS_BUILD_OPS": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}


def wanted_stamp(params: dict[str, object], version: str) -> dict[str, str]:
    """Return what the environment shall be made from: the Python version, the package list, the project."""
    packages = json.dumps([version, sorted(params["packages"])])
    return {
        "packages": hashlib.sha256(packages.encode()).hexdigest()[:16],
        "project": str(params["project_digest"]),
    }


def read_stamp(path: Path) -> dict[str, str]:
    stamp = path / STAMP
    if not stamp.exists() or not (path / "bin/python").exists():
        return {}
    try:
        return dict(json.loads(stamp.read_text()))
    except ValueError:  # cut off while it was written: the environment is not finished
        return {}


def sources(params: dict[str, Any]) -> list[str]:
    """Return pip's arguments that say where packages come from."""
    arguments = [f"--find-links={entry}" for entry in params["find_links"]]
    if params["index_url"] == NO_INDEX:  # otherwise pip asks a public index for every package, and waits for each
        arguments.append("--no-index")
    elif params["index_url"]:
        arguments.append(f"--index-url={params['index_url']}")
    arguments += [f"--extra-index-url={entry}" for entry in params["extra_index_urls"]]
    if params["ca_bundle"]:
        arguments.append(f"--cert={params['ca_bundle']}")
    return [*arguments, f"--cache-dir={params['cache_dir']}" if params["cache_dir"] else "--no-cache-dir"]


class Pip:
    """pip of the environment with the site's sources of packages."""

    def __init__(self, module: AnsibleModule, path: Path) -> None:
        self._module = module
        self._command = [str(path / "bin/python"), "-m", "pip", "install", "--quiet", *sources(module.params)]

    def install(self, *arguments: str) -> None:
        code, out, err = self._module.run_command([*self._command, *arguments], environ_update=ENVIRONMENT)
        if code:
            errors = [line for line in err.splitlines() if line.startswith("ERROR")] or err.strip().splitlines()
            message = errors[-1] if errors else "no message"
            self._module.fail_json(msg=f"pip could not install {arguments[-1]}: {message}", stdout=out, stderr=err)


def python_version(module: AnsibleModule) -> str:
    code, out, _ = module.run_command([module.params["python"], "-c", "import sys; print(sys.version.split()[0])"])
    if code:
        module.fail_json(msg=f"trainer_runtime_python '{module.params['python']}' does not run on this node")
    return str(out).strip()


def make(module: AnsibleModule, path: Path, due: list[str], stamp: dict[str, str]) -> None:
    (path / STAMP).unlink(missing_ok=True)
    if "packages" in due:
        shutil.rmtree(path, ignore_errors=True)
        code, _, err = module.run_command([module.params["python"], "-m", "venv", str(path)])
        if code:
            module.fail_json(msg=f"could not make the virtual environment {path}: {err.strip()[-300:]}")
        packages = module.params["packages"]
        pip = Pip(module, path)
        # torch comes first: a resolver that is left alone may take another build of it for its dependants.
        for package in [entry for entry in packages if entry.startswith("torch")]:
            pip.install(package)
        pip.install(*packages)
    if module.params["project_wheel"]:
        Pip(module, path).install("--no-deps", "--force-reinstall", module.params["project_wheel"])
    (path / STAMP).write_text(json.dumps(stamp))


def main() -> None:
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    path = Path(module.params["path"])
    if module.check_mode and not shutil.which(module.params["python"]):
        module.exit_json(changed=True, due=["packages", "project"])
    stamp = wanted_stamp(module.params, python_version(module))
    found = read_stamp(path)
    due = [key for key in ("packages", "project") if found.get(key) != stamp[key]]
    if due and not module.check_mode:
        make(module, path, due, stamp)
    module.exit_json(changed=bool(due), due=due)


if __name__ == "__main__":
    main()
