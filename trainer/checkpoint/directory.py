"""A run's checkpoint directory: who owns it, which checkpoints lie there, which is the latest, which may go."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import re
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import StopError
from .storage import write_durably

OWNER_SCHEMA = "rackweave.checkpoints/1"
MANIFESTS = "manifest"
STATE_FILE = "state.json"
SEAL_FILE = "seal.json"
VALIDATED_FILE = "validated.json"
OWNER_FILE = "owner.json"
LATEST_FILE = "latest"
LOCK_FILE = ".lock"
_STEP = re.compile(r"^step_([0-9]+)$")
REPLACED = ".replaced"
_LEFTOVER = re.compile(r"^step_[0-9]+\.(tmp|old|replaced)$")
LOG = logging.getLogger("trainer.checkpoint")


@dataclass(frozen=True)
class Published:
    """A checkpoint that was renamed into place: complete when it was published, not necessarily still whole."""

    step: int
    path: Path

    @property
    def validated(self) -> bool:
        """Whether it was read back and found good after it was published."""
        return (self.path / VALIDATED_FILE).is_file()


class CheckpointDirectory:
    """The directory on the shared file system; methods that write are for the coordinator (rank 0) only."""

    def __init__(self, path: Path, run: str) -> None:
        self.path, self._run = path, run
        self._lock: int | None = None

    def claim(self) -> None:
        """Make the directory ours for the life of this process.

        Raises:
            StopError: if it belongs to another run, to nobody we know, or to a job that still runs, or cannot be
                written.
        """
        try:
            self._claim()
        except OSError as error:
            raise StopError(f"the checkpoint directory {self.path} cannot be used: {error}") from error

    def _claim(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        self._check_owner()
        self._take_lock()
        try:
            # Another job may have come and gone before the lock was free.
            self._check_owner()
        except StopError:
            self.release()
            raise
        owner = self.path / OWNER_FILE
        if not owner.is_file():
            write_durably(owner, json.dumps({"schema": OWNER_SCHEMA, "run": self._run}) + "\n")

    def _check_owner(self) -> None:
        owner = self.path / OWNER_FILE
        if not owner.is_file():
            foreign = sorted(entry.name for entry in self.path.iterdir() if entry.name != LOCK_FILE)
            if foreign:
                raise StopError(
                    f"{self.path} holds {foreign[0]!r} but no {OWNER_FILE}: it is not a checkpoint directory of this "
                    "program, so nothing is written there; name an empty directory"
                )
        elif read_small_json(owner).get("run") != self._run:
            raise StopError(
                f"{self.path} belongs to the run {read_small_json(owner).get('run')!r}, not to {self._run!r}: name "
                "another checkpoint directory"
            )

    def release(self) -> None:
        """Give the directory up."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def published(self) -> list[Published]:
        """Return the published checkpoints, newest first."""
        if not self.path.is_dir():
            return []
        found = []
        for entry in self.path.iterdir():
            match = _STEP.match(entry.name)
            if match and entry.is_dir():
                found.append(Published(int(match.group(1)), entry))
        return sorted(found, key=lambda checkpoint: checkpoint.step, reverse=True)

    def latest(self) -> str | None:
        """Return the name in the pointer, or None."""
        try:
            return (self.path / LATEST_FILE).read_text(encoding="utf-8", errors="replace").strip() or None
        except FileNotFoundError:
            return None

    def point_to(self, checkpoint: Published) -> None:
        """Move the pointer."""
        write_durably(self.path / LATEST_FILE, checkpoint.path.name + "\n")

    def remove_leftovers(self) -> list[str]:
        """Delete what an interrupted save left behind; return the names.

        A checkpoint that was being replaced, and is not, is put back.
        """
        for entry in list(self.path.glob(f"step_*{REPLACED}")):
            final = entry.with_name(entry.name.removesuffix(REPLACED))
            if _STEP.match(final.name) and not final.exists():
                entry.replace(final)
        names = sorted(
            entry.name for entry in self.path.iterdir() if _LEFTOVER.match(entry.name) and not entry.is_symlink()
        )
        for name in names:
            shutil.rmtree(self.path / name)
        return names

    def retire(self, keep: int, started_from: frozenset[int]) -> list[str]:
        """Delete the oldest checkpoints beyond `keep` validated ones; return the names.

        Kept in any case: the last two validated ones, everything newer than the oldest kept one, the pointer's target,
        those that this job was started from or went back to, links, and what another run wrote and somebody put here.
        """
        checkpoints = [checkpoint for checkpoint in self.published() if self._wrote(checkpoint.path)]
        validated = [checkpoint.step for checkpoint in checkpoints if checkpoint.validated]
        if len(validated) < 2:
            return []
        oldest_kept = validated[: max(keep, 2)][-1]
        pointer = self.latest()
        removed = []
        for checkpoint in reversed(checkpoints):
            protected = checkpoint.step in started_from or checkpoint.path.name == pointer
            if checkpoint.step < oldest_kept and not protected:
                _remove(checkpoint.path)
                removed.append(checkpoint.path.name)
        return removed

    def _wrote(self, path: Path) -> bool:
        """Tell whether this run wrote a checkpoint, and it lies here itself."""
        try:
            return not path.is_symlink() and read_small_json(path / STATE_FILE).get("run") == self._run
        except StopError:
            return False

    def _take_lock(self) -> None:
        descriptor = os.open(self.path / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(descriptor, 4096, 0).decode("utf-8", "replace").strip()
            if error.errno in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                LOG.warning("the file system of %s has no locks: two jobs there would not notice each other", self.path)
            else:
                os.close(descriptor)
                raise StopError(f"{self.path} is in use by another job ({holder or 'unknown'})") from None
        text = f"host {socket.gethostname()} process {os.getpid()}\n".encode()
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text, 0)
        self._lock = descriptor


def read_small_json(path: Path) -> dict[str, Any]:
    """Return a small JSON object of a checkpoint directory.

    Raises:
        StopError: if it is absent or damaged.
    """
    try:
        return parse_small_json(path, path.read_bytes())
    except OSError as error:
        raise StopError(f"{path} cannot be read: {error}") from error


def parse_small_json(path: Path, data: bytes) -> dict[str, Any]:
    """Return the JSON object in what was read from a path; StopError as above."""
    try:
        content = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise StopError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise StopError(f"{path} holds no JSON object")
    return content


def _remove(path: Path) -> None:
    """Delete a checkpoint so that a kill in between leaves a left-over, never half a published one."""
    doomed = path.with_name(path.name + ".old")
    path.replace(doomed)
    shutil.rmtree(doomed)
