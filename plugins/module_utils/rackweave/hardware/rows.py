"""Typed access to one JSON object: unknown keys, wrong types and missing values become one clear sentence.

Shared by every reader of the package's documents; it knows nothing of hardware.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from ..errors import DocumentError

T = TypeVar("T")


class Row:
    """One JSON object being read; ``where`` names it in messages (``gpu01: nics[3]``).

    A key that is absent reads as null, so a document may leave out what is unknown. `finish` refuses keys that
    nobody asked for.
    """

    def __init__(self, value: object, where: str, refuse: type[Exception] = DocumentError) -> None:
        self._refuse = refuse
        self.where = where
        if not isinstance(value, dict) and not isinstance(value, Mapping):  # a dict is what JSON gives; it is faster
            raise refuse(f"{where} must be a JSON object, not {kind_of(value)}")
        self._values = value
        self._asked: set[str] = set()

    def finish(self) -> None:
        """Refuse every key that was not asked for: a reader must not drop what it does not understand."""
        if not self._asked >= self._values.keys():
            unknown = sorted(str(key) for key in self._values if key not in self._asked)
            known = ", ".join(sorted(self._asked))
            raise self._refuse(f"{self.where} has unknown key(s) {', '.join(unknown)}; known are {known}")

    def get(self, key: str) -> object:
        """Return the raw value of a key, None where it is absent."""
        self._asked.add(key)
        return self._values.get(key)

    def fail(self, key: str, wanted: str) -> Exception:
        """Return the error that says what a key must be and what it is."""
        return self._refuse(f"{self.where}: {key}={self.get(key)!r} must be {wanted}")

    def text(self, key: str) -> str | None:
        self._asked.add(key)  # as in get: more than half of all values are texts
        value = self._values.get(key)
        if value is None or isinstance(value, str):
            return value
        raise self.fail(key, "text or null")

    def whole(self, key: str) -> int | None:
        value = self.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise self.fail(key, "a whole number or null")
        return value

    def number(self, key: str) -> float | None:
        value = self.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.fail(key, "a number or null")
        return float(value)

    def flag(self, key: str) -> bool | None:
        value = self.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.fail(key, "true, false or null")
        return value

    def choice(self, key: str, choices: Iterable[str]) -> str | None:
        value = self.text(key)
        if value is not None and value not in choices:
            raise self.fail(key, f"one of {', '.join(choices)} or null")
        return value

    def required(self, key: str, value: T | None) -> T:
        """Return a value read from ``key``, refusing null."""
        if value is None:
            raise self._refuse(f"{self.where}: {key} is missing")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        return tuple(self._items(key, str, "texts"))

    def wholes(self, key: str) -> tuple[int, ...]:
        return tuple(self._items(key, int, "whole numbers"))

    def wholes_or_null(self, key: str) -> tuple[int, ...] | None:
        return None if self.get(key) is None else self.wholes(key)

    def rows(self, key: str, read: Callable[[Row], T]) -> tuple[T, ...]:
        """Read a list of objects with one reader; null reads as an empty list."""
        value = self.get(key)
        if value is None:
            return ()
        if not isinstance(value, (list, tuple)):
            raise self.fail(key, "a list of objects")
        return tuple(self._one(item, f"{key}[{position}]", read) for position, item in enumerate(value))

    def row(self, key: str, read: Callable[[Row], T]) -> T | None:
        """Read one nested object, None where it is null."""
        value = self.get(key)
        return None if value is None else self._one(value, key, read)

    def row_or_empty(self, key: str, read: Callable[[Row], T]) -> T:
        """Read one nested object; null reads as an object of which everything is unknown."""
        value = self.get(key)
        return self._one({} if value is None else value, key, read)

    def _one(self, value: object, name: str, read: Callable[[Row], T]) -> T:
        row = Row(value, f"{self.where}: {name}", self._refuse)
        result = read(row)
        row.finish()
        return result

    def _items(self, key: str, kind: type[T], wanted: str) -> list[T]:
        value = self.get(key)
        if value is None:
            return []
        if not isinstance(value, (list, tuple)):
            raise self.fail(key, f"a list of {wanted}")
        for item in value:
            if not isinstance(item, kind) or isinstance(item, bool):
                raise self.fail(key, f"a list of {wanted}")
        return list(value)


def kind_of(value: object) -> str:
    """Return what a value is, as JSON or Python call it; a class that Ansible derived goes by the name of its base."""
    if value is None:
        return "null"
    plain = next((kind for kind in (bool, int, float, str, list, dict) if isinstance(value, kind)), type(value))
    return plain.__name__
