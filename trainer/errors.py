"""Errors of the trainer; each class says what the launcher should do next, each text is one clear sentence."""

from __future__ import annotations

from collections.abc import Sequence

from rackweave.errors import RackweaveError


class TrainerError(RackweaveError):
    """Base of every failure that the trainer recognises."""


class StopError(TrainerError):
    """Starting again cannot help: configuration, data or application error (exit code 64).

    ``blames``: ranks that are known to have begun it, where the ranks found that out together.
    """

    def __init__(self, sentence: str, blames: Sequence[int] = ()) -> None:
        super().__init__(sentence)
        self.blames = tuple(blames)


class RetryError(TrainerError):
    """The same job may be started again: a peer, the network or a file system failed (exit code 75)."""


class SavedAndExit(TrainerError):
    """Not a failure: the state was saved on request and the job ends to be continued (exit code 77)."""
