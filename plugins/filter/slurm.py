"""Filters of the slurm role: plain data to the pure package and back."""

from __future__ import annotations

import hashlib

from ansible.errors import AnsibleFilterError

from ..module_utils.rackweave.errors import RackweaveError
from ..module_utils.rackweave.slurm.hostlist import compress
from ..module_utils.rackweave.slurm.munge import KeyState, decide_key, decode_key


def munge_key_decision(states, controller, given="", rotate_ok=False):
    """Return ``{action, host, reason}``: where the cluster's munge key comes from.

    Args:
        states: host to the result of the module ``munge_key`` (checksum, in_use).
        controller: host of slurmctld.
        given: key of the inventory in base64, or empty.
        rotate_ok: consent to change a key in use.
    """
    try:
        checksum = hashlib.sha256(decode_key(given)).hexdigest() if given else None
        known = {host: KeyState(state.get("checksum"), bool(state.get("in_use"))) for host, state in states.items()}
        decision = decide_key(known, controller, checksum, rotate_ok)
    except RackweaveError as exc:
        raise AnsibleFilterError(str(exc)) from exc
    return {"action": decision.action, "host": decision.host, "reason": decision.reason}


class FilterModule:
    """Names of the filters."""

    def filters(self):
        return {"munge_key_decision": munge_key_decision, "slurm_hostlist": compress}
