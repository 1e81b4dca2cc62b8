"""What a limited run leaves to others is shown at its end, with the nodes and the reason."""

from importlib import import_module

COLLECTION = "ansible_collections.rackweave.cluster.plugins"


def filters(name):
    return import_module(f"{COLLECTION}.filter.{name}").FilterModule().filters()


def shown(run_action, changes):
    reason = "outside of this run; a run over all nodes makes up for it"
    facts = run_action("provision_record", role="slurm", changes=changes, reason=reason)["ansible_facts"]
    return filters("inventory")["node_notes"]({"gpu02": facts})


def test_nodes_that_owe_a_restart_and_keys_that_wait_are_named(run_action):
    changes = filters("slurm")["slurm_outside"](["gpu03", "gpu01", "gpu04"], ["Prolog", "Epilog"])
    assert [line.split(" (")[0] for line in shown(run_action, changes)] == [
        "gpu02 pending: slurm, Prolog, Epilog of slurm.conf",
        "gpu02 pending: slurm, restart of slurmd on gpu[01,03-04]",
    ]
    assert all("(outside of this run; a run over all nodes" in line for line in shown(run_action, changes))


def test_a_run_over_all_nodes_leaves_nothing(run_action):
    assert filters("slurm")["slurm_outside"]([], []) == {}
    assert shown(run_action, {}) == ["nothing was left out or has to wait"]


def test_work_on_the_node_stays_the_reason_where_none_is_given(run_action):
    facts = run_action("provision_record", role="slurm", changes={"restart of slurmd": True})["ansible_facts"]
    assert facts["rackweave_pending"][0]["reason"] == "Slurm does not report the node drained and idle"
