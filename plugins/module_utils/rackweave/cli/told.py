"""What people were told of an operation that cannot go on, so that each cause is told once and not at each restart."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ..errors import DocumentError
from .json_files import make_directory, read_json, replace_file

# systemd gives a unit a directory in memory, and keeps it over restarts: what is to be remembered is a full disk too.
DIRECTORY = "RUNTIME_DIRECTORY"


class Told:
    """Remembers causes between restarts; without a place for that, each one is new."""

    def __init__(self, path: Path | None) -> None:
        self.path = path

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Told:
        """Return the memory of this service, in the directory that systemd gives it (the first, if there are more)."""
        directory = environment.get(DIRECTORY, "").split(":")[0]
        return cls(Path(directory) / "told.json" if directory else None)

    def is_news(self, cause: str) -> bool:
        """Say whether a cause was not told yet, and count it as told."""
        known = self._known()
        if cause in known:
            return False
        self._keep([*known, cause])
        return True

    def forget(self) -> None:
        """Begin anew, since the operation works again: the next failure is news."""
        if self._known():
            self._keep([])

    def _known(self) -> list[str]:
        try:
            found = read_json(self.path) if self.path is not None else []
        except DocumentError:
            return []
        return [cause for cause in found if isinstance(cause, str)] if isinstance(found, list) else []

    def _keep(self, causes: list[str]) -> None:
        # A notice too many is better than none, so what cannot be kept is told again.
        if self.path is not None:
            with suppress(DocumentError):
                make_directory(self.path.parent)
                replace_file(self.path, json.dumps(causes))
