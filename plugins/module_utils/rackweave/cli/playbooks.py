"""Run playbooks of this checkout through ansible-runner, and pick out of its events what `operate` needs."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import DocumentError
from ..watch.live_bar import bar
from ..watch.operation import Played
from .keeper import bound_command
from .stopping import Stopping

# Actions whose results an operation reads.
WANTED = ("recovery_decision", "run_list", "job_submit")
_FAILURE_EVENTS = ("runner_on_failed", "runner_on_unreachable")


def load_runner() -> ModuleType:
    """Return ansible-runner, which nothing else here needs.

    Raises:
        DocumentError: if it is not installed.
    """
    if find_spec("ansible_runner") is None:
        raise DocumentError(
            "ansible-runner is not installed for this Python; `scripts/setup controller` installs it into .venv, and "
            ".venv/bin/rackweave uses it"
        )
    return import_module("ansible_runner")


class Screen:
    """Shows lines; where a terminal is attached, progress is one line that is written over."""

    def __init__(self, stream: Any, verbose: bool) -> None:
        self.stream, self.verbose = stream, verbose
        self.terminal = bool(stream.isatty())
        self._bar = ""

    def line(self, text: str) -> None:
        """Show a line of a watch: progress as a bar on a terminal, all else as it is."""
        width = shutil.get_terminal_size().columns - 1
        drawn = bar(text, width) if self.terminal else None
        if drawn is not None:
            self.stream.write("\r" + drawn.ljust(len(self._bar)))
            self._bar = drawn
        else:
            self.stream.write(("\r" + " " * len(self._bar) + "\r" if self._bar else "") + text.rstrip() + "\n")
            self._bar = ""
        self.stream.flush()


@dataclass
class Gathered:
    """What the events of one playbook held."""

    screen: Screen
    results: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    problem: str = ""

    def take(self, event: Mapping[str, Any]) -> bool:
        """Take one event of ansible-runner; it need not keep it on disk."""
        kind, data = event.get("event"), event.get("event_data") or {}
        text = str(event.get("stdout") or "")
        if text and (self.screen.verbose or (kind == "verbose" and text.startswith("["))):
            self.screen.line(text)
        action = str(data.get("task_action", "")).rpartition(".")[2]
        # A task that failed may return anything; without a result the caller knows that it knows nothing.
        if kind == "runner_on_ok" and action in WANTED and isinstance(data.get("res"), dict):
            self.results[action] = data["res"]
        if kind in _FAILURE_EVENTS and not data.get("ignore_errors"):
            answer = data.get("res") or {}
            self.problem = f"{data.get('task')}: {answer.get('msg') or answer.get('stderr') or 'no message'}"
        return False


def player(
    runner: ModuleType, checkout: Path, inventory: Path, screen: Screen, common: Mapping[str, str], stopping: Stopping
) -> Callable[..., Played]:
    """Return the function that runs one of our playbooks; ``common`` are variables of all of them.

    It raises StopAsked once the end was asked for: what a cancelled playbook returned means nothing.
    """

    def play(name: str, variables: Mapping[str, Any], limit: str) -> Played:
        playbook = checkout / "playbooks" / f"{name}.yml"
        if not playbook.is_file():
            return Played(2, {}, f"playbooks/{name}.yml is not there")
        gathered = Gathered(screen)
        with tempfile.TemporaryDirectory(prefix="rackweave-operate-") as private:
            done = runner.run(
                private_data_dir=private,
                project_dir=str(checkout),
                playbook=str(playbook),
                inventory=str(inventory),
                extravars={**common, **variables},
                limit=limit or None,
                envvars=bound_environment(checkout, Path(private)),
                event_handler=gathered.take,
                cancel_callback=stopping.asked,
                quiet=True,
            )
        stopping.check()
        code = int(done.rc or 0)
        return Played(code, gathered.results, gathered.problem if code else "")

    return play


def play_environment(checkout: Path) -> dict[str, str]:
    """The playbooks' own configuration and interpreter, wherever the service was started."""
    here = str(Path(sys.executable).parent)
    return {
        "ANSIBLE_CONFIG": str(checkout / "ansible.cfg"),
        "PATH": os.pathsep.join([here, os.environ.get("PATH", "/usr/bin:/bin")]),
        "ANSIBLE_NOCOLOR": "1",
    }


def bound_environment(checkout: Path, private: Path) -> dict[str, str]:
    """As `play_environment`, with an ``ansible-playbook`` that ends when this process does, even if it is killed.

    A program in the private directory stands for it. Where that must not hold programs (a file system that is mounted
    noexec), ansible-runner passes it over, and the playbook is the bare one.
    """
    found = play_environment(checkout)
    command = shutil.which("ansible-playbook", path=found["PATH"])
    if command is not None:
        programs = private / "bound"
        programs.mkdir()
        bound_command(programs, str(Path(command).absolute()))
        found["PATH"] = os.pathsep.join([str(programs), found["PATH"]])
    return found


def setting(runner: ModuleType, checkout: Path, inventory: Path, name: str) -> str:
    """Return a variable of the inventory as Ansible sees it; no host is contacted.

    Raises:
        DocumentError: if the inventory has no such variable.
    """
    found: list[str] = []

    def take(event: Mapping[str, Any]) -> bool:
        answer = (event.get("event_data") or {}).get("res") or {}
        if event.get("event") == "runner_on_ok" and isinstance(answer.get(name), str):
            found.append(answer[name])
        return False

    with tempfile.TemporaryDirectory(prefix="rackweave-operate-") as private:
        runner.run(
            private_data_dir=private,
            project_dir=str(checkout),
            inventory=str(inventory),
            host_pattern="slurm_controller",
            module="ansible.builtin.debug",
            module_args=f"var={name}",
            envvars=play_environment(checkout),
            event_handler=take,
            quiet=True,
        )
    if not found or "VARIABLE IS NOT DEFINED" in found[0]:
        raise DocumentError(
            f"{inventory} defines no {name}; see inventory/README.md, and ansible-inventory -i {inventory} --list"
        )
    return found[0]
