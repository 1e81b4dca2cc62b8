"""The next move of a rebuild, from what Slurm shows. What is ours is told from what is others' by name.

* Our **drain** has a reason that begins with :data:`REASON`; only such a drain is ever resumed. A drain that another
  part of Rackweave made (its reason begins with ``rackweave``) or that Slurm itself made is taken over; one that a
  person or another program made is refused without consent.
* Our **reservation** of a node is named by :func:`reservation_name`. It has no end (Slurm makes a year of that): a
  rebuild that died leaves the node closed to other jobs, not open and unproved.
* Our **hold** of a waiting job is marked in the job's AdminComment before it is set, and unmarked after it is released.

Each call returns one move; the caller makes it, looks again, and asks again. So every prefix of the moves is a state
from which the same calls lead to the same end.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Union

from .view import JobView, NodeView, Situation

REASON = "rackweave-rebuild"
FAMILY = "rackweave"
IN_WORK = f"{REASON}: in work"
JOB_PREFIX = "rackweave-"
STEPS = ("check", "begin", "reserve", "resume", "finish", "fail")
SLURM_USERS = frozenset({"slurm", "slurmctld"})
# Reasons that slurmctld itself gives, for sites where its user is another one (slurmctld sources, 22.05 to 25.05).
SLURM_REASONS = ("Not responding", "Node unexpectedly rebooted", "Low RealMemory", "Low CPUs", "Kill task failed",
                 "Prolog error", "gres/", "Invalid Reg", "reboot timed out", "Duplicate jobid")  # fmt: skip
_MARK = re.compile(r"(?:;\s*)?rackweave-rebuild\[(?P<nodes>[^\]]*)\]")
LONGEST_REASON = 240


@dataclass(frozen=True)
class Act:
    """One change: `kind` for programs, `arguments` of scontrol or scancel, and the same in words."""

    kind: str
    program: str
    arguments: tuple[str, ...]
    words: str


@dataclass(frozen=True)
class Wait:
    """Nothing to do now; look again."""

    words: str


@dataclass(frozen=True)
class Refuse:
    """This cannot go on; one sentence with the way out."""

    words: str


@dataclass(frozen=True)
class Done:
    """The step has nothing left to do."""

    words: str = ""


Move = Union[Act, Wait, Refuse, Done]


@dataclass(frozen=True)
class Settings:
    """What the operator allows, and how long is waited.

    Args:
        node: the node that is rebuilt.
        user: owner of our training jobs; with root the only one who may use the reservation.
        cancel_ok: consent to end a job that still runs on the node after `drain_wait_s`.
        adopt_ok: consent to take over a drain that somebody else made.
        drain_wait_s: seconds that a running job gets to end by itself.
        save_wait_s: seconds that a job of ours then gets to save and exit, before it is cancelled.
        answer_wait_s: seconds that the node's slurmd gets to answer after the node was resumed.
        reason: of step ``fail``: why the node stays drained.
        keep_hold: whether the waiting job stays held at the end, since its batch script is out of date.
    """

    node: str
    user: str
    cancel_ok: bool = False
    adopt_ok: bool = False
    drain_wait_s: float = 600.0
    save_wait_s: float = 120.0
    answer_wait_s: float = 60.0
    reason: str = ""
    keep_hold: bool = False


@dataclass(frozen=True)
class Progress:
    """What one call of a step has behind it: seconds, jobs asked to save, and the neighbour to reserve with."""

    elapsed_s: float = 0.0
    asked: frozenset[str] = field(default_factory=frozenset)
    neighbour: str | None = None


def reservation_name(node: str) -> str:
    """Return the name of our reservation of a node."""
    return f"{REASON}-{node}"


def drain_reason(text: str) -> str:
    """Return a reason of ours: one line, no brackets (Slurm adds who and when in brackets), at most 240 characters."""
    plain = " ".join(text.replace("[", "(").replace("]", ")").replace("=", " ").split())
    whole = f"{REASON}: {plain}"
    return whole if len(whole) <= LONGEST_REASON else whole[: LONGEST_REASON - 3] + "..."


def is_ours(node: NodeView) -> bool:
    """Whether the node is out of service by a decision of this rebuild or an earlier one."""
    return node.draining and node.reason.startswith(REASON)


def may_take_over(node: NodeView) -> bool:
    """Whether a drain needs nobody's consent: Rackweave's own, Slurm's own, or one without a reason."""
    by_slurm = node.reason_by in SLURM_USERS or node.reason.startswith(SLURM_REASONS)
    return not node.reason or by_slurm or node.reason.startswith(FAMILY)


def marked(comment: str) -> tuple[str, ...]:
    """Return the nodes for whose rebuild a job is held by us, from its AdminComment."""
    match = _MARK.search(comment)
    return tuple(filter(None, match["nodes"].split(","))) if match else ()


def with_mark(comment: str, nodes: Sequence[str]) -> str:
    """Return an AdminComment that names these nodes, everything else in it kept."""
    rest = _MARK.sub("", comment).strip()
    mark = f"{REASON}[{','.join(nodes)}]" if nodes else ""
    return f"{rest}; {mark}" if rest and mark else rest or mark


def next_move(step: str, seen: Situation, settings: Settings, progress: Progress) -> Move:
    """Return the next move of a step; what each step reaches is in docs/swap.md.

    Raises:
        KeyError: for a step that is none of :data:`STEPS`.
    """
    return _STEPS[step](seen, settings, progress)


def _check(seen: Situation, settings: Settings, _progress: Progress) -> Move:
    """Refuse what must not be touched, before anything is changed."""
    node, name = seen.node, settings.node
    if node is not None and node.withheld and not may_take_over(node) and not settings.adopt_ok:
        by = f" by {node.reason_by}" if node.reason_by else ""
        return Refuse(
            f"{name} is out of service{by}: '{node.reason}'. Only our own drains are resumed, so nothing was changed; "
            f"ask who did it, then resume it yourself or give -e rebuild_adopt_drain_ok=true"
        )
    ours = reservation_name(name)
    foreign = [it for it in seen.reservations if it.active and name in it.nodes and not it.name.startswith(REASON)]
    if foreign:
        return Refuse(
            f"{name} lies in the reservation '{foreign[0].name}', which is not ours, so the acceptance run could not "
            "get one of its own; nothing was changed: end that one, then run again"
        )
    other = [it for it in seen.reservations if it.name.startswith(REASON) and it.name != ours and name in it.nodes]
    if other:
        return Refuse(
            f"{name} is the neighbour in another rebuild's reservation '{other[0].name}'; nothing was changed: wait "
            f"for that rebuild, or, if it died, run it again"
        )
    return Done()


def _begin(seen: Situation, settings: Settings, progress: Progress) -> Move:
    """Reach: drained by us, no job there, our waiting job held, no reservation left from a run that died."""
    refused = _check(seen, settings, progress)
    if isinstance(refused, Refuse):
        return refused
    node, name = seen.node, settings.node
    if node is not None and not is_ours(node):
        return _drain(name, IN_WORK, f" (it was '{node.reason}')" if node.withheld and node.reason else "")
    if node is not None and node.reason != IN_WORK:
        # The reason of an earlier failure ends here, so that a later one cannot be taken for it.
        return _drain(name, IN_WORK, f" (it was '{node.reason}')")
    held = _hold(seen, settings)
    if held is not None:
        return held
    running = seen.running_on(name)
    if running:
        return _clear(running, settings, progress)
    if node is not None and node.busy:
        return _patience(f"Slurm still cleans up after a job on {name}", settings.drain_wait_s, progress)
    ours = seen.reservation(reservation_name(name))
    return _delete(ours.name) if ours is not None else Done(f"{name} is drained by us and no job runs there")


def _hold(seen: Situation, settings: Settings) -> Act | None:
    """Mark, then hold, each job of ours that waits for the node; one that somebody else holds is left alone."""
    for job in seen.waiting_for(settings.node):
        if not _is_our_job(job, settings.user):
            continue
        nodes = marked(job.comment)
        if settings.node not in nodes:
            if job.held and not nodes:
                continue
            return _comment(job, (*nodes, settings.node), f"note in job {job.job_id} that we hold it")
        if not job.held:
            return Act("hold", "scontrol", ("hold", job.job_id), f"hold job {job.job_id} ({job.name}), which waits")
    return None


def _clear(running: Sequence[JobView], settings: Settings, progress: Progress) -> Move:
    """Wait for the jobs on the node; end them only with consent, ours with a chance to save first."""
    job = running[0]
    if job.reservation == reservation_name(settings.node):
        return Act("cancel", "scancel", (job.job_id,), f"cancel job {job.job_id}, a test of an earlier run of ours")
    named = f"job {job.job_id} ({job.name}) of {job.user}"
    if progress.elapsed_s < settings.drain_wait_s:
        return Wait(f"{named} runs on {settings.node}; it may end by itself within {settings.drain_wait_s:.0f} s")
    if not settings.cancel_ok:
        return Refuse(
            f"{named} still runs on {settings.node} after {settings.drain_wait_s:.0f} s; the node stays drained, so no "
            f"other job follows it: run again when it has ended, wait longer with -e rebuild_drain_wait_s=SECONDS, or "
            f"give -e rebuild_cancel_job_ok=true"
        )
    if _is_our_job(job, settings.user):
        if job.job_id not in progress.asked:
            command = ("--signal=USR1", "--batch", job.job_id)
            return Act("save", "scancel", command, f"ask {named} to save and exit")
        if progress.elapsed_s < settings.drain_wait_s + settings.save_wait_s:
            return Wait(f"{named} was asked to save and exit")
    return Act("cancel", "scancel", (job.job_id,), f"cancel {named}, by consent")


def _reserve(seen: Situation, settings: Settings, progress: Progress) -> Move:
    """Reach: a reservation of ours on the drained node, with a neighbour where one was idle."""
    name = settings.node
    ours = seen.reservation(reservation_name(name))
    if ours is not None:
        return Done(f"reservation {ours.name} on {', '.join(ours.nodes)}")
    if seen.node is None:
        return Refuse(f"Slurm does not know {name}: is it in the group gpu_nodes, and was slurm.conf written?")
    if not is_ours(seen.node):
        return Refuse(f"{name} is not drained by us any more, somebody resumed or drained it meanwhile: run again")
    nodes = [name] + ([progress.neighbour] if progress.neighbour else [])
    arguments = (
        "create",
        f"reservation={reservation_name(name)}",
        f"nodes={','.join(nodes)}",
        f"users=root,{settings.user}",
        "starttime=now",
        "duration=infinite",
    )
    return Act("reserve", "scontrol", arguments, f"reserve {' and '.join(nodes)} for the acceptance run")


def _resume(seen: Situation, settings: Settings, progress: Progress) -> Move:
    """Reach: the node takes jobs again, but inside our reservation only."""
    name, node = settings.node, seen.node
    if seen.reservation(reservation_name(name)) is None:
        return Refuse(
            f"there is no reservation {reservation_name(name)}, and without it {name} is not resumed: run again"
        )
    if node is None:
        return Refuse(f"Slurm does not know {name}: is it in the group gpu_nodes, and was slurm.conf written?")
    if node.draining and not is_ours(node):
        by = f" by {node.reason_by}" if node.reason_by else ""
        return Refuse(f"{name} was drained{by} during the rebuild: '{node.reason}'; only our own drain is resumed")
    if "INVALID_REG" in node.words:
        return Refuse(f"Slurm refuses what {name} registers with: '{node.reason}'; compare gres.conf with the node")
    if not node.responds or "UNKNOWN" in node.words:
        return _patience(f"{name} does not answer slurmctld", settings.answer_wait_s, progress, "journalctl -u slurmd")
    if node.draining or node.down:
        return Act("resume", "scontrol", ("update", f"nodename={name}", "state=resume"), f"resume {name}, reserved")
    return Done(f"{name} takes jobs of the reservation only")


def _finish(seen: Situation, settings: Settings, progress: Progress) -> Move:
    """Reach: the node in service, our job released, nothing of ours left. The reservation goes last."""
    name, node = settings.node, seen.node
    if node is not None and is_ours(node):
        return Act("resume", "scontrol", ("update", f"nodename={name}", "state=resume"), f"resume {name}")
    return _let_go(seen, settings) or Done(f"{name} is in service")


def _fail(seen: Situation, settings: Settings, progress: Progress) -> Move:
    """Reach: the node drained with the reason, nothing else of ours left."""
    reason = drain_reason(settings.reason or "the rebuild failed")
    node = seen.node
    foreign = node is not None and node.withheld and not may_take_over(node) and not settings.adopt_ok
    if node is not None and not foreign and (node.reason != reason or not node.draining):
        return Act(
            "drain",
            "scontrol",
            ("update", f"nodename={settings.node}", "state=drain", f"reason={reason}"),
            f"drain {settings.node}: {reason}",
        )
    return _let_go(seen, settings) or Done(f"{settings.node} stays drained: {reason}")


def _let_go(seen: Situation, settings: Settings) -> Act | None:
    """Release our holds for this node, end our tests, and delete our reservation, in this order."""
    for job in () if settings.keep_hold else seen.jobs:
        nodes = marked(job.comment)
        if settings.node not in nodes:
            continue
        left = tuple(node for node in nodes if node != settings.node)
        if job.held and job.waiting and not left:
            return Act("release", "scontrol", ("release", job.job_id), f"release job {job.job_id} ({job.name})")
        return _comment(job, left, f"take our note out of job {job.job_id}")
    ours = seen.reservation(reservation_name(settings.node))
    if ours is None:
        return None
    tests = [job for job in seen.jobs if job.reservation == ours.name]
    if tests:
        return Act("cancel", "scancel", (tests[0].job_id,), f"cancel job {tests[0].job_id}, a test that is left over")
    return _delete(ours.name)


def _drain(name: str, reason: str, was: str) -> Act:
    command = ("update", f"nodename={name}", "state=drain", f"reason={reason}")
    return Act("drain", "scontrol", command, f"drain {name}{was}")


def _delete(reservation: str) -> Act:
    return Act("delete", "scontrol", ("delete", f"reservation={reservation}"), f"delete reservation {reservation}")


def _comment(job: JobView, nodes: Sequence[str], words: str) -> Act:
    text = with_mark(job.comment, nodes)
    return Act("mark", "scontrol", ("update", f"jobid={job.job_id}", f"admincomment={text}"), words)


def _patience(words: str, most_s: float, progress: Progress, look: str = "") -> Move:
    if progress.elapsed_s < most_s:
        return Wait(words)
    return Refuse(f"{words} after {most_s:.0f} s" + (f"; look there with: {look}" if look else ""))


def _is_our_job(job: JobView, user: str) -> bool:
    return job.user == user and job.name.startswith(JOB_PREFIX)


_STEPS = {
    "check": _check,
    "begin": _begin,
    "reserve": _reserve,
    "resume": _resume,
    "finish": _finish,
    "fail": _fail,
}
