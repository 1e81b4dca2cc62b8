"""What the exit status of a job means, and which of several wins.

torchrun flattens the status of its ranks to 0 or 1, so each rank writes a result file and ``launch.py`` maps the
worst of them to these codes (it carries its own copy of the table, since it runs on nodes alone; a test compares them).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

DONE = 0
STOP = 64
RETRY = 75
RETRY_ELSEWHERE = 76
SAVED = 77

CODE_OF_EXIT: Mapping[str, int] = {
    "done": DONE,
    "stop": STOP,
    "retry": RETRY,
    "retry_elsewhere": RETRY_ELSEWHERE,
    "saved": SAVED,
}

MEANING: Mapping[int, str] = {
    DONE: "done",
    STOP: "stop: an error that a new start would meet again",
    RETRY: "retry: a new start may work",
    RETRY_ELSEWHERE: "retry on other nodes",
    SAVED: "saved on request, continue with a new start",
}

# An application error explains the lost connections of its peers, so it outranks them; a save outranks only success.
SEVERITY = (DONE, SAVED, RETRY, RETRY_ELSEWHERE, STOP)

# Codes after which the same job may start again on the same nodes.
REQUEUE_CODES = (RETRY, SAVED)


def worst(codes: Iterable[int]) -> int:
    """Return the code that speaks for all; one that is not ours counts as ``RETRY`` (somebody killed the process)."""
    known = [code if code in SEVERITY else RETRY for code in codes]
    return max(known, key=SEVERITY.index, default=DONE)


def meaning(code: int) -> str:
    """Return one phrase for an exit status, ours or not."""
    if code in MEANING:
        return MEANING[code]
    if code > 128:
        return f"killed by signal {code - 128}"
    return f"exit status {code}, which is none of ours"
