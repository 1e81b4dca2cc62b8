"""What a collector may ask of a machine. The package does no I/O itself: `cli/system.py` has the real one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class ToolOutput:
    """What one tool printed; `status` is its exit status."""

    status: int
    stdout: str
    stderr: str = ""


class System(Protocol):
    """Files and tools of one machine. Paths are absolute as the machine sees them (``/sys/...``)."""

    def read(self, path: str) -> str | None:
        """Return the text of a file without trailing white space, None where it is absent or unreadable."""

    def read_bytes(self, path: str, limit: int) -> bytes | None:
        """Return at most ``limit`` bytes of a file, None where it is absent or unreadable."""

    def names(self, path: str) -> list[str]:
        """Return the entries of a directory in natural order, an empty list where there is none."""

    def target(self, path: str) -> str | None:
        """Return the path with all links resolved, None where it does not exist."""

    def link(self, path: str) -> str | None:
        """Return what a link says, None where there is none or it is not readable."""

    def can_open(self, path: str) -> bool:
        """Say whether this process may open a device for reading and writing."""

    def capacity_bytes(self, path: str) -> int | None:
        """Return the size of the file system that holds a path."""

    def run_all(self, commands: Sequence[Sequence[str]]) -> list[ToolOutput | None]:
        """Run tools side by side in the C locale; None for one that is not installed or did not end in time."""

    def seconds(self) -> float:
        """Return the seconds since the collection began."""
