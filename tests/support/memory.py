"""The memory of a process while something runs."""

from __future__ import annotations

import ctypes
import threading
import time
from pathlib import Path
from types import TracebackType


def _private_bytes() -> int:
    """Return the resident memory that belongs to no file: what the process itself has written."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no RssAnon")


M_MMAP_THRESHOLD = -3  # of mallopt(3)


def return_freed_memory() -> None:
    """Let the C library give every freed tensor back at once: else what it keeps hides, or feigns, tens of MB."""
    if not ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 16):
        raise OSError("mallopt refused the threshold")


class Peak:
    """Samples the memory of this process every two milliseconds; `most` and `after` are above that at the start."""

    def __enter__(self) -> Peak:
        self._start, self.most, self.after = _private_bytes(), 0, 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()
        return self

    def _sample(self) -> None:
        while not self._done.is_set():
            self.most = max(self.most, _private_bytes() - self._start)
            time.sleep(0.002)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()
        self.after = _private_bytes() - self._start
        self.most = max(self.most, self.after)
