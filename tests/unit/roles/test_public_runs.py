"""What public reports say of runs of Ansible: tasks run once for each batch, facts older than the run, no systemd."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
ROLES = ROOT / "roles"
COMMANDS = ("ansible.builtin.command", "ansible.builtin.shell")
PROGRAMS = Path(sys.executable).parent


def tasks(entries):
    for entry in entries or []:
        yield entry
        for key in ("block", "rescue", "always"):
            yield from tasks(entry.get(key))


def of_role(role):
    """Return the tasks of a role, each with its file's name."""
    files = sorted((role / "tasks").glob("*.yml"))
    return [(path.name, task) for path in files for task in tasks(yaml.safe_load(path.read_text()))]


def conditional_files(role):
    """Return the files that a role includes on a condition only."""
    included = [(task, task.get("ansible.builtin.include_tasks")) for _, task in of_role(role)]
    return {it["file"] if isinstance(it, dict) else it for task, it in included if it and "when" in task}


COMMANDS_RUN_ONCE = [
    pytest.param(role, file, task, id=f"{role.name}: {task['name']}")
    for role in sorted(path.parent for path in ROLES.glob("*/tasks"))
    for file, task in of_role(role)
    if task.get("run_once") and any(module in task for module in COMMANDS)
]


@pytest.mark.parametrize(("role", "file", "task"), COMMANDS_RUN_ONCE)
def test_a_command_that_runs_once_for_each_batch_only_reads_or_runs_where_something_is_due(role, file, task):
    """ansible/ansible#9861, #57077: with `serial` that is once for each batch, so nothing may be done twice."""
    assert task.get("changed_when") is False or "when" in task or file in conditional_files(role)


def test_no_task_of_a_play_with_batches_is_to_run_once():
    batched = [
        play
        for path in (ROOT / "playbooks").glob("*.yml")
        for play in yaml.safe_load(path.read_text())
        if "serial" in play
    ]
    assert batched
    assert [
        task for play in batched if play["serial"] != 1 for task in tasks(play.get("tasks")) if "run_once" in task
    ] == []


def test_what_files_are_rendered_from_is_observed_after_it_was_changed_and_never_a_local_fact():
    """ansible/ansible#6968, #14641: a fact of a script that the same run installed is undefined first and old later."""
    texts = [path.read_text() for folder in ("roles", "playbooks") for path in (ROOT / folder).rglob("*.yml")]
    assert len(texts) > 100
    assert [text for text in texts if "ansible_local" in text or "fact_path" in text] == []
    plays = yaml.safe_load((ROOT / "playbooks/provision.yml").read_text())
    names = [play["name"] for play in plays]
    roles = {
        role["role"].rpartition(".")[2]: place for place, play in enumerate(plays) for role in play.get("roles", [])
    }
    observed = names.index("Observe the nodes")
    assert max(roles["gpu_driver"], roles["rdma_fabric"], roles["node_base"]) < observed < roles["slurm"]


@pytest.mark.parametrize("manager", ["tini", "systemd"])
def test_a_node_without_systemd_is_refused_before_its_first_change_with_the_way_out(manager, tmp_path):
    """molecule#928: in a container of another first process every service would fail, the first one in the middle."""
    play = [
        {
            "hosts": "all",
            "gather_facts": False,
            "tasks": [
                {"ansible.builtin.include_role": {"name": "rackweave.cluster.node_base", "tasks_from": "validate"}}
            ],
        }
    ]
    (tmp_path / "play.yml").write_text(yaml.safe_dump(play))
    facts = {
        "service_mgr": manager,
        "distribution": "Debian",
        "distribution_major_version": "12",
        "os_family": "Debian",
    }
    done = subprocess.run(
        [PROGRAMS / "ansible-playbook", "-i", "box,", "-c", "local", tmp_path / "play.yml",
         "-e", json.dumps({"ansible_facts": facts})],
        cwd=ROOT, env={**os.environ, "ANSIBLE_NOCOLOR": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    refused = (
        "box was started by tini instead of systemd, so no service of these roles could run there: start a container"
    )
    assert (done.returncode != 0, refused in done.stdout) == (manager == "tini",) * 2, done.stdout + done.stderr


def test_a_system_of_another_family_is_refused_with_its_name_by_each_role_that_installs_packages_first(tmp_path):
    """Instead of "no file was found": the role names the system and what it knows."""
    entries = {"node_base": "main", "slurm": "install", "trainer_runtime": "install"}
    include = {
        "name": "rackweave.cluster.{{ inventory_hostname }}",
        "tasks_from": "{{ entries[inventory_hostname] }}",
        "rolespec_validate": False,
    }
    play = {"hosts": "all", "gather_facts": False, "tasks": [{"ansible.builtin.include_role": include}]}
    (tmp_path / "play.yml").write_text(yaml.safe_dump([play]))
    facts = {
        "distribution": "SLES",
        "distribution_version": "15.5",
        "distribution_major_version": "15",
        "os_family": "Suse",
        "pkg_mgr": "zypper",
    }
    done = subprocess.run(
        [PROGRAMS / "ansible-playbook", "-i", ",".join(entries), "-c", "local", tmp_path / "play.yml",
         "-e", json.dumps({"ansible_facts": facts, "entries": entries})],
        cwd=ROOT, env={**os.environ, "ANSIBLE_NOCOLOR": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    for role in entries:
        refused = f"{role} has no data for SLES 15.5 on {role}; it knows the families debian and redhat"
        assert refused in done.stdout, done.stdout + done.stderr
