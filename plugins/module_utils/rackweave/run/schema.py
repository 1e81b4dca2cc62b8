"""A small strict checker for our JSON files: it refuses what it does not know, and names the place.

It checks shape, type and the allowed words of a value; what values mean together is checked where they are used.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import DocumentError
from ..hardware.rows import kind_of


@dataclass(frozen=True)
class Text:
    """A string; ``choices`` empty means any string. It must not be empty, unless ``empty_ok``."""

    choices: tuple[str, ...] = ()
    empty_ok: bool = False

    def check(self, value: object, where: str) -> None:
        if not isinstance(value, str) or not (value or self.empty_ok):
            raise DocumentError(f"{where} is {value!r}, but must be a text")
        if self.choices and value not in self.choices:
            raise DocumentError(f"{where} is {value!r}, but must be one of {', '.join(self.choices)}")


@dataclass(frozen=True)
class Whole:
    """A whole number of at least ``minimum``."""

    minimum: int = 0

    def check(self, value: object, where: str) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or value < self.minimum:
            raise DocumentError(f"{where} is {value!r}, but must be a whole number of at least {self.minimum}")


@dataclass(frozen=True)
class Number:
    """A finite number, whole or not, within the bounds that are given (inclusive)."""

    minimum: float | None = None
    maximum: float | None = None

    def check(self, value: object, where: str) -> None:
        if (
            isinstance(value, bool)
            or not isinstance(value, (int, float))
            or value != value
            or abs(value) == float("inf")
        ):
            raise DocumentError(f"{where} is {value!r}, but must be a number")
        if self.minimum is not None and value < self.minimum:
            raise DocumentError(f"{where} is {value!r}, but must be at least {self.minimum:g}")
        if self.maximum is not None and value > self.maximum:
            raise DocumentError(f"{where} is {value!r}, but must be at most {self.maximum:g}")


@dataclass(frozen=True)
class Flag:
    """``true`` or ``false``."""

    def check(self, value: object, where: str) -> None:
        if not isinstance(value, bool):
            raise DocumentError(f"{where} is {value!r}, but must be true or false")


@dataclass(frozen=True)
class Anything:
    """A value whose shape belongs to somebody else (planner figures, for example)."""

    def check(self, value: object, where: str) -> None:
        return


@dataclass(frozen=True)
class Nullable:
    """``null`` or what the inner rule asks for."""

    rule: Any

    def check(self, value: object, where: str) -> None:
        if value is not None:
            self.rule.check(value, where)


@dataclass(frozen=True)
class ListOf:
    """A list whose items all follow one rule."""

    rule: Any
    minimum: int = 0

    def check(self, value: object, where: str) -> None:
        if not isinstance(value, list) or len(value) < self.minimum:
            raise DocumentError(f"{where} must be a list of at least {self.minimum} items")
        for index, item in enumerate(value):
            self.rule.check(item, f"{where}[{index}]")


@dataclass(frozen=True)
class Record:
    """An object with exactly the keys of ``fields``, of which those in ``optional`` may be absent."""

    fields: Mapping[str, Any]
    optional: tuple[str, ...] = ()

    def check(self, value: object, where: str) -> None:
        if not isinstance(value, dict):
            raise DocumentError(f"{where} must be an object with the keys {', '.join(self.fields)}")
        unknown = sorted(set(value) - set(self.fields))
        if unknown:
            raise DocumentError(f"{where} has the unknown key {unknown[0]!r} (known: {', '.join(sorted(self.fields))})")
        for name, rule in self.fields.items():
            if name in value:
                rule.check(value[name], f"{where}.{name}")
            elif name not in self.optional:
                raise DocumentError(f"{where} lacks the key {name!r}")


def read_json(text: str, where: str) -> dict[str, Any]:
    """Parse JSON that must be one object.

    Raises:
        DocumentError: naming the file and the line that cannot be read.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DocumentError(f"{where} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise DocumentError(f"{where} must hold one JSON object, not {kind_of(value)}")
    return value


def read_document(text: str, schema: str, rule: Record, where: str) -> dict[str, Any]:
    """Parse one of our files and check it: schema first, then every key.

    Raises:
        DocumentError: for another schema, an unknown or missing key, or a value of the wrong kind.
    """
    value = read_json(text, where)
    found = value.get("schema")
    if found != schema:
        raise DocumentError(f"{where} has the schema {found!r}, but this version reads {schema!r}")
    rule.check(value, where)
    return value


def write_json(document: Mapping[str, Any]) -> str:
    """Serialise a document as we keep it: two spaces, given key order, a newline at the end."""
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
