"""A controller, a submit host with stand-ins for Slurm, and a shared directory, all in one temporary directory."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.programs import path_with

ROOT = Path(__file__).parents[4]
CONTRACTS = ROOT / "tests" / "fixtures" / "contracts"


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """State of the stand-in Slurm: read() it, write(**changes) to it."""
    path = tmp_path / "slurm.json"
    monkeypatch.setenv("STUB_SLURM", str(path))
    monkeypatch.setenv("PATH", path_with(ROOT / "tests/fixtures/slurm"))

    def read():
        return json.loads(path.read_text()) if path.exists() else {"jobs": {}, "calls": []}

    def write(**changes):
        path.write_text(json.dumps({**read(), **changes}))

    def commands():
        return [call[0] for call in read()["calls"]]

    return SimpleNamespace(read=read, write=write, commands=commands)


@pytest.fixture
def as_user(monkeypatch):
    """Modules run as an ordinary user (nobody), whoever runs the tests."""
    monkeypatch.setattr(os, "getuid", lambda: 65534)


@pytest.fixture
def on_submit_host(monkeypatch, run_module, slurm, as_user):
    """Actions reach the submit host's modules in this process."""
    from ansible.plugins.action import ActionBase

    calls = []

    def execute(self, module_name, module_args, task_vars=None):
        name = module_name.rsplit(".", 1)[1]
        calls.append((name, module_args))
        return run_module(name, check_mode=bool(self._task.check_mode), **module_args)

    monkeypatch.setattr(ActionBase, "_execute_module", execute)
    return calls


@pytest.fixture
def plan_dir(tmp_path):
    """The run files of the committed example plan, as plan.yml leaves them."""
    from rackweave.run.batch import BatchSettings
    from rackweave.run.files import NODE_SCRIPTS, SCRIPT_BODY, compose_run_files

    scripts = {name: f"# {name}\n" for name in (SCRIPT_BODY, *NODE_SCRIPTS)}
    settings = BatchSettings(
        run="demo",
        run_dir=str(tmp_path / "shared" / "runs" / "demo"),
        venv="/venv",
        command=("python", "-m", "trainer"),
        time_limit_s=3600,
        save_signal_s=60,
        stall_s=60,
        requeue_ok=False,
        max_restarts=1,
        gpus_per_node=2,
    )
    layout, train = (json.loads((CONTRACTS / name).read_text()) for name in ("plan.json", "train.json"))
    directory = tmp_path / "plan" / "demo"
    (directory / "nccl").mkdir(parents=True)
    for name, text in compose_run_files(layout, train, settings, scripts).items():
        (directory / name).write_text(text)
    for host in ("node-a", "node-b"):
        (directory / "nccl" / f"{host}.conf").write_text("GLOO_SOCKET_IFNAME=eth0\n")
    return directory


@pytest.fixture
def shared(tmp_path):
    path = tmp_path / "shared"
    (path / "runs" / "demo").mkdir(parents=True)
    return path
