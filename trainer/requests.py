"""Requests from outside to save and exit: a file in the attempt directory, or SIGUSR1; and the end by SIGTERM."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Callable

REQUEST_FILE = "save-and-exit"


class ExitRequests:
    """Knows whether somebody asked this rank to save and exit; ranks agree on it in the loop's own all-reduce.

    SIGTERM is different: the sender (torchrun, Slurm) is about to kill the process, peers may be gone already, so no
    collective may start. A thread notices it even while the training thread waits in a collective, and calls `ended`.
    """

    def __init__(self, attempt: Path, watches_file: bool, ended: Callable[[], None]) -> None:
        self._file = attempt / REQUEST_FILE if watches_file else None
        self._asked = False
        self._ended = ended
        reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for number in (signal.SIGUSR1, signal.SIGTERM):
            signal.signal(number, _leave_to_thread)
        threading.Thread(target=self._follow, args=(reader,), name="signals", daemon=True).start()

    def pending(self) -> bool:
        """Tell whether a request has come."""
        return self._asked or (self._file is not None and self._file.exists())

    def _follow(self, reader: int) -> None:
        while True:
            for number in os.read(reader, 16):
                if number == signal.SIGUSR1:
                    self._asked = True
                elif number == signal.SIGTERM:
                    self._ended()


def _leave_to_thread(number: int, frame: object) -> None:
    """Python runs this only when the training thread is back from C code; the thread above needs no such luck."""
