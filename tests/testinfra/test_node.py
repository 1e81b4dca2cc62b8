"""What a provisioned node shows a job, not which package it has."""

import json
from pathlib import Path

import pytest


def fields(text):
    return dict(word.split("=", 1) for word in text.split() if "=" in word)


def hostname(host):
    return host.check_output("hostname --short")


def test_no_unit_has_failed(any_node):
    failed = any_node.check_output("systemctl --failed --plain --no-legend | cut -d' ' -f1").split()
    journal = "\n".join(any_node.run(f"journalctl --no-pager -n 30 -u {unit}").stdout for unit in failed)
    assert not failed, journal


def test_the_training_user_has_the_same_uid_everywhere(any_node, controller, variables):
    user = next(iter(variables.values()))["train_user"]
    assert any_node.user(user).uid == controller.user(user).uid
    assert any_node.user(user).uid != 0


def test_every_node_finds_the_others_by_name(any_node, variables):
    for name, entry in variables.items():
        assert entry["address"] in (name, *any_node.check_output(f"getent ahostsv4 {name}").split())


def test_the_munge_key_is_one_key_that_only_munge_reads(any_node, controller):
    key = any_node.file("/etc/munge/munge.key")
    assert key.mode == 0o400
    assert key.user == "munge"
    assert key.sha256sum == controller.file("/etc/munge/munge.key").sha256sum


def test_a_credential_of_the_controller_is_accepted(any_node, controller):
    credential = controller.check_output("munge --no-input")
    assert any_node.run(f"echo '{credential}' | unmunge --output /dev/null").rc == 0


def test_locked_memory_is_configured_without_limit_in_all_places(node):
    logins = node.file("/etc/security/limits.d/90-rackweave.conf").content_string
    assert {("*", "soft"), ("*", "hard"), ("root", "soft"), ("root", "hard")} == {
        tuple(line.split()[:2]) for line in logins.splitlines() if line.endswith(" memlock unlimited")
    }
    assert node.check_output("systemctl show slurmd --property LimitMEMLOCK") == "LimitMEMLOCK=infinity"
    assert "DefaultLimitMEMLOCK=infinity" in node.file("/etc/systemd/system.conf.d/90-rackweave.conf").content_string


def test_slurmd_has_the_configuration_of_the_controller(node, controller):
    for name in ("slurm.conf", "gres.conf", "cgroup.conf"):
        there, here = controller.file(f"/etc/slurm/{name}"), node.file(f"/run/slurm/conf/{name}")
        assert there.content_string.startswith("# Written by Rackweave")
        assert here.sha256sum == there.sha256sum


def test_slurm_counts_the_gpus_of_the_node_document(node, controller, variables):
    name = hostname(node)
    document = json.loads((Path(variables[name]["documents"]) / f"{name}.json").read_text())
    shown = fields(controller.check_output(f"scontrol --oneliner show node {name}"))
    assert shown["Gres"].rsplit(":", 1)[-1].split("(")[0] == str(len(document["gpus"]))
    assert shown["State"].split("+")[0].rstrip("*") in ("IDLE", "ALLOCATED", "MIXED")


def test_the_trainer_runs_as_the_training_user(node, variables):
    entry = variables[hostname(node)]
    code = "import torch, deepspeed, megatron.core, rackweave, trainer; print(trainer.__file__)"
    command = f"runuser -u {entry['train_user']} -- env DS_ACCELERATOR=cpu {entry['venv']}/bin/python -c '{code}'"
    assert node.check_output(command).splitlines()[-1].startswith(entry["venv"])


@pytest.mark.parametrize("path", ["/etc/munge/munge.key"])
def test_no_secret_is_readable_by_the_training_user(node, variables, path):
    user = variables[hostname(node)]["train_user"]
    assert node.run(f"runuser -u {user} -- cat {path}").rc != 0
