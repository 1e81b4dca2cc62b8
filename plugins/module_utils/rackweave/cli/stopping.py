"""A request to end a long command: SIGTERM or SIGINT, noticed between playbooks, during one, and while waiting."""

from __future__ import annotations

import signal
import threading
from typing import Any

STOPPED = 143  # 128 + SIGTERM: what a shell shows of a program that ended so


class StopAsked(Exception):
    """Raised where work would go on although the end was asked for; nothing went wrong."""


class Stopping:
    """Set by a signal. ansible-runner's own handler ends only the playbook, and the loop around it would go on."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Stopping:
        """Take over both signals; outside the main thread, where that is impossible, leave them as they are."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, lambda _number, _frame: self._asked.set())
        return self

    def __exit__(self, *problem: object) -> None:
        """Give the signals back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def asked(self) -> bool:
        """Whether the end was asked for."""
        return self._asked.is_set()

    def check(self) -> None:
        """Raise StopAsked if the end was asked for."""
        if self._asked.is_set():
            raise StopAsked

    def sleep(self, seconds: float) -> None:
        """Wait; raise StopAsked as soon as the end is asked for."""
        self._asked.wait(seconds)
        self.check()
