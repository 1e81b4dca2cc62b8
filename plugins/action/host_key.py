"""Action plugin: compare a node's SSH host key with the known_hosts file, and replace it with consent."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from ansible.plugins.action import ActionBase

from ..module_utils.rackweave.cli.json_files import replace_file
from ..module_utils.rackweave.errors import RackweaveError
from ..module_utils.rackweave.rebuild.host_key import (
    decide,
    known_hosts_file,
    known_keys,
    names_of,
    parse_keys,
    replaced,
)

ARGUMENT_SPEC = {
    "host": {"type": "str", "required": True},
    "address": {"type": "str", "required": True},
    "port": {"type": "int", "default": 22},
    "known_hosts": {"type": "str", "default": ""},
    "ssh_arguments": {"type": "str", "default": ""},
    "expected": {"type": "str", "default": ""},
    "accept_ok": {"type": "bool", "default": False},
    "timeout_s": {"type": "int", "default": 30},
}
SCAN_S = 5
USERS_FILE = "~/.ssh/known_hosts"


class ActionModule(ActionBase):
    """Scan, compare, replace the lines of this one host."""

    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        _, args = self.validate_argument_spec(ARGUMENT_SPEC)
        path = Path(os.path.expanduser(args["known_hosts"] or known_hosts_file(args["ssh_arguments"], USERS_FILE)))
        names = names_of(args["address"], args["port"], [args["host"]])
        try:
            text = path.read_text(encoding="utf-8") if path.exists() else ""
            known = known_keys(text, names)
            # A public key that was given needs no look at the node, which may be behind a jump host.
            given = parse_keys(args["expected"])
            presented = given or ([] if known.certified else scan(args["address"], args["port"], args["timeout_s"]))
            decision = decide(args["host"], known, presented, args["expected"], args["accept_ok"])
            if decision.replace and not self._task.check_mode:
                path.parent.mkdir(parents=True, exist_ok=True)
                replace_file(str(path), replaced(text, names, decision.keys))
        except (RackweaveError, OSError) as exc:
            return {**result, "failed": True, "msg": str(exc)}
        fingerprints = [key.fingerprint for key in presented]
        return {
            **result,
            "changed": decision.replace,
            "msg": decision.words,
            "fingerprints": fingerprints,
            "file": str(path),
        }


def scan(address, port, timeout_s):
    """Return the host keys that a machine presents, which may still be starting; none where it does not answer in time.

    Raises:
        OSError: if there is no ssh-keyscan on this machine.
    """
    command = ["ssh-keyscan", "-T", str(SCAN_S), "-p", str(port), address]
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=4 * SCAN_S)
        except subprocess.TimeoutExpired:
            return ()
        keys = parse_keys(done.stdout)
        if keys or time.monotonic() > deadline:
            return keys
        time.sleep(1)
