"""What slurmd of a node has, against the controller and the node document."""

import pytest
from rackweave.slurm.nodes import takes_jobs

FILES = ("slurm.conf", "gres.conf", "cgroup.conf")


def fields(text):
    return dict(word.split("=", 1) for word in text.split() if "=" in word)


@pytest.mark.parametrize("name", FILES)
def test_slurmd_has_the_file_of_the_controller(node, slurm_host, entry, name):
    if not entry["slurm_manage"]:
        pytest.skip("this Slurm is not ours")
    there, here = slurm_host.file(f"{entry['slurm_directory']}/{name}"), node.file(f"/run/slurm/conf/{name}")
    assert there.content_string.startswith("# Written by Rackweave")
    assert here.exists
    assert here.sha256sum == there.sha256sum


def test_slurm_counts_the_gpus_of_the_node_document(node, controller, document):
    shown = fields(controller.check_output(f"scontrol --oneliner show node {node.inventory_name}"))
    assert shown["Gres"].rsplit(":", 1)[-1].split("(")[0] == str(len(document["gpus"]))


def test_slurm_takes_jobs_on_the_node(node, controller):
    shown = fields(controller.check_output(f"scontrol --oneliner show node {node.inventory_name}"))
    assert takes_jobs(shown["State"]), shown.get("Reason", "")


def test_every_gpu_of_the_node_document_has_its_device_file(node, document):
    wanted = [gpu["device_file"] for gpu in document["gpus"] if gpu["device_file"]]
    assert [path for path in wanted if not node.file(path).exists] == []


def test_the_trainer_runs_as_the_training_user(node, entry):
    if entry["runtime"] != "venv":
        pytest.skip("jobs run in an image, which is looked into before each start")
    code = "import torch, deepspeed, megatron.core, rackweave, trainer; print(trainer.__file__)"
    command = f"runuser -u {entry['train_user']} -- env DS_ACCELERATOR=cpu {entry['venv']}/bin/python -c '{code}'"
    assert node.check_output(command).splitlines()[-1].startswith(entry["venv"])


def test_the_trainers_packages_are_those_pinned(step, requirements):
    found = {name: step["packages"].get(name, "missing").split("+")[0] for name in requirements}
    assert found == {name: version.split("+")[0] for name, version in requirements.items()}


def test_a_step_writes_to_the_shared_directory(step, entry):
    assert step["user"] == entry["train_user"]
    if step["shared_write"] is None:
        pytest.skip("no run was launched yet, so there is no directory of runs")
    assert step["shared_write"] == ""
