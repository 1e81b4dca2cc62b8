"""Cells of one row of published measurements, with their types; what a source leaves out is noted as inferred."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import PlanError


class UnscorableRow(PlanError):
    """A well-formed row that leaves out something without which nothing can be predicted; the reason fits many rows."""


class Cells:
    """Typed access to one CSV row; every complaint names the row and the column."""

    def __init__(self, cells: Mapping[str, str], label: str) -> None:
        self._cells = cells
        self.label = label
        self.inferred: list[str] = []

    def text(self, column: str) -> str:
        return (self._cells.get(column) or "").strip()

    def number(self, column: str) -> float | None:
        text = self.text(column)
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            raise PlanError(f"row {self.label}: {column}={text!r} is not a number") from None
        if not 0 <= value < float("inf"):
            raise PlanError(f"row {self.label}: {column}={text} must be finite and not negative")
        return value

    def whole(self, column: str) -> int | None:
        value = self.number(column)
        if value is None:
            return None
        if value != int(value) or value < 1:
            raise PlanError(f"row {self.label}: {column}={self.text(column)} must be a whole number of at least 1")
        return int(value)

    def needed(self, column: str) -> int:
        value = self.whole(column)
        if value is None:
            raise PlanError(f"row {self.label}: {column} is empty, and nothing gives it")
        return value

    def infer(self, column: str, value: int) -> int:
        self.inferred.append(column)
        return value
