"""An inventory that is none, or lacks the groups, is an error in every playbook and no play without hosts."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.lab import inventory_hosts

ROOT = Path(__file__).resolve().parents[3]
ANSIBLE = Path(sys.executable).parent / "ansible-playbook"
PLAYBOOKS = sorted((ROOT / "playbooks").glob("*.yml"))
GROUPS = ("slurm_controller", "gpu_nodes")
# They need no group: one writes an inventory, one takes the lab away whatever is left of it.
WITHOUT_GROUPS = {"init.yml", "lab_down.yml"}
NO_GROUPS = "all: {hosts: {a: {}}}"
NO_CONTROLLER = "all: {children: {gpu_nodes: {hosts: {n1: {}, n2: {}}}}}"
NO_NODES = "all: {hosts: {a: {}}, children: {slurm_controller: {hosts: {ctl: {}}}}}"


def run(playbook, inventory, *words):
    command = [ANSIBLE, "-i", inventory, f"playbooks/{playbook}.yml", *words]
    environment = {**os.environ, "ANSIBLE_NOCOLOR": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, " ".join((done.stdout + done.stderr).split())


@pytest.mark.parametrize("text", ["", NO_GROUPS, "all: {children: {gpu_nodes: {}}}"])
def test_an_inventory_without_the_groups_is_refused_with_how_many_hosts_they_have(tmp_path, text):
    (tmp_path / "hosts.yml").write_text(text)
    code, output = run("validate", tmp_path)
    assert code == 2
    assert f"the inventory {tmp_path} needs one host in slurm_controller (it has 0)" in output


def test_a_path_without_an_inventory_is_refused(tmp_path):
    code, output = run("validate", tmp_path / "inventory/mien")
    assert code != 0
    assert "No inventory was parsed" in output


# `--limit` may leave no host of the groups, or only some: it is the inventory that is asked.
@pytest.mark.parametrize(
    ("playbook", "text", "words", "nodes"),
    [
        ("plan", NO_GROUPS, (), (0, 0)),
        ("provision", NO_CONTROLLER, ("--tags", "slurm"), (0, 2)),
        ("rebuild", NO_CONTROLLER, ("--limit", "n2"), (0, 2)),
        ("rebuild", NO_NODES, ("--limit", "a"), (1, 0)),
    ],
)
def test_a_playbook_alone_refuses_it_too_and_runs_no_play_without_hosts(tmp_path, playbook, text, words, nodes):
    (tmp_path / "hosts.yml").write_text(text)
    code, output = run(playbook, tmp_path, *words)
    counts = f"one host in slurm_controller (it has {nodes[0]}) and one at least in gpu_nodes (it has {nodes[1]})"
    assert code == 2
    assert f"the inventory {tmp_path} needs {counts}; inventory/README.md says" in output
    assert "no hosts matched" not in output


def test_an_empty_inventory_is_refused_though_a_limit_leaves_out_this_machine_too(tmp_path):
    (tmp_path / "hosts.yml").write_text("")
    code, output = run("rebuild", tmp_path, "--limit", "n2")
    assert code != 0
    assert f"the inventory {tmp_path} has no hosts; inventory/README.md says" in output
    assert "no hosts matched" not in output


def of_the_groups(entry):
    return any(group in str(entry.get(key, "")) for group in GROUPS for key in ("hosts", "vars"))


@pytest.mark.parametrize("path", PLAYBOOKS, ids=lambda path: path.name)
def test_every_playbook_that_needs_the_groups_asks_for_them_first(path):
    first, *others = yaml.safe_load(path.read_text())
    imported = first.get("ansible.builtin.import_playbook", "")
    needed = path.name != "groups.yml" and any(of_the_groups(entry) for entry in [first, *others])
    assert (imported in ("groups.yml", "../site.yml")) == needed
    assert needed or path.name in {*WITHOUT_GROUPS, "groups.yml"}


def test_what_the_plan_would_refuse_is_refused_before_the_first_change_in_the_same_words(tmp_path):
    words = ("-e", "training_job_tensor_parallel_size=3", "-e", f"rackweave_state_dir={tmp_path}")
    said = {}
    for playbook in ("validate", "plan"):
        code, output = run(playbook, "inventory/prod", *words)
        assert code == 2
        said[playbook] = re.findall(r'FAILED! => .*?"msg": "(.*?)"', output)
    assert said["validate"] == said["plan"]
    assert "tensor_parallel_size=3" in said["plan"][0]


def test_a_first_run_without_documents_or_a_declared_class_is_no_error_and_writes_nothing(tmp_path):
    shutil.copytree(ROOT / "inventory/prod", tmp_path / "inventory/first")
    hardware = tmp_path / "inventory/first/group_vars/all/hardware.yml"
    hardware.write_text("rackweave_inventory: first\n")
    state = tmp_path / "state"
    words = ("-e", f"rackweave_state_dir={state}", "-e", f"rackweave_checkout={ROOT}")
    code, output = run("validate", tmp_path / "inventory/first", *words)
    assert code == 0, output
    assert "changed=0" in output
    assert not state.exists()


def observed_as(tmp_path, gpus):
    """Write documents of all nodes of inventory/prod below a state directory, with so many GPUs each."""
    example = next((ROOT / "inventory/hardware/examples").glob("*/*.json"))
    document = json.loads(example.read_text())
    document["gpus"] = document["gpus"][:gpus]
    (tmp_path / "observed").mkdir(parents=True)
    for host in inventory_hosts("inventory/prod")["gpu_nodes"]:
        (tmp_path / f"observed/{host}.json").write_text(json.dumps({**document, "host": host}))


# Of site.yml, as an operator runs it after a repair: `verify` observes the nodes before the plan.
def test_a_run_that_observes_anew_is_not_refused_for_what_nodes_lacked_when_last_observed(tmp_path):
    observed_as(tmp_path, gpus=1)
    values = {"training_job_tensor_parallel_size": 8, "rackweave_state_dir": str(tmp_path)}
    code, output = run("validate", "inventory/prod", "-e", json.dumps({**values, "validate_before_observation": True}))
    assert code == 0, output
    assert "WARNING: with the nodes as they were observed last, the plan would be refused: " in output
    assert "they are observed anew before it" in output
    code, output = run("validate", "inventory/prod", "-e", json.dumps(values))
    assert code == 2
    assert "be out of date, playbooks/verify.yml --tags verify_observe collects it anew" in output


def test_site_observes_anew():
    validate = yaml.safe_load((ROOT / "site.yml").read_text())[0]
    assert validate["ansible.builtin.import_playbook"] == "playbooks/validate.yml"
    assert validate["vars"] == {"validate_before_observation": True}


def test_sizes_that_no_nodes_of_the_class_could_have_are_refused_whatever_was_observed(tmp_path):
    observed_as(tmp_path, gpus=8)
    values = {"training_job_tensor_parallel_size": 3, "rackweave_state_dir": str(tmp_path)}
    code, output = run("validate", "inventory/prod", "-e", json.dumps({**values, "validate_before_observation": True}))
    assert code == 2
    assert "tensor_parallel_size=3" in output


@pytest.mark.parametrize(
    ("variable", "sentence"),
    [
        ("training_job_hosts=[trn01, tnr02]", "training_job_hosts names tnr02, which gpu_nodes"),
        ("training_job_documents_dir=/nowhere/at/all", "training_job_documents_dir /nowhere/at/all is no directory"),
    ],
)
def test_a_plan_for_nodes_or_from_documents_that_are_not_there_is_refused(tmp_path, variable, sentence):
    name, value = variable.split("=")
    words = ("-e", f"{{{name}: {value}, rackweave_state_dir: {tmp_path}}}")
    code, output = run("plan", "inventory/prod", *words)
    assert code == 2
    assert sentence in output
