"""A role's tag alone: what is included at run time runs whole, and nothing runs whose facts another tag would set."""

from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
# The roles that playbooks/provision.yml runs by their tags, and the two that those call.
TAGGED = ("node_base", "gpu_driver", "rdma_fabric", "container_runtime", "slurm", "shared_storage", "trainer_runtime")
ROLES = (*TAGGED, "monitoring", "node_context")
INCLUDES = ("ansible.builtin.include_tasks", "ansible.builtin.include_role")


def load(path):
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def flat(entries):
    for entry in entries or []:
        yield entry
        for key in ("block", "rescue", "always"):
            yield from flat(entry.get(key))


def task_files():
    return [path for role in ROLES for path in sorted((ROOT / "roles" / role / "tasks").glob("*.yml"))]


def tags(task):
    value = task.get("tags") or []
    return {value} if isinstance(value, str) else set(value)


@pytest.mark.parametrize("path", task_files(), ids=lambda path: str(path.relative_to(ROOT / "roles")))
def test_what_is_included_at_run_time_is_not_left_out_by_a_tag(path):
    """Tags of an include are not those of its tasks: without `apply` they would silently be skipped."""
    for task in flat(load(path)):
        for include in INCLUDES:
            if include in task:
                applied = (task[include].get("apply") or {}).get("tags") if isinstance(task[include], dict) else None
                # Slurm's phases are tagged inside of the included file; there the name of the role is enough.
                assert applied in (["always"], ["slurm"]), task["name"]


@pytest.mark.parametrize("role", [*TAGGED, "monitoring"])
def test_every_task_of_the_first_file_bears_the_tag_of_the_role(role):
    """Otherwise `--tags ROLE` leaves it out, or (with `always`) every other role's tag runs it without its facts."""
    for task in load(f"roles/{role}/tasks/main.yml"):
        assert role in tags(task), task["name"]
        assert all(tag == role or tag.startswith(f"{role}_") for tag in tags(task)), task["name"]


@pytest.mark.parametrize("path", task_files(), ids=lambda path: str(path.relative_to(ROOT / "roles")))
def test_no_task_of_a_role_runs_with_the_tags_of_others(path):
    assert [task["name"] for task in flat(load(path)) if "always" in tags(task)] == []


def test_what_provision_itself_does_runs_with_every_tag_or_bears_that_of_its_role():
    for play in load("playbooks/provision.yml"):
        for task in play.get("tasks", []):
            call = task.get("ansible.builtin.include_role") or {}
            called = task.get("ansible.builtin.import_role") or {}
            if called:  # its tasks bear their tags themselves, or get them here
                role, file = called["name"].rpartition(".")[2], called["tasks_from"]
                inside = load(f"roles/{role}/tasks/{file}.yml")
                assert all(role in tags(entry) | tags(task) for entry in inside), task["name"]
                continue
            role = call.get("name", "").rpartition(".")[2]
            assert "always" in tags(task) | tags(play) or role in tags(task), task["name"]
