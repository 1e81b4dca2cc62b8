#!/usr/bin/python
"""Look at, read, make or write the munge key of a node."""

from __future__ import annotations

import base64
import hashlib
import os
import pwd
import tempfile
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.rackweave.slurm.munge import SlurmError, decode_key

DOCUMENTATION = r"""
module: munge_key
short_description: Look at, read, make or write the munge key of a node
description:
  - Without O(key), O(generate) and O(read) it only says whether there is a key, its checksum, and whether Slurm daemons
    run that use it.
  - A key is written atomically with mode 0400 and the owner that munged has.
options:
  path: {description: The key file., type: path, default: /etc/munge/munge.key}
  key: {description: The key in base64; written if the node has another one., type: str}
  generate: {description: Return a new random key without writing it; needs O(read)., type: bool, default: false}
  read: {description: Return the key itself. Only together with C(no_log)., type: bool, default: false}
  owner: {description: User that munged runs as., type: str, default: munge}
attributes:
  check_mode: {support: full, description: Says whether it would write.}
author: Rackweave
"""
EXAMPLES = r"""
- name: Look at the munge key
  rackweave.cluster.munge_key:
  register: __slurm_munge
"""
RETURN = r"""
checksum: {description: SHA-256 of the key; null where there is none., returned: success, type: str}
in_use: {description: Whether slurmd or slurmctld runs on the node., returned: success, type: bool}
key: {description: The key in base64., returned: when O(read), type: str}
"""
SPEC = {
    "path": {"type": "path", "default": "/etc/munge/munge.key"},
    "key": {"type": "str", "no_log": True},
    "generate": {"type": "bool", "default": False},
    "read": {"type": "bool", "default": False},
    "owner": {"type": "str", "default": "munge"},
}
KEY_BYTES = 128
DAEMONS = ("slurmd", "slurmctld", "slurmdbd")


def daemons_run() -> bool:
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if (entry / "comm").read_text().strip() in DAEMONS:
                return True
        except OSError:  # it ended meanwhile
            continue
    return False


def write_key(module: AnsibleModule, path: Path, content: bytes) -> bool:
    """Write the key if content, mode or owner differ; return whether they did."""
    try:
        owner = pwd.getpwnam(module.params["owner"])
    except KeyError:
        if module.check_mode:
            return True
        module.fail_json(msg=f"user {module.params['owner']} does not exist; munge must be installed first")
    if path.exists():
        status = path.stat()
        kept = (status.st_mode & 0o777, status.st_uid, status.st_gid) == (0o400, owner.pw_uid, owner.pw_gid)
        if kept and path.read_bytes() == content:
            return False
    if not module.check_mode:
        handle, temporary = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chown(temporary, owner.pw_uid, owner.pw_gid)
        os.chmod(temporary, 0o400)
        os.replace(temporary, path)
    return True


def main() -> None:
    module = AnsibleModule(
        argument_spec=SPEC, supports_check_mode=True, mutually_exclusive=[("key", "generate")], no_log=False
    )
    path = Path(module.params["path"])
    content = path.read_bytes() if path.exists() else None
    changed = False
    try:
        wanted = decode_key(module.params["key"]) if module.params["key"] else None
    except SlurmError as exc:
        module.fail_json(msg=str(exc))
    if module.params["generate"]:
        content = os.urandom(KEY_BYTES)
    if wanted is not None:
        changed = write_key(module, path, wanted)
        content = wanted
    result = {
        "changed": changed,
        "checksum": hashlib.sha256(content).hexdigest() if content is not None else None,
        "in_use": daemons_run(),
    }
    if module.params["read"]:
        result["key"] = base64.b64encode(content).decode() if content is not None else ""
    module.exit_json(**result)


if __name__ == "__main__":
    main()
