"""Documents out of text and JSONL files, as a stream: no file is held in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Callable

from ..errors import StopError

DOCUMENT_BYTES = 4096
"""Paragraphs of plain text are gathered into documents of about this size, so that a split has enough of them."""


def read_documents(path: Path, text_key: str, progress: Callable[[int], None]) -> Iterator[str]:
    """Yield the documents of a file: one per line of JSONL, gathered paragraphs of anything else.

    Args:
        text_key: key of the text in a JSONL object.
        progress: told the number of bytes read since it was last told.

    Raises:
        StopError: if the file cannot be read, or a line is no JSON object with that key.
    """
    lines = _lines(path, progress)
    if path.suffix in (".jsonl", ".ndjson"):
        return _json_documents(path, lines, text_key)
    return _text_documents(lines)


def _lines(path: Path, progress: Callable[[int], None]) -> Iterator[str]:
    try:
        with path.open("rb") as file:
            for line in file:
                progress(len(line))
                yield line.decode("utf-8", errors="replace")
    except OSError as error:
        raise StopError(f"{path} cannot be read: {error}") from error


def _json_documents(path: Path, lines: Iterator[str], text_key: str) -> Iterator[str]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise StopError(f"{path}, line {number} is no JSON: {error}") from error
        if not isinstance(record, dict) or not isinstance(record.get(text_key), str):
            raise StopError(f"{path}, line {number} has no text under the key {text_key!r}")
        yield record[text_key]


def _text_documents(lines: Iterator[str]) -> Iterator[str]:
    """Close a document at a blank line once it is big enough, or anywhere at twice that size."""
    gathered: list[str] = []
    size = 0
    for line in lines:
        gathered.append(line)
        size += len(line)
        if size >= DOCUMENT_BYTES and (not line.strip() or size >= 2 * DOCUMENT_BYTES):
            yield "".join(gathered)
            gathered, size = [], 0
    if "".join(gathered).strip():
        yield "".join(gathered)
