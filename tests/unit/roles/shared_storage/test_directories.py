"""Directories of a shared file system are made from a host that has it mounted, never below an empty mount point."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[4]
ROLE = ROOT / "roles/shared_storage"
ANSIBLE = Path(sys.executable).parent / "ansible-playbook"


@pytest.fixture
def prepare(tmp_path):
    """Return a function that prepares a directory from hosts of which some wait for their mount."""
    private = yaml.safe_load((ROLE / "vars/main.yml").read_text())
    names = ("__shared_storage_absent", "__shared_storage_ready", "__shared_storage_types", "__shared_storage_wanted")
    variables = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "ansible_become": False,
        "node_context_disruptive_ok": False,
        "__shared_storage_guarded": False,
        "shared_storage_directories": [{"path": str(tmp_path / "pfs/runs")}],
        **{name: private[name] for name in names},
    }
    play = {
        "name": "Directories",
        "hosts": "all",
        "gather_facts": False,
        "tasks": [
            {"ansible.builtin.include_tasks": str(ROLE / "tasks/directories.yml")},
            {"name": "Say", "ansible.builtin.debug": {"msg": "pending={{ rackweave_pending | default([]) | length }}"}},
        ],
    }
    (tmp_path / "play.yml").write_text(yaml.safe_dump([play], sort_keys=False))

    def run(*waiting):
        mount = {"path": str(tmp_path / "pfs"), "type": "nfs", "source": "nas:/export"}
        hosts = {name: {"shared_storage_mounts": [mount] if name in waiting else []} for name in ("n1", "n2")}
        (tmp_path / "hosts.yml").write_text(json.dumps({"all": {"hosts": hosts, "vars": variables}}))
        command = [ANSIBLE, "-i", tmp_path / "hosts.yml", tmp_path / "play.yml"]
        environment = {**os.environ, "ANSIBLE_NOCOLOR": "1"}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def test_the_first_host_that_has_the_file_system_makes_them(prepare, tmp_path):
    output = prepare("n1")
    assert (tmp_path / "pfs/runs").is_dir()
    assert "changed: [n2]" in output
    assert "changed: [n1]" not in output
    assert "pending=1" not in output


def test_where_no_host_has_it_mounted_nothing_is_made_and_that_is_listed(prepare, tmp_path):
    output = prepare("n1", "n2")
    assert not (tmp_path / "pfs").exists()
    assert output.count("pending=1") == 1
