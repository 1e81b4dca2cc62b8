"""Rolling over nodes: how many at a time, and how many may fail, are variables of the inventory."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
ANSIBLE = Path(sys.executable).parent / "ansible-playbook"
INVENTORY = """
all:
  vars: {{ansible_connection: local, ansible_python_interpreter: {python}}}
  children:
    slurm_controller: {{hosts: {{ctl: }}}}
    gpu_nodes:
      hosts: {{n1: , n2: , n3: , n4: , n5: }}
      vars: {variables}
"""
TASKS = [
    {"name": "Say who is in the batch", "run_once": True,
     "ansible.builtin.debug": {"msg": "{{ ansible_play_batch | join(' ') }}"}},
    {"name": "Fail", "ansible.builtin.fail": None, "when": "inventory_hostname in failing | default([])"},
]  # fmt: skip


@pytest.fixture
def rolled(tmp_path):
    """Return a function that runs the plays of rebuild.yml with other tasks, and returns the batches."""
    plays = [play for play in yaml.safe_load((ROOT / "playbooks/rebuild.yml").read_text()) if "hosts" in play]
    for play in plays:
        play.pop("environment", None)
        play["tasks"] = TASKS if "serial" in play else []
    (tmp_path / "rebuild.yml").write_text(yaml.safe_dump(plays))

    def run(*arguments, **variables):
        text = INVENTORY.format(python=sys.executable, variables=json.dumps(variables))
        (tmp_path / "hosts.yml").write_text(text)
        command = [ANSIBLE, "-i", tmp_path / "hosts.yml", tmp_path / "rebuild.yml", "--limit", "gpu_nodes", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return re.findall(r'"msg": "(n[^"]*)"', done.stdout)

    return run


def test_without_a_word_one_node_after_another(rolled):
    assert rolled() == ["n1", "n2", "n3", "n4", "n5"]


def test_the_inventory_says_how_many_at_a_time(rolled):
    assert rolled(rebuild_serial=[1, 2]) == ["n1", "n2 n3", "n4 n5"]


def test_the_command_line_says_it_over_the_inventory(rolled):
    assert rolled("-e", "rebuild_serial=40%", rebuild_serial=1) == ["n1 n2", "n3 n4", "n5"]


def test_a_failure_ends_the_rolling_unless_so_many_may_fail(rolled):
    assert rolled(rebuild_serial=2, failing=["n1"]) == ["n1 n2"]
    assert rolled(rebuild_serial=2, failing=["n1"], rebuild_max_fail_percentage=50) == ["n1 n2", "n3 n4", "n5"]
