"""The machine that the collector reads: files below a root, and tools. Used by the module and by `rackweave nccl`."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence

from ..hardware.order import natural_key
from ..hardware.system import ToolOutput

TOOL_TIMEOUT_S = 10.0
# sysfs files are at most a page; /proc/cpuinfo of a large machine is some hundred kB.
READ_LIMIT = 4 << 20
PIECE = 64 << 10
TOOL_DIRECTORIES = ("/usr/sbin", "/usr/bin", "/sbin", "/bin", "/usr/local/sbin", "/usr/local/bin")


class LocalSystem:
    """Files and tools of this machine, or of a recorded tree.

    Several roots lie over each other: a path is taken from the first that has it (a simulated tree over the real
    root). Tools are taken from the tool directories below the roots, in the same order.
    """

    def __init__(self, roots: Sequence[str] = ("/",)) -> None:
        self._roots = [os.path.realpath(root) for root in roots]
        self._start = time.monotonic()

    def read(self, path: str) -> str | None:
        """Return the text of a file without trailing white space, None where it is absent or unreadable."""
        data = self.read_bytes(path, READ_LIMIT)
        return None if data is None else data.decode("utf-8", "replace").rstrip()

    def read_bytes(self, path: str, limit: int) -> bytes | None:
        """Return at most ``limit`` bytes of a file, None where it is absent or unreadable."""
        for root in self._roots:
            try:
                return _content(self._below(root, path), limit)
            except OSError:
                # Absent, not permitted, or refused by the kernel (EINVAL for an empty GID): all mean "unknown".
                continue
        return None

    def names(self, path: str) -> list[str]:
        """Return the entries of a directory (of all roots) in natural order."""
        found: set[str] = set()
        for root in self._roots:
            try:
                found.update(os.listdir(self._below(root, path)))
            except OSError:
                continue
        return sorted(found, key=natural_key)

    def target(self, path: str) -> str | None:
        """Return the path with all links resolved, as the machine itself would name it."""
        for root in self._roots:
            real = os.path.realpath(self._below(root, path))
            if os.path.exists(real):
                return real if root == "/" else real[len(root) :]
        return None

    def link(self, path: str) -> str | None:
        """Return what a link says, None where there is none or it is not readable."""
        for root in self._roots:
            try:
                return os.readlink(self._below(root, path))
            except OSError:
                continue
        return None

    def can_open(self, path: str) -> bool:
        """Say whether this process may open a device for reading and writing."""
        for root in self._roots:
            try:
                os.close(os.open(self._below(root, path), os.O_RDWR | os.O_CLOEXEC))
            except OSError:
                continue
            return True
        return False

    def capacity_bytes(self, path: str) -> int | None:
        """Return the size of a file system; None in a recorded tree, where the answer would be this machine's."""
        if "/" not in self._roots:
            return None
        try:
            status = os.statvfs(path)
        except OSError:
            return None
        return status.f_frsize * status.f_blocks

    def run_all(self, commands: Sequence[Sequence[str]]) -> list[ToolOutput | None]:
        """Run tools side by side in the C locale; None for one that is not installed or does not end in time."""
        started = [self._start_tool(command) for command in commands]
        deadline = time.monotonic() + TOOL_TIMEOUT_S
        return [_finish(process, deadline) for process in started]

    def seconds(self) -> float:
        """Return the seconds since this object was made."""
        return time.monotonic() - self._start

    def _start_tool(self, command: Sequence[str]) -> subprocess.Popen[bytes] | None:
        program = self._program(command[0])
        if program is None:
            return None
        environment = {**os.environ, "LC_ALL": "C", "LANG": "C", "PATH": os.pathsep.join(TOOL_DIRECTORIES)}
        try:
            return subprocess.Popen(
                [program, *command[1:]],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
            )
        except OSError:
            return None

    def _program(self, name: str) -> str | None:
        for root in self._roots:
            for directory in TOOL_DIRECTORIES:
                path = self._below(root, f"{directory}/{name}")
                if os.access(path, os.X_OK):
                    return path
        return None

    @staticmethod
    def _below(root: str, path: str) -> str:
        return os.path.join(root, path.lstrip("/"))


def _content(path: str, limit: int) -> bytes:
    # In pieces: below /proc/sys the kernel allocates a buffer of the size asked for, and refuses large ones.
    pieces = []
    with open(path, "rb", buffering=0) as file:
        while limit > 0:
            piece = file.read(min(limit, PIECE))
            if not piece:
                break
            pieces.append(piece)
            limit -= len(piece)
    return b"".join(pieces)


def _finish(process: subprocess.Popen[bytes] | None, deadline: float) -> ToolOutput | None:
    if process is None:
        return None
    try:
        stdout, stderr = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return None
    return ToolOutput(process.returncode, stdout.decode("utf-8", "replace"), stderr.decode("utf-8", "replace"))
