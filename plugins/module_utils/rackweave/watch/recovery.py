"""From the verdicts of a watch to what is done about them; journal and ledger are the memory. No input or output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import DocumentError
from ..run.exit_codes import SAVED
from .classes import CLASSES
from .journal import Journal, entry_line
from .policy import DRAIN, OBSERVE, RETRY_ELSEWHERE, Decision, Situation, Switches, blames, decide, named_hosts
from .strikes import Ledger
from .verdict import Verdict

REASON_PREFIX = "rackweave: "  # of every drain that is ours; only such a drain may be taken back by us
LONGEST_REASON = 200


@dataclass(frozen=True)
class Ended:
    """How one attempt ended: its verdict document, when it began, whether the batch script asked for a new start."""

    document: Mapping[str, Any]
    started: str
    requeued: bool

    @property
    def evidence(self) -> str:
        """Names this attempt for ever: Slurm may give a job id again, a time with it is unique."""
        return f"{self.document['run']}/{self.document['attempt'] or self.document['job_id']}@{self.started}"

    @property
    def ok(self) -> bool:
        """Whether it ended well: to its end, or with a save that was asked for."""
        return bool(self.document["state"] == "COMPLETED" or self.document["code"] == SAVED)


@dataclass(frozen=True)
class Setting:
    """What holds for all decisions of a call; time both as text and in seconds of the epoch.

    Attributes:
        nodes: the nodes of the inventory; a log may name any host, and only these are ever excluded or drained.
        standing_drains: nodes that Slurm has as drained by a part of us, also by their own health check; hours since.
        leave_suspected: whether the run may go on with fewer nodes rather than with one that is only suspected.
    """

    run: str
    nodes: tuple[str, ...]
    switches: Switches
    restart_budget: int
    time: str
    time_s: float
    job_is_alive: bool = False
    dry_run: bool = False
    leave_suspected: bool = False
    standing_drains: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """What is to be done now, and the lines that the journal gains.

    Attributes:
        drain: node to Slurm reason.
        leave: nodes that a new start must avoid; ``suspected`` of them are only that.
        resubmit: the job will not come back by itself (or must not, where it was), so it is submitted anew.
        stuck: a person has to look; nothing more is done.
    """

    action: str
    why: str
    drain: dict[str, str] = field(default_factory=dict)
    wanted_drain: tuple[str, ...] = ()
    repair: tuple[str, ...] = ()
    leave: tuple[str, ...] = ()
    suspected: tuple[str, ...] = ()
    checkpoints_back: int = 0
    stop_job: bool = False
    resubmit: bool = False
    stuck: bool = False
    notify: bool = False
    frozen: bool = False
    evidence: str = ""
    diagnosis_class: str = "healthy"
    ledger: Ledger = field(default_factory=Ledger)
    lines: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """What a task returns; ledger and lines are written by the caller."""
        shown = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in ("ledger", "lines")}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in shown.items()}


def to_verdict(document: Mapping[str, Any], nodes: Sequence[str]) -> Verdict:
    """Return the verdict that a ``verdict.json`` holds; ranks that it blames stand for their hosts, if they are ours.

    Raises:
        DocumentError: if its class is not of the closed list.
    """
    name = str(document.get("diagnosis_class"))
    if name not in CLASSES:
        raise DocumentError(f"the verdict of attempt {document.get('attempt')} has an unknown class {name!r}")
    culprit = str(document.get("culprit", "none"))
    hosts = [part[5:] for part in culprit.split(",") if part.startswith("host:")] or list(document.get("hosts") or [])
    known = filter(None, (_own_name(host, nodes) for host in hosts))
    named = ",".join(f"host:{host}" for host in dict.fromkeys(known)) or "none"
    return Verdict(name, named, severity=str(document["severity"]), alarm=CLASSES[name].alarm)


def _own_name(host: str, nodes: Sequence[str]) -> str | None:
    """Return the node that a log means, written with or without its domain; None where two could be meant."""
    if host in nodes:
        return host
    short = host.partition(".")[0]
    meant = [name for name in nodes if name.partition(".")[0] == short]
    return meant[0] if len(meant) == 1 else None


def recover(ended: Sequence[Ended], journal: Journal, ledger: Ledger, setting: Setting) -> Plan:
    """Decide on every attempt that was not decided on, oldest first; the last decision is what is done.

    An earlier attempt of the same job counts for strikes and budgets, but what followed it is past.
    """
    plan = Plan(OBSERVE, "nothing new to decide", ledger=ledger)
    lines: list[str] = []
    drains: dict[str, str] = {}
    for index, one in enumerate(ended):
        if one.ok:
            continue
        last = index == len(ended) - 1
        decision = _decide(one, journal, plan.ledger, setting, last, len(drains))
        if decision is None:
            continue
        plan = _plan(one, decision, plan.ledger, setting, last)
        drains.update(plan.drain)
        line = _decision_line(one, plan, decision, setting)
        lines.append(line)
        journal = _with(journal, one, decision, setting, line)
    return replace(plan, drain=drains, lines=tuple(lines), notify=plan.notify or bool(drains))


def _decide(one: Ended, journal: Journal, ledger: Ledger, setting: Setting, last: bool, drains: int) -> Decision | None:
    """The policy's decision on one attempt, or None where it was decided before."""
    own = journal.of(setting.run)
    if one.evidence in own.decided():
        return None
    situation = Situation(
        evidence=one.evidence,
        cluster_nodes=len(setting.nodes),
        ledger=ledger,
        switches=setting.switches,
        restarts=own.restarts(),
        restart_budget=setting.restart_budget,
        retries=tuple(own.retries().items()),
        recent_drains=(*_drain_ages_h(journal, setting), *([0.0] * drains)),
        drained=tuple(setting.standing_drains),
        job_is_alive=last and setting.job_is_alive,
    )
    return decide(to_verdict(one.document, setting.nodes), situation)


def _drain_ages_h(journal: Journal, setting: Setting) -> list[float]:
    """Hours since each drain of ours: those of the journal, and those that others of us made and Slurm still has."""
    known = journal.drained_since(setting.time_s - 3600)
    others = [age for node, age in setting.standing_drains.items() if node not in known]
    return [*journal.drain_ages_h(setting.time_s), *others]


def _plan(one: Ended, decision: Decision, ledger: Ledger, setting: Setting, last: bool) -> Plan:
    verdict = to_verdict(one.document, setting.nodes)
    if blames(verdict.diagnosis_class):
        ledger = ledger.blame(named_hosts(verdict), one.evidence, verdict.diagnosis_class, setting.time_s)
    out_of_use = (*decision.drain, *decision.drained)
    leaving = tuple(dict.fromkeys((*decision.exclude, *out_of_use)))
    comes_back = one.requeued and setting.job_is_alive
    moved = comes_back and _must_move(decision, setting)
    waits = last and moved and not setting.switches.stop_own_job
    resubmit = last and decision.requeue and (not comes_back or moved) and not waits
    stuck = last and decision.action != OBSERVE and (not decision.requeue or waits)
    kept = last and comes_back and not setting.switches.stop_own_job
    newest_taken = kept and not moved and decision.checkpoints_back > 0
    return Plan(
        action=decision.action,
        why=decision.reason + _in_spite(one, decision, waits, newest_taken),
        drain={node: _reason(one) for node in decision.drain},
        wanted_drain=decision.wanted_drain,
        repair=decision.repair,
        leave=leaving,
        suspected=() if decision.action == DRAIN else tuple(h for h in leaving if h not in out_of_use),
        checkpoints_back=decision.checkpoints_back if resubmit else 0,
        stop_job=last and comes_back and setting.switches.stop_own_job and (moved or stuck),
        resubmit=resubmit,
        stuck=stuck,
        notify=decision.notify or stuck or newest_taken,
        frozen=decision.frozen,
        evidence=one.evidence,
        diagnosis_class=verdict.diagnosis_class,
        ledger=ledger,
    )


def _must_move(decision: Decision, setting: Setting) -> bool:
    """Whether a job that starts again by itself must not do so where, and from what, it would.

    It keeps its nodes: with one of them drained it would wait for ever. It takes its newest checkpoint, and where
    suspicion is enough to leave a node, it gets that node again. These two alone stop a job only with consent.
    """
    leaves = setting.leave_suspected and decision.action == RETRY_ELSEWHERE and bool(decision.exclude)
    goes_back = decision.checkpoints_back > 0 and decision.requeue
    return bool(decision.drain or decision.drained) or (setting.switches.stop_own_job and (leaves or goes_back))


def _in_spite(one: Ended, decision: Decision, waits: bool, newest_taken: bool) -> str:
    """What a missing consent leaves undone, as the end of a sentence."""
    job_id = one.document["job_id"]
    if waits:
        nodes = ", ".join((*decision.drain, *decision.drained))
        return (
            f"; but job {job_id} started again by itself and would wait for {nodes}, drained now, for ever, and "
            f"training_job_stop_ok is off: cancel it (scancel {job_id}), then plan and launch the run without {nodes}"
        )
    if newest_taken:
        return (
            f"; but job {job_id} started again by itself, from its newest checkpoint, and training_job_stop_ok is off: "
            "to go back one, cancel it, rename that checkpoint and launch the run again"
        )
    return ""


def _reason(one: Ended) -> str:
    document = one.document
    return f"{REASON_PREFIX}{document['diagnosis_class']} in attempt {document['attempt']} of {document['run']}"[
        :LONGEST_REASON
    ]


def _decision_line(one: Ended, plan: Plan, decision: Decision, setting: Setting) -> str:
    """One journal line; what decided is copied into it, since attempt directories may be cleaned up."""
    return entry_line(
        setting.time,
        setting.time_s,
        setting.run,
        "decision",
        plan.why,
        evidence=one.evidence,
        job_id=one.document["job_id"],
        diagnosis_class=plan.diagnosis_class,
        culprit=one.document["culprit"],
        sentence=one.document["sentence"],
        action=decision.action,
        requeue=decision.requeue,
        requeued_by_job=one.requeued,
        resubmit=plan.resubmit,
        stop_job=plan.stop_job,
        drain=list(plan.drain),
        wanted_drain=list(decision.wanted_drain),
        leave=list(plan.leave),
        suspected=list(plan.suspected),
        repair=list(decision.repair),
        checkpoints_back=plan.checkpoints_back,
        frozen=decision.frozen,
        stuck=plan.stuck,
        dry_run=setting.dry_run,
    )


def _with(journal: Journal, one: Ended, decision: Decision, setting: Setting, line: str) -> Journal:
    """The journal as it will be, for the next attempt of the same call; its own dry run counts here."""
    item = {
        "run": setting.run,
        "kind": "decision",
        "evidence": one.evidence,
        "diagnosis_class": one.document["diagnosis_class"],
        "requeue": decision.requeue,
    }
    return Journal((*journal.entries, item)) if line else journal
