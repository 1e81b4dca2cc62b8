"""Bind a playbook to the operator that started it: when the operator is gone, however it went, the playbook ends.

ansible-runner ends a playbook by killing its process group, and what is killed itself cannot end anything; but the
workers of ansible-core 2.19 lead process groups of their own. So two processes stand between: a front, which
ansible-runner takes for the playbook and which ends as soon as the operator has, and a keeper in a session of its own,
which asks the playbook to end as soon as the front has, and then kills what is left of its tree.

Run by its path, as ``keeper.py PID COMMAND...``; it imports nothing of the package.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

LOOK_S = 0.2
# How long a playbook may take to end its workers before it is killed.
GRACE_S = 20.0


def bound_command(directory: Path, command: str) -> None:
    """Write a program of the name of ``command`` into a directory; it runs ``command`` for as long as we live.

    Args:
        directory: an empty directory that only we write; to be put in front of PATH.
        command: absolute path of the program that is bound.
    """
    words = [sys.executable, "-I", str(Path(__file__).resolve()), str(os.getpid()), command]
    path = directory / Path(command).name
    path.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', encoding="utf-8")
    path.chmod(0o700)


def main(words: list[str]) -> int:
    """Be the front: start the keeper, end with the status of the command, or as soon as the operator is gone."""
    operator, command = int(words[0]), words[1:]
    front = os.getpid()
    keeper = os.fork()
    if keeper == 0:
        os._exit(_keep(front, command))
    while os.getppid() == operator:
        ended, status = os.waitpid(keeper, os.WNOHANG)
        if ended:
            return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
        time.sleep(LOOK_S)
    return 128 + signal.SIGTERM


def _keep(front: int, command: list[str]) -> int:
    """Run the command; end it once the front is gone. Returns its exit status as a shell would show it."""
    os.setsid()
    try:
        child = subprocess.Popen(command)
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        return 127
    while child.poll() is None:
        if os.getppid() != front:
            _end(child)
            break
        time.sleep(LOOK_S)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _end(child: subprocess.Popen[bytes]) -> None:
    """Ask the command to end, then kill whatever still runs of those that were below it."""
    tree = below(child.pid, processes())
    child.terminate()
    try:
        child.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    now = processes()
    for pid, (_, started) in tree.items():
        if pid in now and now[pid][1] == started:  # the same process, not a later one with its number
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def processes() -> dict[int, tuple[int, str]]:
    """Return each process with its parent and the moment it started (clock ticks since boot); none without /proc."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name may hold spaces and brackets; what counts comes behind the last one.
            fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        found[int(path.parent.name)] = (int(fields[1]), fields[19])
    return found


def below(pid: int, known: dict[int, tuple[int, str]]) -> dict[int, tuple[int, str]]:
    """Return the processes that descend from one. A connection that ssh keeps for others has left the tree."""
    found: dict[int, tuple[int, str]] = {}
    parents = {pid}
    while parents:
        parents = {child for child, (parent, _) in known.items() if parent in parents and child not in found}
        found.update({child: known[child] for child in parents})
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
