"""The loop of unattended operation, on a field that only remembers; and on which nodes a run goes on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from rackweave.errors import PlanError
from rackweave.run.plan_file import parse_plan
from rackweave.watch.journal import entry_line, parse_journal
from rackweave.watch.live_bar import bar
from rackweave.watch.operation import DONE, GAVE_UP, MOST_ERRORS, STUCK, Field, Operation, OperationSettings, Played
from rackweave.watch.replan import replacement

DOCUMENT = json.loads((Path(__file__).parents[3] / "fixtures" / "contracts" / "plan.json").read_text())


def two_replicas():
    """The committed example as two data-parallel replicas, one on each host."""
    sizes = {**DOCUMENT["sizes"], "pipeline_parallel_size": 1, "data_parallel_size": 2, "num_microbatches": 2}
    ranks = [
        {**row, "tp_rank": row["rank"] % 2, "dp_rank": row["rank"] // 2, "pp_rank": 0} for row in DOCUMENT["ranks"]
    ]
    return parse_plan(json.dumps({**DOCUMENT, "sizes": sizes, "ranks": ranks}))


PLAN = two_replicas()


class World:
    """Plays a script of rounds; everything that was asked for is in `played`, `entries` and `notices`."""

    def __init__(self, *rounds, submitted=True, plan=PLAN, fail=()):
        self.rounds, self.plan, self.fail = list(rounds), plan, fail
        self.submitted = submitted
        self.played, self.text, self.notices, self.forgiven, self.slept = [], "", [], [], 0.0

    def play(self, name, variables, limit):
        self.played.append((name, dict(variables), limit))
        if name in self.fail:
            return Played(2, {}, f"{name} broke")
        if name == "status":
            return Played(0, {"run_list": {"runs": [{"run": "demo", "job_id": "1" if self.submitted else ""}]}})
        if name == "launch":
            return Played(0, {"job_submit": {"job_id": "9"}})
        if name == "operate":
            found = self.rounds.pop(0)
            return Played(0, {"recovery_decision": found}) if found else Played(4, {}, "no answer")
        return Played(0, {})

    def write(self, kind, why, **details):
        self.text += entry_line("t", 1.0, "demo", kind, why, **details)

    def _notify(self, subject, text, cause=""):
        self.notices.append(subject)

    def operate(self, dry_run=False):
        field = Field(
            self.play, self.write, lambda: parse_journal(self.text), lambda: self.plan,
            self._notify, self.forgiven.append, lambda line: None, self._sleep,
        )  # fmt: skip
        return Operation(field, OperationSettings("demo", dry_run)).run()

    def _sleep(self, seconds):
        self.slept += seconds

    @property
    def names(self):
        return [name for name, _, _ in self.played]

    @property
    def kinds(self):
        return [json.loads(line)["kind"] for line in self.text.splitlines()]


def decision(**changes):
    values = {
        "action": "retry", "why": "because", "job_live": False, "completed": False, "resubmit": False, "stuck": False,
        "leave": [], "suspected": [], "drain": {}, "repair": [], "hosts": list(PLAN.hosts), "usable": list(PLAN.hosts),
        "nodes": 0, "shrink": "drained", "rebuild_ok": False, "notify": False,
    }  # fmt: skip
    return {**values, **changes}


FINISHED = decision(action="observe", completed=True)


def test_a_job_that_comes_back_by_itself_is_only_watched_to_its_end():
    world = World(decision(job_live=True), FINISHED)
    assert world.operate() == DONE
    assert world.names == ["status", "operate", "operate"]
    assert world.kinds == ["end", "notify"] or world.kinds == ["end"]


def test_a_run_that_never_ran_is_launched_and_then_watched():
    world = World(FINISHED, submitted=False)
    assert world.operate() == DONE
    assert world.names == ["status", "launch", "operate"]


def test_a_run_without_a_plan_is_planned_first():
    world = World(FINISHED, submitted=False, plan=None)
    assert world.operate() == DONE
    assert world.names[:3] == ["status", "plan", "launch"]


def test_a_job_that_ended_for_good_is_submitted_again_on_the_same_nodes():
    world = World(decision(resubmit=True), FINISHED)
    assert world.operate() == DONE
    assert world.names == ["status", "operate", "launch", "operate"]
    assert world.kinds == ["submit", "end"]


def test_a_spare_takes_the_place_of_a_suspected_node():
    hosts = [*PLAN.hosts, "spare"]
    found = decision(
        resubmit=True, leave=[PLAN.hosts[0]], suspected=[PLAN.hosts[0]], hosts=hosts, usable=hosts, nodes=2
    )
    world = World(found, FINISHED)
    assert world.operate() == DONE
    variables = dict(world.played[2][1])
    assert world.played[2][0] == "plan"
    assert variables["training_job_hosts"] == [PLAN.hosts[1], "spare"]
    assert world.played[3] == ("launch", variables, "")


def test_without_a_spare_a_suspected_node_is_tried_again_unless_shrinking_is_allowed_for_suspicion():
    suspect = {"resubmit": True, "leave": [PLAN.hosts[0]], "suspected": [PLAN.hosts[0]]}
    same = World(decision(**suspect), FINISHED)
    assert same.operate() == DONE
    assert "plan" not in same.names
    fewer = World(decision(**suspect, shrink="suspected"), FINISHED)
    assert fewer.operate() == DONE
    variables = fewer.played[2][1]
    assert variables["training_job_hosts"] == [PLAN.hosts[1]]
    assert variables["training_job_global_batch_size"] == PLAN.global_batch_size


def test_where_no_smaller_layout_keeps_the_batch_it_refuses_and_calls_a_person():
    odd = replace(PLAN, micro_batch_size=PLAN.global_batch_size * 2)
    world = World(decision(resubmit=True, leave=[PLAN.hosts[0]], usable=[PLAN.hosts[1]]), plan=odd)
    assert world.operate() == STUCK
    assert "launch" not in world.names
    assert "wait for a node" in world.text


def test_a_decision_that_needs_a_person_ends_with_a_notice():
    world = World(decision(action="stop", stuck=True, notify=True, frozen=True, why="app.exception"))
    assert world.operate() == STUCK
    assert "FROZEN" in world.notices[0]
    assert "launch" not in world.names


def test_a_job_that_somebody_cancelled_is_left_alone():
    assert World(decision(action="observe")).operate() == STUCK


def test_a_save_at_the_time_limit_is_continued():
    world = World(decision(action="observe", saved=True), FINISHED)
    assert world.operate() == DONE
    assert "launch" in world.names


def test_a_dry_run_launches_plans_and_notifies_nothing():
    world = World(decision(resubmit=True, leave=["x"]))
    assert world.operate(dry_run=True) == STUCK
    assert world.names == ["status", "operate"]
    assert world.played[1][1]["operator_dry_run"] is True
    assert World(submitted=False).operate(dry_run=True) == STUCK


def test_rounds_that_fail_are_tried_again_and_given_up_after_a_while():
    world = World(None, None, FINISHED)
    assert world.operate() == DONE
    assert world.slept > 0
    assert World(*[None] * MOST_ERRORS).operate() == GAVE_UP


def test_an_operation_that_died_before_it_submitted_takes_that_up():
    world = World(FINISHED)
    details = {"evidence": "e", "diagnosis_class": "mem.host_oom", "requeue": True, "resubmit": True}
    world.write("decision", "because", **details, leave=[], suspected=[], drain=[], repair=[])
    assert world.operate() == DONE
    assert world.names == ["launch", "operate"]


def test_rebuild_is_called_by_name_only_with_its_consent_and_clears_the_strikes():
    drained = decision(resubmit=True, drain={"node-x": "rackweave: y"}, leave=["node-x"])
    world = World({**drained, "rebuild_ok": True}, FINISHED)
    assert world.operate() == DONE
    assert [row for row in world.played if row[0] == "rebuild"] == [("rebuild", {"training_job_run": "demo"}, "node-x")]
    assert world.forgiven == ["node-x"]
    assert "rebuild" not in World(drained, FINISHED).names
    broken = World({**drained, "rebuild_ok": True}, FINISHED, fail=("rebuild",))
    assert (broken.operate(), broken.forgiven) == (DONE, [])


def test_a_run_whose_plan_is_gone_is_planned_before_it_is_submitted_again():
    world = World(decision(resubmit=True), plan=None)
    assert world.operate() == STUCK
    assert world.names == ["status", "operate", "plan"]
    assert "none could be made" in world.text


def test_a_launch_that_fails_is_tried_again_and_then_calls_a_person():
    world = World(decision(resubmit=True), fail=("launch",))
    assert world.operate() == STUCK
    assert world.names.count("launch") > 1


def test_not_knowing_whether_there_is_a_job_launches_nothing():
    world = World(None, FINISHED, submitted=False, fail=("status",))
    assert world.operate() == DONE
    assert "launch" not in world.names


def test_fewer_nodes_keep_whole_replicas_the_batch_and_the_order_of_hosts():
    found = replacement(PLAN, PLAN.hosts, [PLAN.hosts[0]], True)
    assert found.hosts == (PLAN.hosts[1],)
    assert found.smaller
    assert found.sizes["data_parallel_size"] * 2 == PLAN.parallel.data_parallel_size
    assert found.sizes["global_batch_size"] == PLAN.global_batch_size
    with pytest.raises(PlanError, match="not allowed"):
        replacement(PLAN, PLAN.hosts, [PLAN.hosts[0]], False)


def test_a_run_grows_back_when_its_node_is_there_again():
    hosts = ("a", "b")
    small = replacement(PLAN, PLAN.hosts, [PLAN.hosts[0]], True)
    assert small.sizes["data_parallel_size"] < PLAN.parallel.data_parallel_size
    back = replacement(PLAN, [*PLAN.hosts, *hosts], [], False, wanted=4)
    assert (len(back.hosts), back.sizes["data_parallel_size"]) == (4, 2 * PLAN.parallel.data_parallel_size)


@pytest.mark.parametrize(
    ("line", "width", "shown"),
    [
        ("[demo] step 50/100 | loss 2.5 | ETA 3 s", 60, "demo [###########-----------]  50% 50/100  loss 2.5  ETA 3 s"),
        ("[demo] step 100/100", 200, "demo [##############################] 100% 100/100"),
        ("[demo] step 7", 40, "[demo] step 7"),
        ("[demo] step 1/10 | loss 3", 18, "demo 10% 1/10"),
        ("[demo] attempt 1.0", 40, None),
        ("step 1/10", 40, None),
    ],
)
def test_progress_is_a_bar_that_fits_the_terminal(line, width, shown):
    found = bar(line, width)
    assert found is None or len(found) <= width
    assert found == shown
