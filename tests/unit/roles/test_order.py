"""What waits for a drained node comes before Slurm knows the node, so that a first run leaves nothing pending."""

from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[3]


def plays_of_provision():
    """Return the plays that provision.yml itself holds."""
    entries = yaml.safe_load((ROOT / "playbooks/provision.yml").read_text())
    return [entry for entry in entries if "hosts" in entry]


def roles_of_nodes():
    """Return the roles that provision.yml runs whole on the nodes, in their order."""
    return [
        role["role"].rpartition(".")[2]
        for play in plays_of_provision()
        if "gpu_nodes" in play["hosts"]
        for role in play.get("roles", [])
    ]


def asks(role):
    """Return whether a role asks Slurm for work on the node, and leaves an idle one that is not drained as it is."""
    tasks = (ROOT / "roles" / role).glob("tasks/*.yml")
    return any("name: rackweave.cluster.node_context" in path.read_text() for path in tasks)


def test_what_leaves_idle_nodes_as_they_are_runs_before_slurm_starts():
    order = roles_of_nodes()
    asking = [role for role in order if asks(role)]
    assert {"node_base", "gpu_driver", "shared_storage", "monitoring"} <= set(asking)
    assert [role for role in asking if order.index(role) > order.index("slurm")] == []


def test_a_system_without_data_is_refused_before_the_first_change():
    """The first role has data for more systems than the others: without this it would change what they then refuse."""
    first = plays_of_provision()[0]
    called = [task["ansible.builtin.include_role"] for task in first["pre_tasks"]]
    assert [(it["name"].rpartition(".")[2], it["tasks_from"]) for it in called] == [("gpu_driver", "validate")]
    assert first["gather_facts"] is True


def test_the_host_that_submits_jobs_gets_the_shared_storage_too():
    (play,) = [
        play
        for play in plays_of_provision()
        if "rackweave.cluster.shared_storage" in [role["role"] for role in play.get("roles", [])]
    ]
    assert {"slurm_controller", "gpu_nodes"} <= set(play["hosts"].split(":"))
    assert "training_job_submit_host" in play["hosts"]


def test_the_shared_storage_of_the_reference_deployment_is_every_hosts():
    (path,) = [
        path
        for path in (ROOT / "inventory/prod/group_vars").rglob("*.yml")
        if "shared_storage_mounts" in (yaml.safe_load(path.read_text()) or {})
    ]
    assert path.parent.name == "all"
