"""Holding with apt-mark and with dnf's version locks, against stand-ins of both."""

import importlib
import json

import pytest
from ansible.module_utils.testing import patch_module_args

holds = importlib.import_module("ansible_collections.rackweave.cluster.plugins.modules.package_holds")
DPKG = "nvidia-driver-cuda\t570.86.10-1\tinstalled\nlibc6\t2.36\tinstalled\nnvidia-old\t1\tconfig-files\n"
RPM = "kernel-core\t0:5.14.0-362.el9\tinstalled\nglibc\t0:2.34-60.el9\tinstalled\n"


@pytest.fixture
def machine(tmp_path, monkeypatch, capsys):
    """Return a function that runs the module among stand-in tools, and the log of what they were asked to do."""
    log = tmp_path / "log"
    log.touch()
    tools = tmp_path / "tools"
    tools.mkdir()
    monkeypatch.setattr(holds, "MOVE_HELD_FILE", tmp_path / "rackweave/apt-move-held.conf")
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")

    def tool(name, body):
        (tools / name).write_text(f"#!/bin/sh\n{body}\n")
        (tools / name).chmod(0o755)

    def run(check_mode=False):
        capsys.readouterr()
        with patch_module_args({"_ansible_check_mode": check_mode}), pytest.raises(SystemExit):
            holds.main()
        return json.loads(capsys.readouterr().out), log.read_text()

    run.tool, run.log = tool, log
    return run


@pytest.fixture
def debian(machine, tmp_path):
    machine.tool("dpkg-query", f"cat <<'E'\n{DPKG}E")
    held = tmp_path / "held"
    show = f'[ "$1" = showhold ] && {{ cat {held} 2>/dev/null; exit 0; }}'
    machine.tool("apt-mark", f'{show}; shift; echo "$@" | tee -a {held} >>{machine.log}')
    return machine


def test_installed_packages_are_held_and_a_second_run_changes_nothing(debian, tmp_path):
    result, log = debian()
    assert (result["changed"], result["held"], log) == (True, ["nvidia-driver-cuda"], "nvidia-driver-cuda\n")
    assert (tmp_path / "rackweave/apt-move-held.conf").read_text() == 'APT::Ignore-Hold "true";\n'
    again, log = debian()
    assert (again["changed"], log) == (False, "nvidia-driver-cuda\n")


def test_check_mode_holds_nothing(debian, tmp_path):
    result, log = debian(check_mode=True)
    assert (result["changed"], result["added"], log) == (True, ["nvidia-driver-cuda"], "")
    assert not (tmp_path / "rackweave").exists()


def test_a_version_lock_follows_the_installed_version(machine, monkeypatch):
    monkeypatch.setattr(holds, "hold_dpkg", holds.hold_rpm)
    machine.tool("rpm", f"cat <<'E'\n{RPM}E")
    machine.tool("dnf", f'[ "$3" = list ] && echo "kernel-core-0:5.14.0-284.el9.*" || echo "$3 $4" >>{machine.log}')
    result, log = machine()
    assert result["changed"] is True
    assert log == "delete kernel-core-0:5.14.0-284.el9.*\nadd kernel-core-0:5.14.0-362.el9\n"
