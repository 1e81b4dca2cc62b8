#!/usr/bin/python
"""Build the node image once with mmdebstrap and keep it in podman's image store."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.rackweave.lab.image import (
    HOST_KEYS_UNIT,
    SSHD_SETTINGS,
    ImageRecipe,
    image_key,
    import_changes,
    mmdebstrap_arguments,
    removable_images,
)

DOCUMENTATION = r"""
module: lab_image
short_description: Build or remove the node image of the embedded cluster
description:
  - Builds a root file system with mmdebstrap and imports it into podman under a tag that is a digest of the recipe, so
    that another package list makes another image and an equal one is never built twice.
options:
  podman: {description: Path of the podman command to use., type: path, required: true}
  suite: {description: Debian suite., type: str, required: true}
  packages: {description: Packages on top of the minimal base., type: list, elements: str, required: true}
  mirror: {description: Debian mirror; empty for mmdebstrap's default., type: str, default: ""}
  repository: {description: Image name without tag., type: str, default: localhost/rackweave-node}
  state:
    description: Whether the image shall exist; V(absent) removes the images of the repository that no container uses.
    type: str
    choices: [present, absent]
    default: present
attributes:
  check_mode: {support: full, description: Says whether it would build.}
author: Rackweave
"""
EXAMPLES = r"""
- name: Build the node image
  rackweave.cluster.lab_image:
    podman: /run/rackweave-lab/podman
    suite: bookworm
    packages: [systemd, openssh-server, python3]
"""
RETURN = r"""
image: {description: Name and tag of the image., returned: success, type: str}
seconds: {description: Time the build took., returned: when built, type: float}
"""

SPEC = {
    "podman": {"type": "path", "required": True},
    "suite": {"type": "str", "required": True},
    "packages": {"type": "list", "elements": "str", "required": True},
    "mirror": {"type": "str", "default": ""},
    "repository": {"type": "str", "default": "localhost/rackweave-node"},
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
}


def build(module: AnsibleModule, recipe: ImageRecipe, image: str) -> None:
    """Write the root file system beside a temporary directory and import it; nothing stays behind but the image."""
    work = Path(tempfile.mkdtemp(prefix="rackweave-image-"))
    try:
        (work / "rackweave-host-keys.service").write_text(HOST_KEYS_UNIT)
        (work / "rackweave.conf").write_text(SSHD_SETTINGS)
        tar = str(work / "root.tar")
        code, out, err = module.run_command(["mmdebstrap", *mmdebstrap_arguments(recipe, str(work), tar)])
        if code:
            module.fail_json(
                msg=f"mmdebstrap could not build the node image ({recipe.suite}): {_last_error(err)}",
                stdout=out,
                stderr=err,
            )
        code, out, err = module.run_command([module.params["podman"], "import", *import_changes(), tar, image])
        if code:
            module.fail_json(msg=f"podman could not import the node image: {_last_error(err)}", stdout=out, stderr=err)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _last_error(text: str) -> str:
    lines = (
        [line for line in text.splitlines() if line.startswith(("E:", "Error"))] or text.splitlines() or ["no message"]
    )
    return lines[-1]


def remove(module: AnsibleModule) -> None:
    podman, repository = module.params["podman"], module.params["repository"]
    rows = "{{.Repository}}:{{.Tag}} {{.ID}}"
    _, out, _ = module.run_command([podman, "images", "--no-trunc", "--format", rows])
    _, used, _ = module.run_command([podman, "ps", "--all", "--format", "{{.ImageID}}"])
    images = removable_images(out, used, repository)
    if images and not module.check_mode:
        module.run_command([podman, "rmi", *images], check_rc=True)
    module.exit_json(changed=bool(images), image="")


def main() -> None:
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    if module.params["state"] == "absent":
        remove(module)
    recipe = ImageRecipe(module.params["suite"], tuple(module.params["packages"]), module.params["mirror"])
    image = f"{module.params['repository']}:{image_key(recipe)}"
    code, _, _ = module.run_command([module.params["podman"], "image", "exists", image])
    if code == 0:
        module.exit_json(changed=False, image=image)
    start = time.monotonic()
    if not module.check_mode:
        build(module, recipe, image)
    module.exit_json(changed=True, image=image, seconds=round(time.monotonic() - start, 1))


if __name__ == "__main__":
    main()
