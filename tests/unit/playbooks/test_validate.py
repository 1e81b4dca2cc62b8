"""An inventory that is none, or lacks the groups, is an error and no play without hosts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
ANSIBLE = Path(sys.executable).parent / "ansible-playbook"


def validate(inventory):
    command = [ANSIBLE, "-i", inventory, "playbooks/validate.yml"]
    environment = {**os.environ, "ANSIBLE_NOCOLOR": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, " ".join((done.stdout + done.stderr).split())


@pytest.mark.parametrize("text", ["", "all: {hosts: {a: {}}}", "all: {children: {gpu_nodes: {}}}"])
def test_an_inventory_without_the_groups_is_refused_with_how_many_hosts_they_have(tmp_path, text):
    (tmp_path / "hosts.yml").write_text(text)
    code, output = validate(tmp_path)
    assert code == 2
    assert f"the inventory {tmp_path} needs one host in slurm_controller (it has 0)" in output


def test_a_path_without_an_inventory_is_refused(tmp_path):
    code, output = validate(tmp_path / "inventory/mien")
    assert code != 0
    assert "No inventory was parsed" in output
