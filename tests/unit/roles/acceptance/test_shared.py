"""Nodes that do not see the submit host's files are named before a job looks for them in vain."""

import getpass
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[4]
ANSIBLE = Path(sys.executable).parent / "ansible-playbook"


@pytest.fixture
def compare(tmp_path):
    """Return a function that compares what hosts see at their directory, and returns exit code and output."""
    private = yaml.safe_load((ROOT / "roles/acceptance/vars/main.yml").read_text())
    variables = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "ansible_become": False,
        "training_job_submit_host": "ctl",
        "training_job_user": getpass.getuser(),
        **{name: private[name] for name in ("__acceptance_directory", "__acceptance_shared_file")},
    }
    play = {
        "name": "Compare",
        "hosts": "gpu_nodes",
        "gather_facts": False,
        "tasks": [{"ansible.builtin.import_tasks": str(ROOT / "roles/acceptance/tasks/shared.yml")}],
    }
    (tmp_path / "compare.yml").write_text(yaml.safe_dump([play], sort_keys=False))

    def run(directories, *words):
        nodes = {host: {"training_job_shared_dir": str(tmp_path / name)} for host, name in directories.items()}
        for name in directories.values():
            (tmp_path / name).mkdir(exist_ok=True)
        groups = {"slurm_controller": {"hosts": {"ctl": {}}}, "gpu_nodes": {"hosts": nodes}}
        (tmp_path / "hosts.yml").write_text(json.dumps({"all": {"vars": variables, "children": groups}}))
        command = [ANSIBLE, "-i", tmp_path / "hosts.yml", tmp_path / "compare.yml", *words]
        environment = {**os.environ, "ANSIBLE_NOCOLOR": "1"}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        return done.returncode, " ".join((done.stdout + done.stderr).split())

    return run


def test_a_node_with_another_file_system_is_named_in_one_sentence(compare, tmp_path):
    code, output = compare({"n1": "shared", "n2": "local"})
    assert code == 2, output
    path = tmp_path / "shared/acceptance/.shared"
    assert f"ctl, which submits the jobs, wrote {path}, and n2 cannot read it" in output
    assert "shared_storage_mounts" in output


def test_nodes_that_see_the_same_pass_and_a_second_time_nothing_changes(compare):
    compare({"n1": "shared", "n2": "shared"})
    code, output = compare({"n1": "shared", "n2": "shared"})
    assert code == 0, output
    assert "changed=1" not in output


def test_in_check_mode_before_the_first_run_nothing_is_refused_and_nothing_written(compare, tmp_path):
    code, output = compare({"n1": "shared"}, "--check")
    assert code == 0, output
    assert list((tmp_path / "shared").iterdir()) == []
