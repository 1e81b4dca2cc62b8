"""What several lines of Slurm's commands and daemons say together about nodes, jobs and the controller."""

from __future__ import annotations

from collections.abc import Iterator

from .evidence import Finding, Hit, Store, expand_hosts, finding_of
from .lifecycle import Lifecycle

# Reasons that slurmctld itself gives to a node that it lost; ``sinfo -R`` cuts them after 20 characters.
_LOST = ("Not responding", "Node unexpectedly re")
# ``scontrol show node`` prints a node over fewer lines than these.
_RECORD_LINES = 40


def _not_responding(store: Store, life: Lifecycle) -> Iterator[Finding]:
    """slurmctld misses a node; a node that answers again is no fault."""
    state: dict[str, tuple[str, Hit]] = {}
    for hit in store.of("fact:not_responding"):
        words = hit.groups.get("state") or hit.groups.get("state2") or ""
        for host in expand_hosts(hit.groups.get("hosts") or hit.groups.get("hosts2") or ""):
            previous = state.get(host)
            if previous is None or hit.last >= previous[1].last:
                state[host] = (words, hit)
    for host, (words, hit) in sorted(state.items()):
        if words == "not responding":
            yield finding_of("slurm.node_fail", hit, 53, hosts={host}, severity="error")


def _controller(store: Store, life: Lifecycle) -> Iterator[Finding]:
    lost = store.of("slurm.controller_unreachable/any")
    back = store.of("fact:controller_back")
    if lost and not any(hit.last > max(h.last for h in lost) for hit in back):
        yield finding_of("slurm.controller_unreachable", lost[0], 70)


def _held_job(store: Store, life: Lifecycle) -> Iterator[Finding]:
    """A held job's record names the node on which its script could not start."""
    held = store.of("slurm.requeued_held/reason")
    hosts = {host for hit in store.of("fact:batch_host") for host in expand_hosts(hit.groups["hosts"])}
    if held and len(hosts) == 1:
        yield finding_of("slurm.requeued_held", held[0], 24, hosts=hosts)


def _held_by(store: Store, life: Lifecycle) -> Iterator[Finding]:
    """Rows of ``sinfo -R`` name the node behind a held job or a step that could not be killed."""
    for hit in store.of("fact:drain_row"):
        reason = hit.groups.get("reason", "")
        hosts = set(expand_hosts(hit.groups.get("hosts", "")))
        if reason.startswith("Prolog"):
            yield finding_of("slurm.requeued_held", hit, 24, hosts=hosts)
        elif reason.startswith("Kill task"):
            yield finding_of("slurm.unkillable_step", hit, 27, hosts=hosts)


def _failed_job(store: Store, life: Lifecycle) -> Iterator[Finding]:
    """A job that ended with its node: the printing node only reports, but other lines may tell which node was lost."""
    lines = store.of("fact:node_failure_line")
    if not lines:
        return
    mine = {host for hit in store.of("fact:job_nodes") for host in expand_hosts(hit.groups["hosts"])}
    lost = _lost(store)
    hosts = lost & mine if mine else lost
    if not mine and len(hosts) > 1:
        hosts = set()  # rows of a whole cluster stay for weeks
    yield finding_of("slurm.node_fail", lines[0], 31, hosts=hosts)


def _lost(store: Store) -> set[str]:
    """Nodes that ``sinfo``, ``sinfo -R`` or ``scontrol show node`` call lost."""
    lost: set[str] = set()
    for hit in store.of("fact:drain_row"):
        if hit.groups.get("reason", "").startswith(_LOST):
            lost.update(expand_hosts(hit.groups["hosts"]))
    for hit in store.of("fact:down_row"):
        lost.update(expand_hosts(hit.groups["hosts"]))
    records = store.of("fact:node_record")
    for hit in store.of("fact:node_lost"):
        above = [
            record
            for record in records
            if record.line.source == hit.line.source and 0 <= hit.line.position - record.line.position < _RECORD_LINES
        ]
        if above:
            lost.update(expand_hosts(above[-1].groups["hosts"]))
    return lost


RULES = (_not_responding, _failed_job, _controller, _held_by, _held_job)
