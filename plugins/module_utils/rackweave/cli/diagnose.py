"""``rackweave diagnose``: logs, attempt directories or standard input in, one verdict out."""

from __future__ import annotations

import argparse
import gzip
import io
import os
import sys
import zlib
from collections.abc import Iterator
from datetime import datetime
from typing import BinaryIO, cast

from ..errors import ParseError
from ..watch.attempt import role_of
from ..watch.prefix import ISO_TIME, parse_time
from ..watch.rotation import Span, in_order
from ..watch.scanner import Source
from ..watch.verdict import Verdict, as_json, diagnose

HELP = "Name the cause of a failed, hung or slow job from its logs: class, culprit, phase and first action."

_CHUNK_BYTES = 1 << 20
_GZIP = b"\x1f\x8b"
_EDGE_BYTES = 1 << 16
# Of a larger file only the beginning is asked for its times.
_WHOLE_BYTES = 1 << 28
_EXIT_FAULT = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("logs", nargs="+", metavar="LOG", help="log file, attempt directory, or - for stdin; gzip too")
    parser.add_argument("--now", metavar="ISO8601", help="judge silence against this clock (default: the text alone)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--exit-code", action="store_true", help="exit 1 if the verdict is an alarm (default: 0 for any verdict)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Diagnose and print; 0 for any verdict, 1 for an alarm with ``--exit-code``."""
    verdict = diagnose(list(_sources(arguments.logs)), _clock(arguments.now))
    print(as_json(verdict) if arguments.json else _as_text(verdict))  # noqa: T201
    return _EXIT_FAULT if arguments.exit_code and verdict.alarm else 0


def _clock(text: str | None) -> datetime | None:
    if text is None:
        return None
    moment = parse_time(text)
    if moment is None:
        raise ParseError(f"--now {text!r} is not an ISO 8601 time; write it like 2026-08-02T07:41:00")
    return moment


def _sources(paths: list[str]) -> Iterator[Source]:
    for path, continues in in_order(paths, _span):
        if path == "-":
            if sys.stdin is None:
                raise ParseError("-: there is no standard input; pipe a log into it, or name a file")
            yield Source("stdin", _standard_input())
        elif os.path.isdir(path):
            yield from _directory(path)
        elif os.path.exists(path):
            role = role_of(path)
            kind = role.kind if role.kind in ("events", "attempt", "flight") else "log"
            yield Source(os.path.basename(path), _file(path), role.host, role.rank, kind, continues and kind == "log")
        else:
            raise ParseError(
                f"{path}: no such file or directory; give a log file, an attempt directory, or - for stdin"
            )


def _directory(root: str) -> Iterator[Source]:
    """Every file of an attempt directory that can be evidence, in a fixed order; one that is damaged is only named."""
    empty = True
    for folder, folders, files in os.walk(root):
        folders.sort()
        for path, continues in in_order([os.path.join(folder, name) for name in sorted(files)], _span):
            relative = os.path.relpath(path, root)
            role = role_of(relative)
            if role.kind != "skip" and os.path.isfile(path):
                empty = False
                goes_on = continues and role.kind == "log"
                yield Source(relative, _as_far_as_readable(path), role.host, role.rank, role.kind, goes_on)
    if empty:
        raise ParseError(f"{root} holds no file that could be evidence; name a log, or runs/<run>/attempts/<attempt>")


def _span(path: str) -> Span:
    """The first and the last time that a file tells near its beginning and its end."""
    if not os.path.isfile(path):
        return Span()
    head = tail = b""
    try:
        for chunk in _file(path):
            head = head or chunk[:_EDGE_BYTES]
            if os.path.getsize(path) > _WHOLE_BYTES:
                return Span(parse_time(head.decode("utf-8", "replace")))
            tail = (tail + chunk)[-_EDGE_BYTES:]
    except ParseError:
        return Span()
    times = [found[0] for found in ISO_TIME.finditer(tail.decode("utf-8", "replace"))]
    return Span(parse_time(head.decode("utf-8", "replace")), parse_time(times[-1]) if times else None)


def _as_far_as_readable(path: str) -> Iterator[bytes]:
    """Stream a file up to where it is damaged, and say so: the others of its directory may name the cause."""
    try:
        yield from _file(path)
    except ParseError as error:
        sys.stderr.write(f"rackweave diagnose: passed over: {error}\n")


def _file(path: str) -> Iterator[bytes]:
    """Stream a file, opened when it is read, so that thousands of files need one descriptor."""
    try:
        with open(path, "rb") as stream:
            packed = stream.read(2) == _GZIP
            stream.seek(0)
            yield from _chunks(cast(BinaryIO, gzip.GzipFile(fileobj=stream)) if packed else stream)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ParseError(f"{path}: damaged gzip file: {error}") from error
    except OSError as error:
        raise ParseError(f"{path}: cannot be read: {error.strerror or error}") from error


def _standard_input() -> Iterator[bytes]:
    stream = cast(io.BufferedReader, sys.stdin.buffer)
    try:
        packed = stream.peek(2)[:2] == _GZIP
        yield from _chunks(cast(BinaryIO, gzip.GzipFile(fileobj=stream)) if packed else stream)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ParseError(f"-: damaged gzip data: {error}") from error
    except OSError as error:
        raise ParseError(f"-: standard input cannot be read: {error.strerror or error}") from error


def _chunks(stream: BinaryIO) -> Iterator[bytes]:
    while True:
        chunk = stream.read(_CHUNK_BYTES)
        if not chunk:
            return
        yield chunk


def _as_text(verdict: Verdict) -> str:
    """The verdict for people; the keys are those of ``--json``."""
    shown = verdict.as_dict()
    lines = [
        f"{key}: {shown[key] if shown[key] is not None else '-'}"
        for key in ("diagnosis_class", "family", "culprit", "phase", "alarm", "severity", "first_action")
    ]
    lines[4] = f"alarm: {'true' if verdict.alarm else 'false'}"
    if verdict.others:
        lines.append(f"others: {', '.join(verdict.others)}")
    for name, state in verdict.collectors:
        lines.append(f"collector: {name} {state}")
    lines.append("evidence:")
    lines += [f"  {line}" for line in verdict.evidence]
    return "\n".join(lines)
