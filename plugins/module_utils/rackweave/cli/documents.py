"""Read and write the directory of node documents: one ``<host>.json`` for each host."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..errors import DocumentError
from ..hardware.document import NodeDocument, document_text, read_document
from .json_files import read_json, write_files


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
    document = read_file(path)
    if document.host != host:
        raise DocumentError(f"node document {path} describes {document.host}; it must be named {document.host}.json")
    return document


def read_file(path: Path) -> NodeDocument:
    """Return the document of a file, whatever its name.

    Raises:
        DocumentError: if it is no JSON or follows another schema.
    """
    content = read_json(path)
    try:
        return read_document(content)
    except DocumentError as error:
        raise DocumentError(f"{path}: {error}") from error


def stale_documents(directory: Path, documents: Mapping[str, NodeDocument]) -> dict[str, tuple[str, str]]:
    """Return ``{host: (old text, new text)}`` of those documents whose file is missing or differs."""
    stale = {}
    for host, document in documents.items():
        path, text = directory / f"{host}.json", document_text(document)
        old = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        if old != text:
            stale[host] = (old, text)
    return stale


def write_documents(directory: Path, texts: Mapping[str, str]) -> None:
    """Write one file per host, each in one step."""
    write_files(str(directory), {f"{host}.json": text for host, text in texts.items()})
