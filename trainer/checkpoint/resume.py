"""Reads a checkpoint once for all ranks: what each of them opens does not grow with the number of ranks.

The coordinator reads seal, `.metadata` and state and sends them on; manifests and files are dealt out. Whatever any
rank finds wrong is everybody's finding.
"""

from __future__ import annotations

from typing import Callable, TypeVar

from ..errors import StopError
from .directory import CheckpointDirectory, Published
from .publish import Writers
from .verify import Outline, Share, check_share, read_manifests, read_outline

T = TypeVar("T")


def find_published(directory: CheckpointDirectory, writers: Writers) -> list[Published]:
    """Return the published checkpoints, newest first, as the coordinator sees them; every rank must call this."""
    return _for_all(writers, directory.published)


def examine(checkpoint: Published, writers: Writers) -> Outline:
    """Return the outline of a checkpoint that is whole; every rank must call this.

    Raises:
        StopError: on all ranks, with the sentence of the first one that found something wrong.
    """
    share = Share(writers.rank, writers.world_size)
    outline = _for_all(writers, lambda: read_outline(checkpoint))
    named = _on_all(writers, lambda: read_manifests(outline, share))
    files = {name: facts for part in named for name, facts in part.items()}
    _on_all(writers, lambda: check_share(outline, files, share))
    return outline


def _for_all(writers: Writers, action: Callable[[], T]) -> T:
    """Run an action on the coordinator, and end on every rank as it does there."""
    result, sentence = writers.from_coordinator(_attempt(action) if writers.coordinator else None)
    if sentence is not None:
        raise StopError(sentence)
    return result  # type: ignore[no-any-return]


def _on_all(writers: Writers, action: Callable[[], T]) -> list[T]:
    """Run an action on every rank; return all results, or raise everywhere what the first rank that failed said."""
    ends = writers.gather(_attempt(action))
    for _, sentence in ends:
        if sentence is not None:
            raise StopError(sentence)
    return [result for result, _ in ends]


def _attempt(action: Callable[[], T]) -> tuple[T | None, str | None]:
    try:
        return action(), None
    except (StopError, OSError) as error:
        return None, str(error)
