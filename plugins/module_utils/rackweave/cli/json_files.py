"""Reading files, and writing them in one step: what cannot be read or written is one sentence that names the file."""

from __future__ import annotations

import json
import os
import re
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..errors import DocumentError

# What is being written beside its place, by us alone: whoever reads a directory passes hidden names over.
_PART = re.compile(r"\..+\.[0-9a-f]{8}\.rackweave-part")


class WriteError(DocumentError):
    """A file or directory that cannot be written: a full disk, a wrong path, a missing right."""


class ReadError(DocumentError):
    """A file that cannot be opened or read: a failing disk, a missing right, a wrong path."""


def read_text(path: str | Path, newline: str | None = None) -> str:
    """Return the text of a file; ``newline`` as `open` takes it.

    Raises:
        ReadError: if it is not readable.
        DocumentError: if it is not UTF-8.
    """
    try:
        with open(path, encoding="utf-8", newline=newline) as file:
            return file.read()
    except OSError as error:
        raise ReadError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise DocumentError(f"{path}: no UTF-8 text (byte {error.start})") from error


def read_json(path: str | Path) -> Any:
    """Return the content of a JSON file.

    Raises:
        DocumentError: if it is not readable or not JSON.
    """
    text = read_text(path)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DocumentError(f"{path} is not JSON: {error}") from error


def stale_files(directory: str, contents: Mapping[str, str]) -> dict[str, str]:
    """Return those contents, by file name, whose file is missing in a directory or differs."""
    return {name: content for name, content in contents.items() if not _holds(os.path.join(directory, name), content)}


def differences(directory: str, contents: Mapping[str, str]) -> list[dict[str, str]]:
    """Return what ``--diff`` shows of files that are about to be written."""
    shown = []
    for name, content in sorted(contents.items()):
        path = os.path.join(directory, name)
        before = ""
        if os.path.exists(path):
            with open(path, encoding="utf-8", errors="replace", newline="") as file:
                before = file.read()
        shown.append({"before": before, "after": content, "before_header": path, "after_header": path})
    return shown


def write_files(directory: str, contents: Mapping[str, str]) -> None:
    """Write files into a directory, each in one step; a file that is right already is left alone.

    Raises:
        WriteError: if one cannot be written.
    """
    make_directory(directory)
    with _writing_in(directory):
        for name, content in contents.items():
            _replace_or_say(os.path.join(directory, name), content)


def make_directory(path: str | Path) -> None:
    """Make a directory and those above it, where they are not there.

    Raises:
        WriteError: if that cannot be.
    """
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise WriteError(f"directory {path} cannot be made: {error.strerror or error}") from error


def replace_file(path: str | Path, content: str) -> bool:
    """Write a file in one step if its content differs; say whether it was written.

    What stands there is the old text or the new one, never a part, with the rights that the file had. What is no plain
    file, such as ``/dev/stdout``, is written to.

    Raises:
        WriteError: if it cannot be written.
    """
    with _writing_in(os.path.dirname(os.path.realpath(path))):
        return _replace_or_say(path, content)


def append_lines(path: str | Path, lines: str) -> None:
    """Append whole lines to a file that others may append to; they are on disk afterwards, all or none.

    A last line without an end, which a writer left that died, is taken away first: what is appended to it could not be
    read either. One that is whole JSON is ended instead, since readers count it: an editor may have left it so.

    Raises:
        WriteError: if they cannot be written.
    """
    import fcntl  # not on every system that plans

    try:
        with open(path, "ab+", buffering=0) as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            end, size = _end_of_lines(stream), stream.seek(0, os.SEEK_END)
            stream.seek(end)
            rest = stream.read(size - end)
            if _is_json(rest):
                end, lines = end + len(rest), f"\n{lines}"
            stream.truncate(end)
            _append(stream, _encoded(lines), end)
    except OSError as error:
        raise WriteError(f"{path} cannot be written: {error.strerror or error}") from error


def _append(stream: Any, data: bytes, end: int) -> None:
    try:
        while data:
            data = data[stream.write(data) :]
        os.fsync(stream.fileno())
    except OSError:
        stream.truncate(end)
        raise


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _end_of_lines(stream: Any) -> int:
    """Return the size of a file up to the end of its last whole line."""
    end = int(stream.seek(0, os.SEEK_END))
    while end:
        start = max(0, end - 4096)
        stream.seek(start)
        found = stream.read(end - start).rfind(b"\n")
        if found >= 0:
            return start + int(found) + 1
        end = start
    return 0


def _encoded(text: str) -> bytes:
    # Half of a surrogate pair, which JSON can spell, has no UTF-8; it is written as JSON spells it.
    return text.encode("utf-8", "backslashreplace")


def _holds(path: str, content: str) -> bool:
    if not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        return file.read() == _encoded(content)


@contextmanager
def _writing_in(directory: str) -> Iterator[None]:
    """Be one of those who write into a directory; what a writer left that was killed is removed first.

    Writers share a lock on the directory, which the kernel takes back from one that dies. So whoever gets it alone
    knows that no part there is being written. Where a file system has no such lock (NFS), parts stay; they do no harm.
    """
    if os.name != "posix":  # a system that plans, without locks
        yield
        return
    import fcntl

    try:
        descriptor = os.open(directory, os.O_RDONLY)
    except OSError:  # writing will say why, if that cannot be either
        yield
        return
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove_parts(directory)
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def _remove_parts(directory: str) -> None:
    for name in os.listdir(directory):
        if _PART.fullmatch(name):
            os.unlink(os.path.join(directory, name))


def _replace_or_say(path: str | Path, content: str) -> bool:
    try:
        return _replace(path, content)
    except OSError as error:
        raise WriteError(f"{path} cannot be written: {error.strerror or error}") from error


def _replace(named: str | Path, content: str) -> bool:
    # By its own name: the target of /dev/stdout, if that is a pipe, has none.
    if os.path.exists(named) and not os.path.isfile(named):
        with open(named, "wb") as file:
            file.write(_encoded(content))
        return True
    path = os.path.realpath(named)
    if _holds(path, content):
        return False
    directory, name = os.path.split(path)
    part = os.path.join(directory, f".{name[:40]}.{secrets.token_hex(4)}.rackweave-part")
    try:
        with open(part, "xb") as file:
            file.write(_encoded(content))
            file.flush()
            os.fsync(file.fileno())  # after a power loss the name must not lead to an empty file
        _take_rights(part, path)
        os.replace(part, path)
    except OSError:
        if os.path.exists(part):
            os.unlink(part)
        raise
    return True


def _take_rights(part: str, path: str) -> None:
    """Give a new file the rights that the one it replaces has."""
    if not os.path.exists(path):
        return
    wanted = stat.S_IMODE(os.stat(path).st_mode)
    if wanted != stat.S_IMODE(os.stat(part).st_mode):
        os.chmod(part, wanted)
