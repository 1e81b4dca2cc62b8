"""Unattended operation of one run: watch, decide, recover, watch. The world comes in as functions; no input or output.

Each round is a playbook that watches one attempt and acts on its end. What is left for here is what a job cannot do for
itself: to submit again where it must not come back as it was. All that is remembered lies in the journal, so an
operation that died goes on where it stood.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import PlanError
from ..run.plan_file import RunPlan
from .journal import Journal
from .replan import Replacement, current_sizes, replacement

DONE, STUCK, GAVE_UP = 0, 1, 3
ERROR_PAUSE_S = 30.0
LAUNCHES = 4
MOST_ERRORS = 20  # rounds in a row that failed for reasons of their own (the submit host is away, say): ten minutes


@dataclass(frozen=True)
class Played:
    """How a playbook ended: its status, what tasks of ours returned by name of their action, why it failed."""

    code: int
    results: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    problem: str = ""


@dataclass(frozen=True)
class Field:
    """What an operation can do.

    Attributes:
        play: run one of our playbooks with variables, on all hosts or a limit.
        write: append an entry to the journal (kind, why, details).
        journal, plan: read them; plan is None where none was made.
        notify: tell people (subject, text, and a cause that is told once until the operation works again).
        forgive: drop a node's strikes after its repair.
        say, sleep: a line for the terminal; wait some seconds.
    """

    play: Callable[[str, Mapping[str, Any], str], Played]
    write: Callable[..., None]
    journal: Callable[[], Journal]
    plan: Callable[[], RunPlan | None]
    notify: Callable[..., None]
    forgive: Callable[[str], None]
    say: Callable[[str], None]
    sleep: Callable[[float], None]


@dataclass(frozen=True)
class OperationSettings:
    """What is operated, and whether it is only tried."""

    run: str
    dry_run: bool = False


class Operation:
    """Keeps one run going; ``run`` returns `DONE`, `STUCK` (a person has to look) or `GAVE_UP` (we could not go on)."""

    def __init__(self, field_: Field, settings: OperationSettings) -> None:
        self.field, self.settings = field_, settings
        self.layout: dict[str, Any] = {}

    def run(self) -> int:
        """Go round until the run is done or a person is needed."""
        begun = self._begin()
        if begun is not None:
            return begun
        errors = 0
        while True:
            played = self._play("operate", {"operator_dry_run": self.settings.dry_run})
            decision = played.results.get("recovery_decision")
            if decision is None:
                errors += 1
                if errors >= MOST_ERRORS:
                    # A service starts the operation again, and its rounds may go on failing.
                    why = f"{errors} rounds failed one after the other: {played.problem}"
                    return self._end(GAVE_UP, why, cause="rounds failed")
                self.field.say(f"the round failed ({played.problem}); trying again in {ERROR_PAUSE_S:.0f} s")
                self.field.sleep(ERROR_PAUSE_S)
                continue
            errors = 0
            ended = self._follow(decision)
            if ended is not None:
                return ended

    def _begin(self) -> int | None:
        """Take up what an earlier operation left, launch what never ran; None where there is a job to watch."""
        journal = self.field.journal().of(self.settings.run)
        unfinished = journal.unfinished()
        if unfinished is not None and not self.settings.dry_run:
            self.field.write("note", "an earlier operation decided to submit again and did not; doing it now")
            return self._recover(unfinished)
        listed = self._play("status", {}).results.get("run_list")
        if listed is None:
            return None  # not knowing is no reason to launch: the rounds try again until somebody answers
        row = next((one for one in listed.get("runs", []) if one["run"] == self.settings.run), None)
        if row is not None and row.get("job_id"):
            return None
        if self.settings.dry_run:
            return self._end(STUCK, "the run was never launched, and a dry run launches nothing")
        return self._submit("the run was never launched")

    def _follow(self, decision: Mapping[str, Any]) -> int | None:
        """Do what is left to do after a round; None to go round again."""
        if decision.get("notify"):
            self._tell(decision)
        if decision["job_live"] and not decision["resubmit"] and not decision["stuck"]:
            return None
        if decision["completed"]:
            return self._end(DONE, "the run is done", ok=True)
        if decision["stuck"]:
            return self._end(STUCK, str(decision["why"]))
        if self.settings.dry_run:
            return self._end(STUCK, f"dry run: {decision['action']}: {decision['why']}")
        if decision["resubmit"]:
            return self._recover(decision)
        if decision.get("saved"):
            return self._submit("the job saved on request and ended; continuing")
        return self._end(STUCK, f"the job is over and the policy starts nothing: {decision['why']}")

    def _recover(self, decision: Mapping[str, Any]) -> int | None:
        """Plan again where nodes change, submit, and rebuild what was drained where that is allowed."""
        plan = self.field.plan()
        if plan is None:
            played = self._play("plan", {})
            plan = self.field.plan()
        if plan is None:
            return self._end(STUCK, f"the run has no plan on this controller, and none could be made: {played.problem}")
        try:
            found = self._place(plan, decision)
        except PlanError as error:
            return self._end(STUCK, str(error))
        if found is not None and (found.hosts != plan.hosts or found.sizes != current_sizes(plan)):
            self.layout = plan_variables(found)
            self.field.write("replan", found.why, hosts=list(found.hosts), sizes=found.sizes)
            played = self._play("plan", self.layout)
            if played.code:
                return self._end(STUCK, f"planning without {', '.join(decision['leave'])} failed: {played.problem}")
        ended = self._submit(str(decision["why"]))
        if ended is None and decision.get("rebuild_ok"):
            self._rebuild([*decision.get("drain", []), *decision.get("repair", [])])
        return ended

    def _place(self, plan: RunPlan, decision: Mapping[str, Any]) -> Replacement | None:
        """Where to go on; None keeps the nodes as they are.

        Raises:
            PlanError: if nodes that are really gone cannot be done without.
        """
        shrink = str(decision.get("shrink", "drained"))
        hosts = list(decision.get("hosts") or plan.hosts)
        wanted = int(decision.get("nodes") or 0) or len(hosts)
        known = list(decision.get("usable") or hosts)
        usable = [host for host in hosts if host in known]
        gone = [host for host in decision["leave"] if host not in decision["suspected"]]
        if shrink != "suspected":
            try:
                return replacement(plan, usable, decision["leave"], False, wanted)
            except PlanError:
                self.field.write("note", f"no spare for {', '.join(decision['leave']) or 'anybody'}, suspected only")
        else:
            try:
                return replacement(plan, usable, list(decision["leave"]), True, wanted)
            except PlanError as error:
                if not decision["suspected"]:
                    raise
                self.field.write("note", f"{error}; going on with what is only suspected")
        return replacement(plan, usable, gone, shrink != "never", wanted)

    def _submit(self, why: str) -> int | None:
        if self.field.plan() is None:
            played = self._play("plan", self.layout)
            if played.code:
                return self._end(STUCK, f"the run cannot be planned: {played.problem}")
        for attempt in range(LAUNCHES):
            played = self._play("launch", self.layout)
            launched = played.results.get("job_submit", {})
            if not played.code and launched.get("job_id"):
                break
            if attempt + 1 < LAUNCHES:
                self.field.sleep(ERROR_PAUSE_S)  # a launch finds a live job, so trying again cannot make two
        else:
            return self._end(STUCK, f"the run cannot be launched: {played.problem or launched.get('msg', 'no job')}")
        self.field.write("submit", why, job_id=launched["job_id"], attached=launched.get("attached", False))
        return None

    def _rebuild(self, nodes: Sequence[str]) -> None:
        """Rebuild one node after the other; a node that fails stays drained, and the run goes on without it."""
        for node in dict.fromkeys(nodes):
            played = self._play("rebuild", {}, node)
            self.field.write("rebuild", played.problem or "rebuilt", node=node, ok=played.code == 0)
            if played.code == 0:
                self.field.forgive(node)

    def _play(self, name: str, variables: Mapping[str, Any], limit: str = "") -> Played:
        return self.field.play(name, {"training_job_run": self.settings.run, **variables}, limit)

    def _tell(self, decision: Mapping[str, Any]) -> None:
        words = "FROZEN: too many drains in an hour" if decision.get("frozen") else str(decision["action"])
        self.field.notify(f"run {self.settings.run}: {words}", str(decision.get("msg") or decision["why"]))

    def _end(self, code: int, why: str, ok: bool = False, cause: str = "") -> int:
        self.field.write("end", why, ok=ok, code=code)
        self.field.say(why)
        self.field.notify(f"run {self.settings.run}: {'done' if ok else 'needs a person'}", why, cause)
        return code


def plan_variables(found: Replacement) -> dict[str, Any]:
    """The variables of plan.yml and launch.yml that put a run on other nodes."""
    sizes = {f"training_job_{name}": value for name, value in found.sizes.items()}
    return {"training_job_hosts": list(found.hosts), "training_job_nodes": len(found.hosts), **sizes}
