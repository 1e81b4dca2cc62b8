"""Conclusions that need more than one line: facts of the tables joined into findings."""

from __future__ import annotations

import ipaddress
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

from . import rerun, slurm_rules, versions
from .evidence import Finding, Hit, Store, finding_of, to_finding, to_finding_as
from .lifecycle import Lifecycle


def joined(store: Store, life: Lifecycle) -> Iterator[Finding]:
    """Every finding that several hits make together."""
    for rule in _RULES:
        yield from rule(store, life)


def _watchdog(store: Store, life: Lifecycle) -> Iterator[Finding]:
    """Sequence numbers of PyTorch's watchdog: the lowest is behind; different operations at one number disagree."""
    hits = store.of("fact:watchdog")
    by_rank: dict[int, tuple[int, str, Hit]] = {}
    for hit in hits:
        # The global rank is in front of the line; a progress bar may hide it, then only the group's rank is left.
        rank = hit.line.rank if hit.line.rank is not None else hit.groups.get("inline")
        if rank is not None:
            by_rank.setdefault(int(rank), (int(hit.groups["seq"]), hit.groups["op"], hit))
    if len(by_rank) < 2:
        return
    lowest = min(seq for seq, _, _ in by_rank.values())
    highest = max(seq for seq, _, _ in by_rank.values())
    if lowest != highest:
        behind = {rank for rank, (seq, _, _) in by_rank.items() if seq == lowest}
        if len(behind) <= max(1, len(by_rank) // 2):
            first = by_rank[min(behind)][2]
            yield finding_of("hang.collective_timeout", first, 43, ranks=behind)
        return
    operations = Counter(op for _, op, _ in by_rank.values())
    unheard = _unheard(set(by_rank), store) or _missing_member(by_rank)
    if len(operations) == 1 and unheard:
        yield finding_of("hang.collective_timeout", hits[0], 43, ranks=unheard)
    if len(operations) > 1:
        rarest, count = operations.most_common()[-1]
        odd = {rank for rank, (_, op, _) in by_rank.items() if op == rarest} if count * 2 < len(by_rank) else set()
        yield finding_of("hang.desync", hits[0], 41, ranks=odd)


def _unheard(waiting: set[int], store: Store) -> set[int]:
    """The few ranks that do not wait where all others of a group do: they are waited for."""
    told = [int(hit.groups.get("n") or hit.groups["n2"]) for hit in store.of("fact:world_size")]
    world = max([*told, max(waiting) + 1])
    silent = world - len(waiting)
    if len(waiting) < 4 or not 0 < silent * 4 <= world:
        return set()
    return set(range(world)) - waiting


# The rank within a group stands behind the global one, and counts as a prefix.
_IN_GROUP = re.compile(r"\[(?:PG [^\]]{0,80} )?Rank (?P<local>\d{1,7})\]")


def _missing_member(waiting: dict[int, tuple[int, str, Hit]]) -> set[int]:
    """The ranks between the members of one smaller group that wait; the lines tell the numbers within the group."""
    told = {rank: _IN_GROUP.search(hit.line.full) for rank, (_, _, hit) in waiting.items()}
    pairs = sorted((int(match["local"]), rank) for rank, match in told.items() if match)
    if len(pairs) < 3 or len(pairs) < len(waiting):
        return set()
    (first, base), (last, top) = pairs[0], pairs[-1]
    if last == first or (top - base) % (last - first):
        return set()
    stride = (top - base) // (last - first)
    start = base - first * stride
    if stride < 1 or start < 0 or any(rank != start + local * stride for local, rank in pairs):
        return set()  # several groups, or one whose ranks are not evenly spaced
    members = {start + local * stride for local in range(last + 1)}
    missing = members - set(waiting)
    return missing if len(missing) * 4 <= len(members) else set()


def _behind(store: Store, life: Lifecycle) -> Iterator[Finding]:
    """Ranks that only hear of a time-out and have enqueued less than those who wait: the collective is theirs."""
    waiting = {hit.line.rank for hit in store.of("fact:watchdog")} - {None}
    if not waiting:
        return
    groups: dict[str, dict[int, tuple[int, Hit]]] = defaultdict(dict)
    for hit in store.of("fact:pg_status"):
        if hit.line.rank is not None:
            groups[hit.groups["pg"]][hit.line.rank] = (int(hit.groups["enqueued"]), hit)
    for told in groups.values():
        reached = [number for rank, (number, _) in told.items() if rank in waiting]
        late = {rank for rank, (number, _) in told.items() if reached and rank not in waiting and number < min(reached)}
        if late and len(late) * 2 <= len(told):
            yield finding_of("hang.collective_timeout", told[min(late)][1], 43, ranks=late)


def _nan_rank(store: Store, life: Lifecycle) -> Iterator[Finding]:
    for hit in store.of("fact:nan_rank"):
        finding = to_finding(hit)
        yield finding_of("num.nan", hit, 20, set(finding.ranks), set(finding.hosts))


_SRUN_LABEL = re.compile(r"\s*\d+: ")


def _node_rank(store: Store, life: Lifecycle) -> Iterator[Finding]:
    """Several nodes start with the same node rank: it was expanded where the script was written."""
    hits = store.of("fact:node_rank")
    nnodes = max((int(hit.groups["nnodes"]) for hit in store.of("fact:nnodes")), default=0)
    if not hits or nnodes == 1:
        return
    # One command is often shown twice, by a shell's trace and by a launcher, or again after a restart; only the same
    # rank from two hosts proves anything, or one rank alone in the output of all tasks of an srun (with its labels).
    places: dict[str, set[str]] = defaultdict(set)
    for hit in hits:
        places[hit.groups["node_rank"]].update([hit.line.host] if hit.line.host else [])
    labelled = [hit for hit in hits if hit.line.host is None and _SRUN_LABEL.match(hit.line.full)]
    alone = len(places) == 1 and nnodes > 1 and any(hit.count >= nnodes for hit in labelled)
    if alone or max(len(names) for names in places.values()) >= 2:
        yield finding_of("launch.node_rank_early_expansion", hits[0], 14)


def _mounts(store: Store, life: Lifecycle) -> Iterator[Finding]:
    """A mount that stopped answering and did not come back."""
    back = [(hit.line.host, _target(hit), hit.last) for hit in store.of("fact:mount_back")]
    for hit in store.of("fact:mount_lost"):
        target = _target(hit)
        # A request that timed out names no target: it is over when any connection of the host is restored after it,
        # since a target that stays away has a line of its own.
        returned = any(
            host == hit.line.host and (name == target or not target) and last > hit.last for host, name, last in back
        )
        if not returned:
            yield finding_of("storage.unresponsive", hit, 19, hosts=[hit.line.host] if hit.line.host else [])


def _target(hit: Hit) -> str:
    return next((value for key, value in hit.groups.items() if key.startswith("target")), "").rstrip(",")


def _segfault(store: Store, life: Lifecycle) -> Iterator[Finding]:
    """A crash whose stack passes through the communication library."""
    frames = store.of("fact:nccl_frame")
    for crash in store.of("fact:segv"):
        near = [
            frame
            for frame in frames
            if frame.line.source == crash.line.source and -5 <= frame.last - crash.line.position <= 120
        ]
        if near:
            finding = to_finding(crash)
            hosts = set(finding.hosts)
            yield finding_of("nccl.segfault", crash, 40, set(finding.ranks), hosts)
            return


def _grace(store: Store, life: Lifecycle) -> Iterator[Finding]:
    """Killed while an exit save was still being written."""
    if not life.open_save() or life.saving is None:
        return
    names = ("fact:forced_kill", "launch.sigkill_unconfirmed/srun", "fact:sigkill_entry")
    kills = [hit for name in names for hit in store.of(name)]
    ended = store.of("slurm.time_limit/slurm") + store.of("slurm.preempted/slurm") + store.of("fact:cancelled")
    told = [hit for hit in ended if hit.line.source != life.saving.source or hit.line.position <= life.saving.position]
    late = [hit for hit in kills if hit.last > life.saving.position]
    by_limit = store.of("slurm.time_limit/slurm") or store.of("slurm.preempted/slurm")
    signalled = life.signalled is not None and life.signalled.position <= life.saving.position
    if late and (told or by_limit or signalled or _asked(life.saving.full)):
        yield finding_of("launch.grace_exceeded", late[0], 16)
    elif by_limit and by_limit[0].last > life.saving.position and _asked(life.saving.full):
        yield finding_of("launch.grace_exceeded", by_limit[0], 16)


def _asked(text: str) -> bool:
    lowered = text.lower()
    return any(word in lowered for word in ("signal", "usr1", "sigterm", "exit", "final", "emergency", "limit"))


def _rates(store: Store, life: Lifecycle) -> Iterator[Finding]:
    """A port that runs slower, or on fewer lanes, than the same line says it should."""
    for hit in store.of("fact:rates"):
        said = hit.groups
        same = said["unit"][0].lower() == said["unit2"][0].lower()
        if same and float(said["is"]) < 0.95 * float(said["was"]):
            yield finding_of("net.link_degraded", hit, 80, hosts=[hit.line.host] if hit.line.host else [])


# Counters of a port of which one increase more says that its link went away; any other counts damaged frames.
_DOWN_COUNTERS = ("link_down", "carrier_changes", "link_error_recovery")


def _counters(store: Store, life: Lifecycle) -> Iterator[Finding]:
    """Counters of a port that grew, and lanes that are missing."""
    for hit in store.of("fact:counter"):
        if int(hit.groups["is"]) > int(hit.groups["was"]):
            down = hit.groups["name"].lower().startswith(_DOWN_COUNTERS)
            yield to_finding_as(hit, "net.link_flap" if down else "net.link_degraded", 13 if down else 80)
    for hit in store.of("fact:lanes"):
        lanes = hit.groups.get("is") or hit.groups["is2"]
        if 0 < int(lanes) < int(hit.groups.get("was") or hit.groups["was2"]):
            yield to_finding_as(hit, "net.link_degraded", 80)


def _clocks(store: Store, life: Lifecycle) -> Iterator[Finding]:
    """A GPU that runs at less than three quarters of the clock that the same line expects."""
    for hit in store.of("fact:clock"):
        if float(hit.groups["is"]) < 0.75 * float(hit.groups["was"]):
            yield to_finding_as(hit, "perf.straggler", 84)


def _step_time(store: Store, life: Lifecycle) -> Iterator[Finding]:
    """Words that tell both step times; a third more is a slow-down."""
    for hit in store.of("fact:step_time"):
        try:
            before, after = float(hit.groups["was"]), float(hit.groups["is"])
        except ValueError:
            continue
        if after > 1.35 * before > 0:
            yield finding_of("perf.slowdown", hit, 84)


def _fresh_start(store: Store, life: Lifecycle) -> Iterator[Finding]:
    """A run that starts at zero although it was restarted."""
    hits = store.of("fact:fresh_start")
    if hits and life.restarted:
        yield finding_of("ckpt.silent_fresh_start", hits[0], 21)


def _overlap(store: Store, life: Lifecycle) -> Iterator[Finding]:
    """A second asynchronous save is scheduled before the first one is reported as saved."""
    saved = {hit.groups["iteration"]: hit.line.position for hit in store.of("fact:async_saved")}
    scheduled = store.of("fact:async_scheduled")
    for earlier, later in zip(scheduled, scheduled[1:]):
        done = saved.get(earlier.groups["iteration"])
        if earlier.line.source == later.line.source and (done is None or done > later.line.position):
            yield finding_of("ckpt.async_overlap", later, 80)
            return


def _gloo_remote(store: Store, life: Lifecycle) -> Iterator[Finding]:
    if not store.of("net.bootstrap_unreachable/gloo"):
        return
    for hit in store.of("fact:gloo_remote"):
        yield to_finding_as(hit, "net.bootstrap_unreachable", 33)


_RULES: tuple[Callable[[Store, Lifecycle], Iterator[Finding]], ...] = (
    _watchdog,
    _behind,
    _nan_rank,
    _node_rank,
    _mounts,
    _segfault,
    _grace,
    _fresh_start,
    _step_time,
    _clocks,
    _counters,
    _rates,
    _overlap,
    _gloo_remote,
    *slurm_rules.RULES,
    versions.mismatch,
    rerun.verdicts,
)


def named_peers(findings: list[Finding]) -> set[str]:
    """Whom several printers accuse: many naming one mean that one; one naming many means itself."""
    by_peer: dict[str, set[str]] = defaultdict(set)
    by_printer: dict[str, set[str]] = defaultdict(set)
    for finding in findings:
        for peer in finding.peers:
            printer = finding.printed_by or f"#{min(finding.ranks, default=finding.source)}"
            by_peer[peer].add(printer)
            by_printer[printer].add(peer)
    if not by_peer:
        return set()
    if len(by_printer) == 1 and len(by_peer) > 1:
        printer = next(iter(by_printer))
        return {printer} if not printer.startswith("#") else set(by_peer)
    most = max(len(printers) for printers in by_peer.values())
    best = [peer for peer, printers in by_peer.items() if len(printers) == most]
    if len(best) == 1 or most > 1:
        return set(best[:1]) if most > 1 else set(best)
    first = min((f for f in findings if f.peers), key=lambda f: f.position)
    return {first.peers[0]}


def is_address(host: str) -> bool:
    """A number of the network instead of a name."""
    try:
        ipaddress.ip_address(host.split("%")[0])
    except ValueError:
        return False
    return True


def is_virtual(address: str) -> bool:
    """An address of a local bridge or the loopback: it names nobody."""
    try:
        parsed = ipaddress.ip_address(address.split("%")[0])
    except ValueError:
        return address in ("localhost", "docker0", "virbr0")
    bridges = ("172.17.0.0/16", "192.168.122.0/24", "10.88.0.0/16")
    return parsed.is_loopback or (parsed.version == 4 and any(parsed in ipaddress.ip_network(net) for net in bridges))
