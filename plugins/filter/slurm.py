"""Filters of the slurm role: plain data to the pure package and back."""

from __future__ import annotations

import hashlib

from ansible.errors import AnsibleFilterError

from ..module_utils.rackweave.errors import RackweaveError
from ..module_utils.rackweave.provision.consents import drain_consents
from ..module_utils.rackweave.slurm.accounting import Accounting, database_statements
from ..module_utils.rackweave.slurm.accounting import slurmdbd_conf as conf_text
from ..module_utils.rackweave.slurm.cgroup import cgroup_complaint, parse_cgroup_facts
from ..module_utils.rackweave.slurm.config import SlurmSite, check_site
from ..module_utils.rackweave.slurm.hostlist import compress
from ..module_utils.rackweave.slurm.munge import KeyState, decide_key, decode_key, nodes_to_ask


def munge_key_decision(states, controller, given="", rotate_ok=False, asked=()):
    """Return ``{action, host, reason}``: where the cluster's munge key comes from.

    Args:
        states: host to the result of the module ``munge_key`` (checksum, in_use).
        controller: host of slurmctld.
        given: key of the inventory in base64, or empty.
        rotate_ok: consent to change a key in use.
        asked: results of a loop of ``munge_key`` over nodes outside of the run, unreachable ones included.
    """
    answers = {answer["item"]: answer for answer in asked if not answer.get("skipped")}
    silent = sorted(host for host, answer in answers.items() if answer.get("unreachable") or answer.get("failed"))
    answered = {host: answer for host, answer in answers.items() if host not in silent}
    try:
        checksum = hashlib.sha256(decode_key(str(given))).hexdigest() if given else None
        decision = decide_key(_key_states({**answered, **states}), controller, checksum, rotate_ok, silent)
    except RackweaveError as exc:
        raise AnsibleFilterError(str(exc)) from exc
    return {"action": decision.action, "host": decision.host, "reason": decision.reason}


def munge_nodes_to_ask(states, nodes):
    """Return the nodes outside of a run that must be asked whether they use a munge key.

    Args:
        states: host to the result of the module ``munge_key``, of the controller and of the hosts of the run.
        nodes: all nodes of the cluster.
    """
    return nodes_to_ask(_key_states(states), nodes)


def _key_states(states):
    return {host: KeyState(state.get("checksum"), bool(state.get("in_use"))) for host, state in states.items()}


def munge_key_complaint(key):
    """Return what is wrong with the key of the inventory, never with the key in it; empty for a good one."""
    try:
        decode_key(str(key))
    except RackweaveError as exc:
        return str(exc)
    return ""


def slurm_outside(nodes, waiting):
    """Return what waits for nodes outside of a limited run, as the changes of ``provision_record``.

    Args:
        nodes: nodes outside of the run that owe a restart of slurmd.
        waiting: keys of slurm.conf that a run over all nodes may add.
    """
    changes = {f"restart of slurmd on {compress(nodes)}": True} if nodes else {}
    return {**changes, f"{', '.join(waiting)} of slurm.conf": True} if waiting else changes


def slurm_settings_check(settings):
    """Return true if the settings of the inventory can become Slurm's files; fail with one sentence otherwise.

    Args:
        settings: arguments of :class:`SlurmSite` that need no document.
    """
    try:
        site = {**settings, "hosts": tuple(settings["hosts"])}
        check_site(SlurmSite(**{**site, "topology_block_sizes": tuple(settings["topology_block_sizes"])}))
    except RackweaveError as exc:
        raise AnsibleFilterError(str(exc)) from exc
    return True


def slurm_cgroup_complaint(text, parameters, settings):
    """Return why slurmd would not start with its cgroup plugin on a node; empty if it would.

    Args:
        text: kind of the file system at /sys/fs/cgroup, then the plugin files and the bus that exist.
        parameters: ``slurm_parameters``.
        settings: ``slurm_cgroup``.
    """
    try:
        return cgroup_complaint(parse_cgroup_facts(text), parameters, settings) or ""
    except RackweaveError as exc:
        raise AnsibleFilterError(str(exc)) from exc


def slurmdbd_conf(settings):
    """Return slurmdbd.conf for the mapping of :class:`Accounting`."""
    return _plain(conf_text, settings)


def slurm_database_statements(settings):
    """Return the SQL that makes database and user."""
    return _plain(database_statements, settings)


def _plain(function, settings):
    # A name or password of digits only is a number in YAML.
    texts = {key: value if key == "parameters" else str(value) for key, value in settings.items()}
    try:
        return function(Accounting(**texts))
    except RackweaveError as exc:
        raise AnsibleFilterError(str(exc)) from exc


class FilterModule:
    """Names of the filters."""

    def filters(self):
        return {
            "munge_key_complaint": munge_key_complaint,
            "munge_key_decision": munge_key_decision,
            "munge_nodes_to_ask": munge_nodes_to_ask,
            "slurm_cgroup_complaint": slurm_cgroup_complaint,
            "slurm_database_statements": slurm_database_statements,
            "slurm_drain_consents": drain_consents,
            "slurm_hostlist": compress,
            "slurm_outside": slurm_outside,
            "slurm_settings_check": slurm_settings_check,
            "slurmdbd_conf": slurmdbd_conf,
        }
