"""What follows from a verdict: a table from class to action, budgets, switches, and the cap on drains.

A decision is advice: one actor requeues (``job.sbatch`` within ``SLURM_RESTART_COUNT``), one drains, and both only
where their switch is on. Nothing is decided twice on the same evidence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..errors import PlanError
from .classes import CLASSES
from .strikes import DRAIN_AT, REPAIR_AT, Ledger
from .verdict import Verdict

OBSERVE = "observe"
RETRY = "retry"
RETRY_ELSEWHERE = "retry_elsewhere"
DRAIN = "drain_and_requeue"
STOP = "stop"


@dataclass(frozen=True)
class Rule:
    """What one class leads to.

    Attributes:
        action: ``observe`` (notify only), ``retry``, ``retry_elsewhere`` (without the named node),
            ``drain_and_requeue`` (evidence of kernel, NVML or NIC) or ``stop`` (a retry cannot help).
        budget: how often this class may be retried within one run before it becomes ``stop``.
        checkpoints_back: 0 resumes from the last validated checkpoint, 1 from the one before it.
    """

    action: str
    budget: int = 0
    checkpoints_back: int = 0


_STOP = Rule(STOP)
_OBSERVE = Rule(OBSERVE)

RULES: dict[str, Rule] = {
    "healthy": _OBSERVE,
    "net.socket_fallback": _STOP,
    "net.ib_init_failed": Rule(RETRY_ELSEWHERE, 2),
    "net.plugin_load_failed": _OBSERVE,
    "net.gdr_inactive": _STOP,
    "net.gdr_partial": Rule(RETRY_ELSEWHERE, 1),
    "net.peermem_invalid_context": _OBSERVE,
    "net.qp_connect_failed": Rule(RETRY_ELSEWHERE, 2),
    "net.gid_config": Rule(RETRY_ELSEWHERE, 1),
    "net.retry_exceeded": Rule(RETRY_ELSEWHERE, 3),
    "net.local_protection": Rule(RETRY_ELSEWHERE, 1),
    "net.flush_cascade": Rule(RETRY, 2),
    "net.mr_reg_failed": Rule(RETRY_ELSEWHERE, 1),
    "net.link_down": Rule(DRAIN, 3),
    "net.link_flap": Rule(RETRY_ELSEWHERE, 3),
    "net.link_degraded": _OBSERVE,
    "net.nic_power": _OBSERVE,
    "net.bootstrap_unreachable": Rule(RETRY, 1),
    "net.peer_closed": Rule(RETRY, 3),
    "nccl.duplicate_gpu": _STOP,
    "nccl.version_mismatch": _STOP,
    "nccl.segfault": Rule(RETRY, 1),
    "hang.collective_timeout": Rule(RETRY_ELSEWHERE, 3),
    "hang.watchdog_stuck": Rule(RETRY_ELSEWHERE, 3),
    "hang.desync": Rule(RETRY_ELSEWHERE, 1),
    "hang.process_dead": Rule(RETRY_ELSEWHERE, 3),
    "hang.no_progress": Rule(RETRY_ELSEWHERE, 2),
    "mem.cuda_oom": Rule(RETRY, 1),
    "mem.host_oom": Rule(RETRY, 1),
    "mem.shm_exhausted": _STOP,
    "gpu.app_fault": Rule(RETRY, 1),
    "gpu.ecc_uncorrectable": Rule(DRAIN, 4, 1),
    "gpu.row_remap_failure": Rule(DRAIN, 4),
    "gpu.fallen_off_bus": Rule(DRAIN, 4),
    "gpu.gsp_timeout": Rule(DRAIN, 4),
    "gpu.nvlink_error": Rule(DRAIN, 4),
    "gpu.nvswitch_fatal": Rule(DRAIN, 4),
    "gpu.driver_mismatch": Rule(DRAIN, 4),
    "node.cpu_lockup": Rule(DRAIN, 3),
    "num.nan": _STOP,
    "num.loss_spike": _OBSERVE,
    "num.fp16_scale_exhausted": _STOP,
    "num.sdc_suspect": Rule(RETRY_ELSEWHERE, 2, 1),
    "num.sdc_persistent": Rule(DRAIN, 2, 1),
    "perf.straggler": _OBSERVE,
    "perf.slowdown": _OBSERVE,
    "ckpt.incomplete": Rule(RETRY, 1, 1),
    "ckpt.missing_key": _STOP,
    "ckpt.write_failed": Rule(RETRY, 1),
    "ckpt.tracker_inconsistent": _STOP,
    "ckpt.silent_fresh_start": _STOP,
    "ckpt.reshard_unsupported": _STOP,
    "ckpt.async_overlap": _OBSERVE,
    "storage.io_error": Rule(RETRY_ELSEWHERE, 1),
    "storage.quota": _STOP,
    "storage.stale_handle": Rule(RETRY_ELSEWHERE, 2),
    "storage.unresponsive": Rule(RETRY, 2),
    "storage.lustre_evicted": Rule(RETRY_ELSEWHERE, 3, 1),
    "launch.child_failed": Rule(RETRY, 1),
    "launch.child_crash": Rule(RETRY_ELSEWHERE, 1),
    "launch.sigkill_unconfirmed": Rule(RETRY, 2),
    "launch.rdzv_unreachable": Rule(RETRY, 2),
    "launch.rdzv_timeout": Rule(RETRY, 2),
    "launch.dns_failure": Rule(RETRY, 1),
    "launch.port_in_use": Rule(RETRY, 2),
    "launch.node_rank_early_expansion": _STOP,
    "launch.gpu_count_mismatch": Rule(RETRY_ELSEWHERE, 1),
    "launch.grace_exceeded": Rule(RETRY, 5),
    "launch.launcher_orphaned": Rule(RETRY, 2),
    "slurm.node_fail": Rule(RETRY_ELSEWHERE, 5),
    "slurm.time_limit": Rule(RETRY, 50),
    "slurm.preempted": Rule(RETRY, 50),
    "slurm.requeued_held": Rule(RETRY_ELSEWHERE, 2),
    "slurm.step_launch_failed": Rule(RETRY_ELSEWHERE, 2),
    "slurm.gres_invalid": _STOP,
    "slurm.config_unavailable": _STOP,
    "slurm.controller_unreachable": _OBSERVE,
    "slurm.unkillable_step": Rule(DRAIN, 2),
    "container.import_failed": _STOP,
    "container.start_failed": Rule(RETRY_ELSEWHERE, 1),
    "config.world_size": _STOP,
    "config.batch_size": _STOP,
    "config.zero_pipeline": _STOP,
    "app.exception": _STOP,
}


@dataclass(frozen=True)
class Switches:
    """Consent; all off is the default, so that a first installation only watches."""

    stop_own_job: bool = False
    requeue_own_job: bool = False
    drain_nodes: bool = False


@dataclass(frozen=True)
class Situation:
    """What the decision depends on beside the verdict.

    Attributes:
        evidence: identifies what was seen (attempt and verdict); a second decision on it is refused.
        restarts: starts of this job so far beyond the first (``SLURM_RESTART_COUNT``), and the common budget.
        retries: how often each class was retried in this run.
        recent_drains: hours ago (0 is now) of each drain we made in the cluster.
        drained: nodes that stand drained by us already, whichever part of us it was.
    """

    evidence: str
    cluster_nodes: int
    ledger: Ledger
    switches: Switches = field(default_factory=Switches)
    restarts: int = 0
    restart_budget: int = 8
    retries: Sequence[tuple[str, int]] = ()
    recent_drains: Sequence[float] = ()
    drained: Sequence[str] = ()
    decided: Sequence[str] = ()
    job_is_alive: bool = False


@dataclass(frozen=True)
class Decision:
    """What is to be done; each flag is already reduced to what the switches, budgets and the cap allow.

    Attributes:
        exclude: nodes a requeue must avoid.
        drain: nodes to drain now, with ``reason`` as Slurm's reason text.
        wanted_drain: nodes that would be drained if switch and cap allowed it.
        drained: blamed nodes that stand drained by us already; they need no drain and take no room under the cap.
        frozen: the drain cap was reached; a person has to look.
    """

    action: str
    stop_job: bool = False
    requeue: bool = False
    exclude: tuple[str, ...] = ()
    drain: tuple[str, ...] = ()
    wanted_drain: tuple[str, ...] = ()
    drained: tuple[str, ...] = ()
    repair: tuple[str, ...] = ()
    checkpoints_back: int = 0
    notify: bool = False
    frozen: bool = False
    reason: str = ""

    def as_dict(self) -> dict[str, object]:
        """A plain dictionary, ready for the journal."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in ((key, getattr(self, key)) for key in self.__dataclass_fields__)
        }


def drain_cap(cluster_nodes: int) -> int:
    """Most nodes drained per hour: one, or two per cent of the cluster."""
    return max(1, math.floor(cluster_nodes * 0.02))


def named_hosts(verdict: Verdict) -> tuple[str, ...]:
    """The hosts a verdict names."""
    return tuple(part[5:] for part in verdict.culprit.split(",") if part.startswith("host:"))


def decide(verdict: Verdict, situation: Situation) -> Decision:
    """Turn a verdict into a decision.

    Raises:
        PlanError: if the verdict's class is not in the table.
    """
    rule = RULES.get(verdict.diagnosis_class)
    if rule is None:
        raise PlanError(f"no policy for class {verdict.diagnosis_class!r}; known classes are those of the closed list")
    if situation.evidence in situation.decided:
        return Decision(OBSERVE, reason=f"{situation.evidence} was decided before")
    hosts = named_hosts(verdict)
    if rule.action == OBSERVE:
        return Decision(OBSERVE, notify=verdict.alarm, reason=_why(verdict, "observed, no action"))
    spent = _spent(verdict, rule, situation)
    if rule.action == STOP or spent:
        return _stop(verdict, rule, situation, hosts, spent)
    return _retry(verdict, rule, situation, hosts)


def _spent(verdict: Verdict, rule: Rule, situation: Situation) -> str:
    """Why a retry is not allowed any more; empty where it is."""
    if situation.restarts >= situation.restart_budget:
        return f"restart budget of {situation.restart_budget} is used up"
    done = dict(situation.retries).get(verdict.diagnosis_class, 0)
    if rule.action != STOP and done >= rule.budget:
        return f"{verdict.diagnosis_class} was retried {done} times, its budget is {rule.budget}"
    return ""


def _stop(verdict: Verdict, rule: Rule, situation: Situation, hosts: tuple[str, ...], spent: str) -> Decision:
    allowed, wanted, frozen, repair = _drains(verdict, rule, situation, hosts)
    return Decision(
        STOP,
        stop_job=situation.job_is_alive and situation.switches.stop_own_job,
        drain=allowed,
        wanted_drain=wanted,
        drained=tuple(host for host in hosts if host in situation.drained),
        repair=repair,
        notify=True,
        frozen=frozen,
        reason=_why(verdict, spent or "a retry cannot help"),
    )


def _retry(verdict: Verdict, rule: Rule, situation: Situation, hosts: tuple[str, ...]) -> Decision:
    allowed, wanted, frozen, repair = _drains(verdict, rule, situation, hosts)
    exclude = hosts if rule.action in (RETRY_ELSEWHERE, DRAIN) else wanted
    # A storm of blame is rather a common cause than many bad nodes: wait for a person.
    return Decision(
        rule.action,
        stop_job=situation.job_is_alive and situation.switches.stop_own_job,
        requeue=situation.switches.requeue_own_job and not frozen,
        exclude=exclude,
        drain=allowed,
        wanted_drain=wanted,
        drained=tuple(host for host in hosts if host in situation.drained),
        repair=repair,
        checkpoints_back=rule.checkpoints_back,
        notify=frozen or bool(wanted),
        frozen=frozen,
        reason=_why(
            verdict, "requeue from the last validated checkpoint" + (" but one" if rule.checkpoints_back else "")
        ),
    )


def _drains(
    verdict: Verdict, rule: Rule, situation: Situation, hosts: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...], bool, tuple[str, ...]]:
    """Nodes drained now, nodes that ought to be, whether the cap froze us, nodes for repair."""
    ledger = (
        situation.ledger.blame(hosts, situation.evidence, verdict.diagnosis_class)
        if _blames(rule)
        else situation.ledger
    )
    due = tuple(h for h in hosts if rule.action == DRAIN or (_blames(rule) and ledger.strikes(h) >= DRAIN_AT))
    wanted = tuple(host for host in due if host not in situation.drained)
    repair = tuple(h for h in hosts if _blames(rule) and ledger.strikes(h) >= REPAIR_AT)
    last_hour = sum(1 for hours in situation.recent_drains if hours < 1.0)
    room = drain_cap(situation.cluster_nodes) - last_hour
    frozen = len(wanted) > max(room, 0)
    allowed = () if frozen or not situation.switches.drain_nodes else wanted
    return allowed, wanted, frozen, repair


def blames(diagnosis_class: str) -> bool:
    """Whether a verdict of this class counts against the nodes it names."""
    return _blames(RULES[diagnosis_class])


def _blames(rule: Rule) -> bool:
    """Only classes that speak of a node count against it: an exception of user code is nobody's strike."""
    return rule.action in (RETRY_ELSEWHERE, DRAIN)


def _why(verdict: Verdict, what: str) -> str:
    return f"{verdict.diagnosis_class} ({verdict.culprit}): {what}"


def missing_rules() -> set[str]:
    """Classes without an entry; empty, as a test proves."""
    return set(CLASSES) - set(RULES)
