"""Documents out of text and JSONL files, as a stream: no file is held in memory."""

from __future__ import annotations

import codecs
import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Callable

from ..errors import StopError

DOCUMENT_BYTES = 4096
"""Paragraphs of plain text are gathered into documents of about this size, so that a split has enough of them."""
PIECE_BYTES = 4096
_HALF_CHARACTER = re.compile("[\ud800-\udfff]")


def read_documents(path: Path, text_key: str, progress: Callable[[int], None]) -> Iterator[str]:
    """Yield the documents of a file: one per line of JSONL, gathered paragraphs of anything else.

    Args:
        text_key: key of the text in a JSONL object.
        progress: told the number of bytes read since it was last told.

    Raises:
        StopError: if the file cannot be read, or a line is no JSON object with that key.
    """
    if path.suffix in (".jsonl", ".ndjson"):
        return _json_documents(path, progress, text_key)
    return _text_documents(_text_lines(path, progress))


def _text_lines(path: Path, progress: Callable[[int], None]) -> Iterator[str]:
    """Yield lines, and long ones in pieces: a text may be a single line."""
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    with _opened(path) as file:
        while line := file.readline(PIECE_BYTES):
            progress(len(line))
            yield decode(line)
    yield decode(b"", final=True)


def _json_documents(path: Path, progress: Callable[[int], None], text_key: str) -> Iterator[str]:
    with _opened(path) as file:
        for number, line in enumerate(file, start=1):
            progress(len(line))
            # Programs on Windows begin a file with a byte order mark.
            text = line.decode("utf-8-sig" if number == 1 else "utf-8", errors="replace")
            if text.strip():
                yield _text_of(text, text_key, f"{path}, line {number}")


def _text_of(line: str, text_key: str, where: str) -> str:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise StopError(f"{where} is no JSON: {error}") from error
    if not isinstance(record, dict) or not isinstance(record.get(text_key), str):
        raise StopError(f"{where} has no text under the key {text_key!r}")
    # JSON can hold half a character, which no other encoding can: it becomes what undecodable bytes become.
    return _HALF_CHARACTER.sub("\ufffd", record[text_key])


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise StopError(f"{path} cannot be read: {error}") from error


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
