"""An inventory that init.yml wrote is complete: what validates also plans."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
ANSIBLE = Path(sys.executable).parent / "ansible-playbook"
NODES = """\
NodeName=cpu01 Arch=x86_64 Gres=(null) NodeAddr=cpu01 NodeHostName=cpu01 State=IDLE
NodeName=gpu01 Arch=x86_64 Gres=gpu:a100:4(S:0-1) NodeAddr=10.0.0.11 NodeHostName=gpu01 State=IDLE
NodeName=gpu02 Arch=x86_64 Gres=gpu:a100:4(S:0-1) NodeAddr=gpu02 NodeHostName=gpu02 State=IDLE+DRAIN
"""


def play(playbook, *words, **environment):
    command = [ANSIBLE, f"playbooks/{playbook}.yml", *words]
    variables = {**os.environ, "ANSIBLE_NOCOLOR": "1", **environment}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    return done.returncode, " ".join((done.stdout + done.stderr).split())


@pytest.fixture
def init(tmp_path):
    """Return a function that writes the inventory `mine` below a directory of its own."""

    def run(*words, **environment):
        given = [word for text in (f"init_checkout={tmp_path}", "init_name=mine", *words) for word in ("-e", text)]
        code, output = play("init", *given, **environment)
        return code, output, tmp_path / "inventory/mine"

    return run


def site_of(directory):
    # Expressions are texts to YAML.
    return yaml.safe_load((directory / "group_vars/all/site.yml").read_text())


def test_a_list_of_hosts_becomes_an_inventory_that_validates_and_plans(init):
    code, output, directory = init("init_hosts=gpu[01-02]", "init_controller=ctl")
    assert code == 0, output
    code, output = play("validate", "-i", directory)
    assert code == 0, output
    data = json.dumps({"training_job_data_train": [{"prefix": "/mnt/shared/data/train", "weight": 1.0}]})
    code, output = play("plan", "-i", directory, "-e", data)
    assert code == 0, output


def test_what_init_writes_has_every_variable_that_is_required(init):
    _, _, directory = init("init_hosts=gpu01", "init_controller=ctl")
    (play_of_validate,) = [
        entry
        for entry in yaml.safe_load((ROOT / "playbooks/validate.yml").read_text())
        if entry["name"] == "Validate the inventory"
    ]
    required = play_of_validate["tasks"][0]["rackweave.cluster.validate_inventory"]["required"]
    assert "rackweave_fabric" in required
    assert set(required) <= set(site_of(directory))


@pytest.fixture
def scontrol(tmp_path):
    """Return a PATH with a scontrol that answers like that of a live cluster."""
    program = tmp_path / "bin/scontrol"
    program.parent.mkdir()
    (tmp_path / "nodes").write_text(NODES)
    program.write_text(
        f'#!/bin/sh\ncase "$2" in node) cat {tmp_path / "nodes"};; *) echo "SlurmctldHost[0] = ctl1(10.0.0.1)";; esac\n'
    )
    program.chmod(0o755)
    return f"{program.parent}:{os.environ['PATH']}"


def test_of_a_live_slurm_only_nodes_with_gpus_are_taken_and_declared_as_gres_says(init, scontrol):
    code, output, directory = init("init_slurm_host=localhost", PATH=scontrol)
    assert code == 0, output
    groups = yaml.safe_load((directory / "hosts.yml").read_text())["all"]["children"]
    assert list(groups["gpu_nodes"]["hosts"]) == ["gpu01", "gpu02"]
    assert list(groups["slurm_controller"]["hosts"]) == ["ctl1"]
    assert "left out, as they have no GPUs or were not asked for: cpu01" in output
    assert site_of(directory)["rackweave_hardware_class"] == {"gpu": "A100-80GB", "gpus_per_host": 4}
