"""Reading JSON files, and replacing files in one step."""

from __future__ import annotations

import json
import os

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
    except ValueError as error:
        raise DocumentError(f"{path}: not JSON: {error}") from error


def replace_file(path: str, content: str) -> bool:
    """Write a file in one step if its content differs; say whether it was written."""
    if os.path.exists(path):
        with open(path, encoding="utf-8", newline="") as file:
            if file.read() == content:
                return False
    with open(f"{path}.new", "w", encoding="utf-8", newline="") as file:
        file.write(content)
    os.replace(f"{path}.new", path)
    return True
