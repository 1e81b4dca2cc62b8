"""A run limited to the controller asks the nodes outside of it before it gives a key to the cluster."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
ANSIBLE = Path(sys.executable).parent / "ansible-playbook"
VARIABLES = {
    "ansible_connection": "local",
    "ansible_python_interpreter": sys.executable,
    "ansible_become": False,
    "slurm_controller_host": "ctl",
    "slurm_nodes": ["n1", "n2"],
    "slurm_munge_key": "",
    "slurm_munge_rotate_ok": False,
}
# Nobody listens at that port.
NO_ANSWER = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}


@pytest.fixture
def controller(tmp_path):
    """Return a function that runs the tasks of the key limited to a blank controller; returns exit code and output."""
    tasks = yaml.safe_load((ROOT / "roles/slurm/tasks/munge.yml").read_text())
    private = yaml.safe_load((ROOT / "roles/slurm/vars/main.yml").read_text())
    play = {
        "name": "Key",
        "hosts": "all",
        "gather_facts": False,
        "vars": {"__slurm_munge_states": private["__slurm_munge_states"]},
        # Written nowhere: what has the last word here is where the key comes from.
        "tasks": [task for task in tasks if not task["name"].startswith("Write")],
        "module_defaults": {"rackweave.cluster.munge_key": {"path": str(tmp_path / "munge.key")}},
    }
    play["tasks"].append({"name": "Say", "ansible.builtin.debug": {"var": "__slurm_key_source"}})
    (tmp_path / "key.yml").write_text(yaml.safe_dump([play], sort_keys=False))

    def run(nodes, *words):
        hosts = {"ctl": {}, **nodes}
        (tmp_path / "hosts.yml").write_text(json.dumps({"all": {"hosts": hosts, "vars": VARIABLES}}))
        command = [ANSIBLE, "-i", tmp_path / "hosts.yml", tmp_path / "key.yml", "--limit", "ctl", *words]
        environment = {**os.environ, "ANSIBLE_NOCOLOR": "1"}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        return done.returncode, " ".join((done.stdout + done.stderr).split())

    return run


def test_where_no_node_answers_there_is_no_new_key(controller):
    code, output = controller({"n1": NO_ANSWER, "n2": NO_ANSWER})
    assert code == 2, output
    assert "n1, n2 gave no answer" in output
    assert "slurm_munge_key" in output


def test_where_nodes_answer_that_they_have_none_there_is_a_new_key(controller):
    code, output = controller({"n1": {}, "n2": NO_ANSWER})
    assert code == 0, output
    assert "no node has a key" in output
