"""A small file system of its own below the lab's shared directory, seen by several nodes at once.

The nodes are containers without the right to mount. A detached mount can be moved into another mount namespace by
whoever may enter that (open_tree and move_mount, Linux 5.2), so all nodes get the same one and fill the same one.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.lab import ROOT, Lab

OPEN_TREE, MOVE_MOUNT = 428, 429  # numbers of the system calls on every architecture
OPEN_TREE_CLONE = 1
MOVE_MOUNT_F_EMPTY_PATH = 4
CLONE_NEWNS = 0x20000
AT_FDCWD = -100


class SmallDisk:
    """A tmpfs of so many MiB at one path of several nodes."""

    def __init__(self, lab: Lab, path: str, mib: int) -> None:
        self.lab, self.path, self.mib = lab, path, mib
        self.pids: list[str] = []
        self.own = Path(tempfile.mkdtemp(prefix="small-disk-"))

    def mount(self, hosts: tuple[str, ...]) -> None:
        """Make it and put it there; it belongs to the user of the job."""
        options = f"size={self.mib}m,mode=0777"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "small-disk", str(self.own)], check=True)
        for host in hosts:
            pid = self.lab.podman("inspect", "--format", "{{.State.Pid}}", self.lab.container(host)).strip()
            # A process of its own, since only one with a single thread may change its mount namespace.
            words = [sys.executable, "-m", "tests.faults.small_disk", str(self.own), pid, self.path]
            subprocess.run(words, cwd=ROOT, check=True)
            self.pids.append(pid)

    def unmount(self) -> None:
        for pid in self.pids:
            subprocess.run(["nsenter", "--target", pid, "--mount", "umount", "--lazy", self.path], check=False)
        subprocess.run(["umount", "--lazy", str(self.own)], check=False)
        self.own.rmdir()


def put(source: str, pid: int, target: str) -> None:
    """Clone the mount at ``source`` and attach it at ``target`` in the mount namespace of a process."""
    libc = ctypes.CDLL(None, use_errno=True)
    tree = libc.syscall(OPEN_TREE, AT_FDCWD, source.encode(), OPEN_TREE_CLONE)
    if tree < 0:
        raise OSError(ctypes.get_errno(), f"open_tree {source}")
    namespace = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY)
    if libc.setns(namespace, CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), f"setns of process {pid}")
    if libc.syscall(MOVE_MOUNT, tree, b"", AT_FDCWD, target.encode(), MOVE_MOUNT_F_EMPTY_PATH) != 0:
        raise OSError(ctypes.get_errno(), f"move_mount to {target}")


if __name__ == "__main__":
    put(sys.argv[1], int(sys.argv[2]), sys.argv[3])
