"""Reading of JSON into frozen dataclasses that refuse what they do not know; no defaults hide a missing key."""

from __future__ import annotations

import json
import math
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, Union

from .errors import StopError

T = TypeVar("T")
LARGEST_WHOLE = 2**63 - 1
_IMPOSSIBLE = re.compile("[\x00\ud800-\udfff]")
"""What no system call takes: the end of a C string, and halves of characters, which JSON can hold."""


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        StopError: if the file is absent, unreadable or not a JSON object.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StopError(f"{path} does not exist") from None
    except (OSError, ValueError, RecursionError) as error:
        # Not only bad syntax: also bytes that are no text, numbers of thousands of digits, and endless nesting.
        raise StopError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(content, dict):
        raise StopError(f"{path} holds a {type(content).__name__}, not a JSON object")
    return content


def parse(cls: type[T], data: Any, where: str) -> T:
    """Build a frozen dataclass from a JSON object, checking names and types of every key.

    Raises:
        StopError: naming the key and the place, if a key is unknown, missing or of another type.
    """
    if not isinstance(data, Mapping):
        raise StopError(f"{where} must be an object, not {data!r}")
    known = {field.name: field for field in fields(cls)}  # type: ignore[arg-type]
    unknown = sorted(set(data) - set(known))
    if unknown:
        raise StopError(f"{where} has the unknown key {unknown[0]!r}; known are {', '.join(sorted(known))}")
    hints = typing.get_type_hints(cls)
    values: dict[str, Any] = {}
    for name, field in known.items():
        if name in data:
            values[name] = _convert(hints[name], data[name], f"{where}.{name}")
        elif field.default is MISSING and field.default_factory is MISSING:
            raise StopError(f"{where} lacks the key {name!r}")
    return cls(**values)


def _convert(kind: Any, value: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, types.UnionType):
        inner = [argument for argument in arguments if argument is not type(None)]
        return None if value is None and len(inner) < len(arguments) else _convert(inner[0], value, where)
    if origin is tuple:
        if not isinstance(value, list):
            raise StopError(f"{where} must be a list, not {value!r}")
        return tuple(_convert(arguments[0], item, f"{where}[{index}]") for index, item in enumerate(value))
    if is_dataclass(kind):
        return parse(typing.cast("type[Any]", kind), value, where)
    return _scalar(kind, value, where)


def _scalar(kind: Any, value: Any, where: str) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool) and abs(value) <= LARGEST_WHOLE:
        return float(value)
    if isinstance(value, bool) != (kind is bool) or not isinstance(value, kind):
        raise StopError(f"{where}={value!r} must be of type {kind.__name__}")
    if kind is str and _IMPOSSIBLE.search(value):
        raise StopError(f"{where}={value!r:.80} holds a character that no name of a file can have")
    if kind is float and not math.isfinite(value):
        raise StopError(f"{where}={value} must be a finite number")
    if kind is int and not -LARGEST_WHOLE <= value <= LARGEST_WHOLE:
        raise StopError(f"{where}={value} must lie within 64 bits")
    return value
