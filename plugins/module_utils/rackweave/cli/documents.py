"""Read and write the directory of node documents: one ``<host>.json`` for each host."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from ..errors import DocumentError
from ..hardware.document import NodeDocument, document_text, read_document


def load_documents(directory: Path) -> list[NodeDocument]:
    """Return the documents of a directory in the order of host names; a missing directory holds none.

    Raises:
        DocumentError: if a file is no JSON, follows another schema, or bears another name than its host.
    """
    return load_files(files_of(directory))


def load_files(files: Mapping[str, Path]) -> list[NodeDocument]:
    """Return the documents of files by host, in the order given.

    Raises:
        DocumentError: as `load_documents` does.
    """
    return [load_file(host, path) for host, path in files.items()]


def files_of(directory: Path) -> dict[str, Path]:
    """Return the document files of a directory by host, in the order of host names."""
    return {path.stem: path for path in sorted(directory.glob("*.json"))}


def load_file(host: str, path: Path) -> NodeDocument:
    """Return the document of one host.

    Raises:
        DocumentError: as `load_documents` does.
    """
    try:
        document = read_document(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise DocumentError(f"node document {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise DocumentError(f"node document {path} is not JSON: {error}") from error
    except DocumentError as error:
        raise DocumentError(f"{path}: {error}") from error
    if document.host != host:
        raise DocumentError(f"node document {path} describes {document.host}; it must be named {document.host}.json")
    return document


def stale_documents(directory: Path, documents: Mapping[str, NodeDocument]) -> dict[str, tuple[str, str]]:
    """Return ``{host: (old text, new text)}`` of those documents whose file is missing or differs."""
    stale = {}
    for host, document in documents.items():
        path, text = directory / f"{host}.json", document_text(document)
        old = path.read_text(encoding="utf-8") if path.exists() else ""
        if old != text:
            stale[host] = (old, text)
    return stale


def write_documents(directory: Path, texts: Mapping[str, str]) -> None:
    """Write one file per host."""
    directory.mkdir(parents=True, exist_ok=True)
    for host, text in texts.items():
        (directory / f"{host}.json").write_text(text, encoding="utf-8")
