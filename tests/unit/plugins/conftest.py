"""Run actions and modules of the collection in this process, the way Ansible would call them."""

import json
from importlib import import_module
from types import SimpleNamespace

import pytest

COLLECTION = "ansible_collections.rackweave.cluster.plugins"


@pytest.fixture
def run_action():
    """Call an action plugin with arguments; returns its result."""

    def run(name, check_mode=False, task_vars=None, **arguments):
        task = SimpleNamespace(args=arguments, async_val=0, check_mode=check_mode, diff=False, action=name)
        module = import_module(f"{COLLECTION}.action.{name}")
        shell = SimpleNamespace(tmpdir=None)
        action = module.ActionModule(task, SimpleNamespace(_shell=shell), None, None, None, None)
        return action.run(None, task_vars or {})

    return run


@pytest.fixture
def run_module(monkeypatch, capsys):
    """Call a module with arguments; returns its JSON result."""
    from ansible.module_utils.testing import patch_module_args

    def run(name, check_mode=False, **arguments):
        module = import_module(f"{COLLECTION}.modules.{name}")
        capsys.readouterr()
        with patch_module_args({**arguments, "_ansible_check_mode": check_mode}), pytest.raises(SystemExit):
            module.main()
        return json.loads(capsys.readouterr().out)

    return run
