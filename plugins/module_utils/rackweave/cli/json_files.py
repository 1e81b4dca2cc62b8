"""Reading JSON files, and writing files in one step."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from ..errors import DocumentError


def read_json(path: str) -> object:
    """Return the content of a JSON file.

    Raises:
        DocumentError: if it is not readable or not JSON.
    """
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except OSError as error:
        raise DocumentError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise DocumentError(f"{path}: not JSON: {error}") from error


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
            with open(path, encoding="utf-8", newline="") as file:
                before = file.read()
        shown.append({"before": before, "after": content, "before_header": path, "after_header": path})
    return shown


def write_files(directory: str, contents: Mapping[str, str]) -> None:
    """Write files into a directory, each in one step; a file that is right already is left alone."""
    os.makedirs(directory, exist_ok=True)
    for name, content in contents.items():
        replace_file(os.path.join(directory, name), content)


def _holds(path: str, content: str) -> bool:
    if not os.path.exists(path):
        return False
    with open(path, encoding="utf-8", newline="") as file:
        return file.read() == content


def replace_file(path: str, content: str) -> bool:
    """Write a file in one step if its content differs; say whether it was written."""
    if _holds(path, content):
        return False
    with open(f"{path}.new", "w", encoding="utf-8", newline="") as file:
        file.write(content)
    os.replace(f"{path}.new", path)
    return True
