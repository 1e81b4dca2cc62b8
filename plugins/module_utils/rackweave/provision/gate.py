"""What may be done to a node now: consent, a running job, a container; and how that is reported.

One decision for every disruptive change, so that no role invents its own. Whether Slurm has work on the node is found
out elsewhere; here only its answer is judged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..errors import ProvisionError

_CONTAINERS = ("docker", "podman", "container", "containerd", "lxc", "systemd-nspawn", "oci")


def is_container(virtualization: Mapping[str, object]) -> bool:
    """Return whether the facts ``virtualization_type`` and ``virtualization_tech_guest`` say: inside a container."""
    guest = virtualization.get("virtualization_tech_guest") or ()
    names = set(guest) if isinstance(guest, (list, tuple, set)) else {str(guest)}
    if virtualization.get("virtualization_role") == "guest":
        names.add(str(virtualization.get("virtualization_type")))
    return bool(names.intersection(_CONTAINERS))


def reboot_decision(
    reasons: Sequence[str],
    *,
    consent: bool,
    consent_variable: str,
    disruptive_ok: bool,
    container: bool,
    deferred: bool = False,
    rebooted: bool = False,
) -> dict[str, object]:
    """Return what to do about a needed reboot: ``action`` and one sentence.

    ``action`` is ``none`` (nothing to do), ``skip`` (a container cannot), ``pending`` (a job runs there), ``report``
    (no consent), ``again`` (this run rebooted the node already), ``defer`` (to the one reboot of the run) or
    ``reboot``.

    Args:
        reasons: why a reboot is due.
        consent: the value of the variable named `consent_variable`.
        consent_variable: its name, for the sentence.
        disruptive_ok: whether Slurm has no work on the node.
        container: whether the node is a container.
        deferred: whether the run collects the reasons of all roles and reboots at its end.
        rebooted: whether this run has rebooted the node.
    """
    why = "; ".join(reasons)
    if not reasons:
        return {"action": "none", "message": "no reboot is due"}
    if container:
        return {"action": "skip", "message": f"a container cannot reboot into another kernel or driver: {why}"}
    if not disruptive_ok:
        return {"action": "pending", "message": f"reboot due, Slurm has work on the node: {why}"}
    if not consent:
        return {"action": "report", "message": f"reboot due ({why}); set {consent_variable} to let the role do it"}
    if rebooted:
        return {"action": "again", "message": f"this run rebooted the node once; run again to reboot it for: {why}"}
    if deferred:
        return {"action": "defer", "message": f"reboot due at the end of this run: {why}"}
    return {"action": "reboot", "message": f"rebooting once: {why}"}


def collected_reboot(reboots: Mapping[str, Mapping[str, object]], *, disruptive_ok: bool) -> dict[str, object]:
    """Return what to do about the reboots that roles left to the end of a run: ``action``, ``message``, ``roles``.

    Args:
        reboots: role to its decision (``action``; an empty mapping where nothing is due), ``reasons``, ``timeout_s``
            and ``boot_time_command``. One reboot serves all of them, so the reasons of a role without consent are named
            too where another one has it.
        disruptive_ok: whether Slurm has no work on the node now.
    """
    reboots = {role: row for role, row in reboots.items() if row}
    why = [f"{role}: {reason}" for role, row in sorted(reboots.items()) for reason in _words(row.get("reasons"))]
    consenting = [row for row in reboots.values() if row.get("action") == "defer"]
    result: dict[str, object] = {"action": "none", "message": "no reboot is due", "roles": sorted(reboots)}
    if not consenting:
        return result
    if not disruptive_ok:
        return {**result, "action": "pending", "message": f"reboot due, Slurm has work on the node: {'; '.join(why)}"}
    commands = [str(row["boot_time_command"]) for row in consenting if row.get("boot_time_command")]
    timeouts = [int(str(row["timeout_s"])) for row in consenting]
    return {
        **result,
        "action": "reboot",
        "message": f"rebooting once: {'; '.join(why)}",
        "timeout_s": max(timeouts),
        "boot_time_command": commands[0] if commands else "",
    }


def _words(value: object) -> list[str]:
    return [str(word) for word in value] if isinstance(value, (list, tuple)) else []


WORK_ON_THE_NODE = "Slurm does not report the node drained and idle"


def pending_entries(
    role: str, changes: Mapping[str, object], *, disruptive_ok: bool, reason: str = ""
) -> list[dict[str, str]]:
    """Return one entry for each change that was held back on a node with work.

    Args:
        role: the role that would have made the changes.
        changes: what would change, as a sentence fragment, to whether it would.
        disruptive_ok: whether the changes were made; then nothing is pending.
        reason: why they were held back, where it is not work on the node.
    """
    if disruptive_ok:
        return []
    why = reason or WORK_ON_THE_NODE
    return [{"role": role, "change": what, "reason": why} for what, would in sorted(changes.items()) if would]


def guarded(role: str, what: Iterable[str], reason: str) -> list[dict[str, str]]:
    """Return records of steps that were left out because the place cannot do them; never an empty reason."""
    if not reason:
        raise ProvisionError(f"role {role} skipped {', '.join(what)} without a reason")
    return [{"role": role, "skipped": step, "reason": reason} for step in what]


def unproven_warning(role: str, system: str, proven: Sequence[str]) -> str | None:
    """Return a warning if the role never ran on this system, such as ``debian 12``; ``None`` if it did."""
    if system in proven:
        return None
    ran_on = ", ".join(proven) if proven else "no system so far"
    return f"role {role} is unproven on {system}: it ran on {ran_on} only; read its support table before relying on it"
