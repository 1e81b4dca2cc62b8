"""The way of the driver to EL from blank, with stand-ins of dnf and rpm that answer from a listing of a repository."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.programs import path_with

ROOT = Path(__file__).resolve().parents[4]
PLAYBOOK = Path(sys.executable).parent / "ansible-playbook"
LISTINGS = json.loads((ROOT / "tests/fixtures/provision/nvidia_repositories.json").read_text())["listings"]
DRIVER = "570.133.20"
KERNEL = "5.14.0-503.14.1.el9_5"
HEADERS = {"kernel-devel": KERNEL}
SUBNET_MANAGER = {"nvlsm": "2025.06.6-1"}
(OFFERED,) = [it["packages"] for it in LISTINGS if (it["system"], it["driver"]) == ("el-9", DRIVER)]

DNF = """#!/usr/bin/env python3
import fnmatch, json, os, sys
machine = json.load(open(os.environ["MACHINE"]))
words = sys.argv[1:]
with open(os.environ["MACHINE"] + ".log", "a") as log:
    log.write(json.dumps(words) + "\\n")
if words[-3:-1] == ["module", "list"]:
    for stream, state in machine["streams"].items():
        print(f"{words[-1]} {stream:<10} {state} default [d], fm, ks  Nvidia driver")
elif "repoquery" in words:
    asked = words[words.index("--queryformat") + 2 :]
    assert "--disable-modular-filtering" in words or not machine["streams"]
    for name, version in machine["offered"].items():
        full = f"{name}-{version.rpartition(':')[2]}"
        if any(fnmatch.fnmatch(text, it) for it in asked for text in (name, full, full + ".x86_64")):
            print(f"{name} {version}\\n")
"""
RPM = """#!/usr/bin/env python3
import json, os, sys
installed = json.load(open(os.environ["MACHINE"]))["installed"]
for name in sys.argv[4:]:
    print(f"{name}\\t{installed[name]}\\tinstalled" if name in installed else f"package {name} is not installed")
"""
MACHINES = {
    "blank": {"installed": {}, "offered": {**OFFERED, **HEADERS, **SUBNET_MANAGER}, "streams": {"570-open": "   "}},
    "done": {"installed": {**OFFERED, **SUBNET_MANAGER}, "offered": OFFERED, "streams": {"570-open": "[e]"}},
    "mirror": {"installed": {}, "offered": {**OFFERED, **HEADERS, **SUBNET_MANAGER}, "streams": {}},
    "other-kernel": {"installed": {}, "offered": {**OFFERED, "kernel-devel": "5.14.0-570.el9"}, "streams": {}},
}


def role(file):
    include = {"name": "rackweave.cluster.gpu_driver", "tasks_from": file}
    return {"ansible.builtin.include_role": include}


@pytest.fixture(scope="module")
def assessed(tmp_path_factory):
    """Return what a play says of each machine, and the calls of dnf."""
    directory = tmp_path_factory.mktemp("dnf")
    for name, text in (("dnf", DNF), ("rpm", RPM)):
        (directory / name).write_text(text)
        (directory / name).chmod(0o755)
    for name, machine in MACHINES.items():
        (directory / name).with_suffix(".json").write_text(json.dumps(machine))
    shown = "{{ {'specs': __gpu_driver_specs, 'changes': __gpu_driver_plan.changes} | to_json }}"
    tasks = [
        {"ansible.builtin.include_vars": str(ROOT / "roles/gpu_driver/vars/el-9.yml")},
        role("assess_dnf"),
        role("stream_dnf"),
        {"ansible.builtin.copy": {"content": shown, "dest": f"{directory}/{{{{ inventory_hostname }}}}.result"}},
    ]
    environment = {"PATH": path_with(directory), "MACHINE": f"{directory}/{{{{ inventory_hostname }}}}.json"}
    play = {"hosts": "all", "gather_facts": False, "environment": environment, "tasks": tasks}
    (directory / "play.yml").write_text(yaml.safe_dump([play]))
    facts = {"kernel": f"{KERNEL}.x86_64", "headers": False, "kernels": []}
    hosts = {name: {"__gpu_driver_facts": {**facts, "headers": name == "done"}} for name in MACHINES}
    (directory / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": hosts}}))
    variables = {
        "ansible_become": False, "ansible_pipelining": True, "ansible_python_interpreter": sys.executable,
        "gpu_driver_source": "nvidia", "gpu_driver_version": DRIVER, "gpu_driver_flavour": "open",
        "gpu_driver_packages": [], "__gpu_driver_fabric_manager": {"wanted": True, "subnet_manager": True},
    }  # fmt: skip
    command = [
        PLAYBOOK,
        "-c",
        "local",
        "-i",
        directory / "hosts.yml",
        directory / "play.yml",
        "-e",
        json.dumps(variables),
    ]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "ANSIBLE_NOCOLOR": "1"}, capture_output=True, text=True, check=False
    )
    results = {path.stem: json.loads(path.read_text()) for path in directory.glob("*.result")}
    calls = {
        name: [json.loads(line) for line in (directory / f"{name}.json.log").read_text().splitlines()]
        for name in MACHINES
    }
    return done, results, calls


def test_from_blank_dnf_is_asked_for_driver_fabric_headers_and_what_has_another_version(assessed):
    done, results, _ = assessed
    assert "blank" in results, done.stdout + done.stderr
    names = ["kmod-nvidia-open-dkms", "libnvidia-nscq-570", "nvidia-driver-cuda", "nvidia-fabric-manager"]
    exact = [f"{name}-{DRIVER}*" for name in [*names, "nvidia-persistenced"]]
    headers = f"kernel-devel-{KERNEL}.x86_64"
    assert results["blank"]["specs"] == [*exact, "nvlsm", headers]
    assert results["blank"]["changes"] == [*names, "nvidia-persistenced", "nvlsm", headers]
    assert results["mirror"] == results["blank"]


def test_where_everything_is_there_nothing_changes(assessed):
    done, results, calls = assessed
    assert "done" in results, done.stdout + done.stderr
    assert results["done"]["changes"] == []
    assert not [call for call in calls["done"] if "enable" in call]


def test_the_stream_of_the_branch_is_enabled_where_the_repository_has_one(assessed):
    _, _, calls = assessed
    enabled = [call for call in calls["blank"] if "enable" in call]
    assert [call[-1] for call in enabled] == ["nvidia-driver:570-open"]
    assert not [call for call in calls["mirror"] if "enable" in call]


def test_headers_of_another_kernel_are_none(assessed):
    done, results, _ = assessed
    assert "other-kernel" not in results
    assert f"no kernel headers for the running kernel {KERNEL}.x86_64" in " ".join(done.stdout.split())
