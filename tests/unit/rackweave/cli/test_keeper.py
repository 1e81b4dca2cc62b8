"""A playbook ends with the operator that started it, with real processes: killed, cancelled, or by itself."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rackweave.cli import keeper

PACKAGES = Path(keeper.__file__).parents[2]
DEADLINE_S = 120  # only waited for in full when the claim does not hold
# Stands for a playbook: its worker leads a session of its own, as those of ansible-core 2.19 do. Both leave their
# number, the worker's written last, so that whoever reads it knows that all there is to end is there.
PLAY = """
import os, pathlib, signal, sys, time
for number in map(int, sys.argv[2].split()):
    signal.signal(number, signal.SIG_IGN)
place = pathlib.Path(sys.argv[1])
(place / "play").write_text(str(os.getpid()))
if os.fork() == 0:
    os.setsid()
    (place / "worker.part").write_text(str(os.getpid()))
    (place / "worker.part").rename(place / "worker")
while True:
    time.sleep(60)
"""
OPERATOR = """
import pathlib, subprocess, sys
sys.path.insert(0, sys.argv[1])
from rackweave.cli.keeper import bound_command
place = pathlib.Path(sys.argv[2])
bound_command(place, sys.executable)
front = subprocess.Popen([str(place / pathlib.Path(sys.executable).name), *sys.argv[3:]], start_new_session=True)
(place / "front.part").write_text(str(front.pid))
(place / "front.part").rename(place / "front")
front.wait()
"""
RUNNER = """
import io, pathlib, sys
sys.path.insert(0, sys.argv[1])
from rackweave.cli.playbooks import Screen, load_runner, player
from rackweave.cli.stopping import Stopping
place = pathlib.Path(sys.argv[2])
play = player(load_runner(), place, place / "hosts.json", Screen(io.StringIO(), False), {}, Stopping())
print(play("wait", {}, "").code)
"""


def until(claim, what):
    deadline = time.monotonic() + DEADLINE_S
    while not claim():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def started(path):
    """Return the process whose number stands in a file, with the moment it began."""
    until(path.exists, f"{path.name} did not start")
    pid = int(path.read_text())
    return pid, keeper.processes()[pid][1]


def runs(process):
    """Return whether a process is there; one that nobody has waited for is not."""
    pid, began = process
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX" and keeper.processes().get(pid, (0, ""))[1] == began


@pytest.fixture
def place(tmp_path):
    """A directory for what a test starts; whatever left its number there is killed at the end."""
    yield tmp_path
    for name in ("front", "worker", "play"):
        if (tmp_path / name).exists():
            try:
                os.kill(int((tmp_path / name).read_text()), signal.SIGKILL)
            except ProcessLookupError:
                continue


@pytest.fixture
def operator(place):
    """Start an operator with a playbook and its worker; return it with the three processes below it."""
    begun = []

    def start(ignored=""):
        words = [sys.executable, "-c", OPERATOR, str(PACKAGES), str(place), "-c", PLAY, str(place), ignored]
        begun.append(subprocess.Popen(words))
        return begun[-1], [started(place / name) for name in ("front", "play", "worker")]

    yield start
    for one in begun:
        one.kill()
        one.wait()


def test_output_and_status_are_those_of_the_command(tmp_path):
    keeper.bound_command(tmp_path, "/bin/sh")
    words = [str(tmp_path / "sh"), "-c", 'echo "to $1"; echo err >&2; exit 7', "sh", "a b'c"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (7, "to a b'c\n", "err\n")


def test_the_status_of_a_command_that_a_signal_ended_is_that_of_a_shell(tmp_path):
    keeper.bound_command(tmp_path, "/bin/sh")
    done = subprocess.run([str(tmp_path / "sh"), "-c", "kill -9 $$"], check=False)
    assert done.returncode == 128 + signal.SIGKILL


def test_a_command_that_is_not_there_ends_with_127_and_is_named(tmp_path):
    keeper.bound_command(tmp_path, "/nowhere/play")
    done = subprocess.run([str(tmp_path / "play")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (127, "/nowhere/play: No such file or directory\n")


def test_playbook_and_workers_end_when_the_operator_is_killed(operator):
    process, below = operator()
    assert all(map(runs, below))
    process.kill()
    until(lambda: not any(map(runs, below)), "something outlived the operator")


def test_playbook_and_workers_end_when_ansible_runner_kills_the_process_group(operator):
    process, below = operator()
    os.killpg(below[0][0], signal.SIGKILL)
    until(lambda: not any(map(runs, below)), "something outlived its cancellation")
    assert process.wait(DEADLINE_S) is not None


def test_what_does_not_end_when_asked_is_killed_with_its_workers(place, monkeypatch):
    monkeypatch.setattr(keeper, "GRACE_S", 0.2)
    words = [sys.executable, "-c", PLAY, str(place), f"{int(signal.SIGTERM)}"]
    child = subprocess.Popen(words)
    worker = started(place / "worker")
    keeper._end(child)
    assert child.returncode == -signal.SIGKILL
    until(lambda: not runs(worker), "the worker outlived its playbook")


def test_only_what_descends_from_a_process_is_below_it():
    known = {1: (0, "a"), 5: (1, "b"), 6: (5, "c"), 7: (6, "d"), 8: (1, "e")}
    assert keeper.below(5, known) == {6: (5, "c"), 7: (6, "d")}


def test_a_real_playbook_ends_when_the_operator_is_killed(place):
    pytest.importorskip("ansible_runner")
    (place / "playbooks").mkdir()
    (place / "ansible.cfg").write_text("[defaults]\n")
    variables = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    (place / "hosts.json").write_text(json.dumps({"all": {"hosts": {"here": variables}}}))
    task = {"ansible.builtin.command": {"argv": [sys.executable, "-c", PLAY, str(place), ""]}}
    play = [{"hosts": "all", "gather_facts": False, "tasks": [task]}]
    (place / "playbooks" / "wait.yml").write_text(json.dumps(play))
    operator = subprocess.Popen([sys.executable, "-c", RUNNER, str(PACKAGES), str(place)])
    try:
        until(lambda: (place / "worker").exists() or operator.poll() is not None, "the play did not start")
        known = keeper.processes()
        below = [(pid, began) for pid, (_, began) in keeper.below(operator.pid, known).items()]
        assert {int((place / name).read_text()) for name in ("play", "worker")} <= {pid for pid, _ in below}
    finally:
        operator.kill()
        operator.wait()
    until(lambda: not any(map(runs, below)), "something outlived the operator")
