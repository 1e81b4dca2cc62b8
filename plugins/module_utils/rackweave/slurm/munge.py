"""Which munge key a cluster shall have: the one it has, and a new one only if it has none."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import RackweaveError

MINIMUM_KEY_BYTES = 32  # munged(8): a shorter key is refused
MAXIMUM_KEY_BYTES = 1024
# Nodes outside of a run that are asked for the cluster's key. One that answers is enough; a dead one costs a time-out.
MOST_ASKED = 8
PLACEHOLDERS = ("changeme", "change-me", "change_me", "replace", "example", "placeholder", "secret", "todo")


class SlurmError(RackweaveError):
    """A Slurm configuration that cannot work, or a change that needs consent."""


@dataclass(frozen=True)
class KeyState:
    """The key of one node: SHA-256 of it (None: no key), and whether a Slurm daemon runs there and uses it."""

    checksum: str | None
    in_use: bool


@dataclass(frozen=True)
class KeyDecision:
    """Where the key comes from: ``read`` it on `host`, ``generate`` it there, or take the ``given`` one."""

    action: str
    host: str
    reason: str


def nodes_to_ask(states: Mapping[str, KeyState], nodes: Sequence[str]) -> list[str]:
    """Return the nodes outside of a run that must be asked whether they use a key; none where the run's own hosts tell.

    A controller that was installed anew knows nothing of the key its cluster goes on using, and in a run limited to it
    no other host would say so. At most :data:`MOST_ASKED`, spread over the list: one dead rack is not all of them.

    Args:
        states: of the controller and of every node of this run.
        nodes: all nodes of the cluster.
    """
    if any(state.in_use and state.checksum for state in states.values()):
        return []
    outside = [node for node in nodes if node not in states]
    step = -(-len(outside) // MOST_ASKED) or 1
    return outside[::step]


def decide_key(
    states: Mapping[str, KeyState],
    controller: str,
    given_checksum: str | None,
    rotate_ok: bool,
    silent: Sequence[str] = (),
) -> KeyDecision:
    """Return where the cluster's key comes from.

    Args:
        states: of the controller, of every node of this run, and of the nodes outside that were asked and answered.
        controller: name of the Slurm controller; it must be among `states`.
        given_checksum: SHA-256 of a key from the inventory, if there is one.
        rotate_ok: consent to change a key that running daemons use.
        silent: nodes outside of this run that were asked and gave no answer.

    Raises:
        SlurmError: if daemons run with different keys, or with another key than the given one, without consent; or if
            no daemon is known to run and more nodes gave no answer than are known, so that they may use another key.
    """
    used: dict[str, list[str]] = {}
    for host, state in sorted(states.items()):
        if state.in_use and state.checksum:
            used.setdefault(state.checksum, []).append(host)
    if given_checksum is not None:
        others = sorted(host for checksum, hosts in used.items() if checksum != given_checksum for host in hosts)
        if others and not rotate_ok:
            raise SlurmError(
                f"slurm_munge_key differs from the key that running daemons use on {', '.join(others)}: "
                "a new key stops every job step's authentication; set slurm_munge_rotate_ok to change it"
            )
        return KeyDecision("given", controller, "slurm_munge_key of the inventory")
    if used:
        return _key_in_use(used, controller, rotate_ok)
    if len(silent) > len(set(states) - {controller}) and not rotate_ok:
        raise SlurmError(
            f"no Slurm daemon runs on the controller {controller}, so nodes may use another munge key than its, and "
            f"{', '.join(silent)} gave no answer: add a node that answers to the run, name the cluster's key in "
            "slurm_munge_key, or set slurm_munge_rotate_ok to go on without asking"
        )
    if states[controller].checksum:
        return KeyDecision("read", controller, "the controller has it")
    owners = sorted(host for host, state in states.items() if state.checksum)
    if owners:
        return KeyDecision("read", owners[0], "the only nodes with a key have it")
    return KeyDecision("generate", controller, "no node has a key")


def _key_in_use(used: Mapping[str, list[str]], controller: str, rotate_ok: bool) -> KeyDecision:
    """Choose among keys that running daemons use: a single one, or the controller's if most nodes agree with it."""
    if len(used) == 1:
        (hosts,) = used.values()
        return KeyDecision("read", controller if controller in hosts else hosts[0], "running daemons use it")
    agreeing = next((hosts for hosts in used.values() if controller in hosts), [])
    if agreeing and (rotate_ok or len(agreeing) == max(map(len, used.values()))):
        return KeyDecision("read", controller, "the controller and most nodes use it")
    nodes = "; ".join(", ".join(hosts) for hosts in used.values())
    raise SlurmError(
        f"Slurm daemons run with {len(used)} different munge keys ({nodes}) "
        f"and the controller {controller} is not among the majority: they are not one cluster; "
        "set slurm_munge_rotate_ok to give all of them the controller's key"
    )


def decode_key(text: str) -> bytes:
    """Return the bytes of a key written in base64.

    Raises:
        SlurmError: for something that is not base64, a placeholder, or a length munge refuses.
    """
    stripped = text.strip()
    if any(word in stripped.lower() for word in PLACEHOLDERS) and len(stripped) < 2 * MINIMUM_KEY_BYTES:
        raise SlurmError(
            "slurm_munge_key is a placeholder; leave it empty, or set a real key: head -c 128 /dev/urandom | base64 -w0"
        )
    try:
        key = base64.b64decode("".join(stripped.split()), validate=True)
    except (binascii.Error, ValueError):
        raise SlurmError(
            "slurm_munge_key is not base64; make one with: head -c 128 /dev/urandom | base64 -w0"
        ) from None
    if not MINIMUM_KEY_BYTES <= len(key) <= MAXIMUM_KEY_BYTES:
        raise SlurmError(
            f"slurm_munge_key has {len(key)} bytes; munge takes {MINIMUM_KEY_BYTES} to {MAXIMUM_KEY_BYTES}"
        )
    return key
