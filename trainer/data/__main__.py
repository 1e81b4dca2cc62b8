"""`python -m trainer.data`: text or JSONL to an indexed corpus for training and validation."""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Callable

from ..errors import StopError
from ..outcome import write_json
from ..schema import read_json
from .documents import read_documents
from .indexed import IndexedCorpus, IndexedWriter, token_dtype
from .split import ByteCounts, is_validation
from .tokenizer import Tokenizer, load_tokenizer, tokenizer_config

DATA_SCHEMA = "rackweave.data/1"
LOG = logging.getLogger("trainer.data")


@dataclass(frozen=True)
class Request:
    """What the command line asks for; equal requests on equal files give equal corpora."""

    inputs: tuple[Path, ...]
    output: Path
    name: str
    tokenizer: str
    validation_fraction: float
    text_key: str

    def identity(self, digests: Sequence[str]) -> dict[str, Any]:
        """Return what decides the result, for the test whether there is nothing to do."""
        tokenizer_file = Path(self.tokenizer)
        digest = _sha256(tokenizer_file, lambda _: None) if tokenizer_file.is_file() else None
        return {
            "inputs": list(digests),
            "tokenizer": {**asdict(tokenizer_config(self.tokenizer)), "sha256": digest},
            "validation_fraction": self.validation_fraction,
            "text_key": self.text_key,
            "name": self.name,
        }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code (0, or 64 with one sentence on stderr)."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr, force=True)
    try:
        report = prepare(_parse(arguments))
    except (StopError, OSError) as error:
        # A directory that cannot be written, a full disk, an input that cannot be read: the system's words say which.
        LOG.error("trainer.data: %s", error)
        return 64
    sys.stdout.write(json.dumps(report, indent=2, sort_keys=True) + "\n")
    return 0


def prepare(request: Request) -> dict[str, Any]:
    """Write the corpus unless it is there already; return the content of data.json, with `changed`."""
    if not 0.0 < request.validation_fraction < 1.0:
        raise StopError(f"--validation-fraction {request.validation_fraction} must lie between 0 and 1")
    if "\0" in str(request.output):
        raise StopError(f"--output {str(request.output)!r} is no name of a directory")
    for path in request.inputs:
        if not path.is_file():
            raise StopError(f"the input file {path} does not exist")
    total = sum(path.stat().st_size for path in request.inputs)
    with _bar("hash", total) as advance:
        digests = [_sha256(path, advance) for path in request.inputs]
    identity = request.identity(digests)
    existing = _existing(request, identity)
    if existing is not None:
        return {**existing, "changed": False}
    with _bar("encode", total) as advance:
        report = _encode(request, identity, advance)
    write_json(request.output / "data.json", report)
    return {**report, "changed": True}


def _encode(request: Request, identity: dict[str, Any], advance: Callable[[int], None]) -> dict[str, Any]:
    tokenizer = load_tokenizer(tokenizer_config(request.tokenizer))
    dtype = token_dtype(tokenizer.vocab_size)
    writers = {split: IndexedWriter(request.output / split, dtype) for split in ("train", "validation")}
    counts = {split: ByteCounts() for split in writers}
    try:
        _write(request, tokenizer, writers, counts, advance)
    except (StopError, OSError):
        for unfinished in writers.values():
            unfinished.discard()
        raise
    for writer in writers.values():
        writer.finish()
    return _report(request, identity, tokenizer, writers, counts)


def _write(
    request: Request,
    tokenizer: Tokenizer,
    writers: dict[str, IndexedWriter],
    counts: dict[str, ByteCounts],
    advance: Callable[[int], None],
) -> None:
    for number, document in enumerate(_documents(request, advance)):
        split = "validation" if is_validation(number, request.validation_fraction) else "train"
        writers[split].add([*tokenizer.encode(document), tokenizer.end_of_document])
        counts[split].add(document.encode("utf-8"))
    for split, writer in writers.items():
        if writer.tokens < 2:
            raise StopError(
                f"the {split} split would have {writer.documents} documents and {writer.tokens} tokens: the input is "
                f"too small for --validation-fraction {request.validation_fraction}"
            )


def _report(
    request: Request,
    identity: dict[str, Any],
    tokenizer: Tokenizer,
    writers: dict[str, IndexedWriter],
    counts: dict[str, ByteCounts],
) -> dict[str, Any]:
    splits = {}
    for split, writer in writers.items():
        prefix = request.output / split
        splits[split] = {
            "prefix": str(prefix),
            "documents": writer.documents,
            "tokens": writer.tokens,
            "bytes": counts[split].total,
            "sha256": _sha256(prefix.with_name(prefix.name + ".bin"), lambda _: None),
        }
    return {
        "schema": DATA_SCHEMA,
        "name": request.name,
        "identity": identity,
        "vocab_size": tokenizer.vocab_size,
        "splits": splits,
        "validation_byte_unigram_entropy_nats": counts["validation"].entropy_nats(),
        "validation_bytes_per_token": counts["validation"].total / writers["validation"].tokens,
    }


def _existing(request: Request, identity: dict[str, Any]) -> dict[str, Any] | None:
    """Return data.json if it describes this very request and its files are whole."""
    path = request.output / "data.json"
    if not path.is_file():
        return None
    try:
        content = read_json(path)
    except StopError:
        return None
    if content.get("schema") != DATA_SCHEMA or content.get("identity") != identity:
        return None
    try:
        for split in ("train", "validation"):
            IndexedCorpus(str(request.output / split))
    except StopError as error:
        LOG.warning("trainer.data: %s; it is made again", error)
        return None
    return content


def _documents(request: Request, advance: Callable[[int], None]) -> Iterator[str]:
    for path in request.inputs:
        yield from read_documents(path, request.text_key, advance)


def _sha256(path: Path, advance: Callable[[int], None]) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
            advance(len(block))
    return digest.hexdigest()


def _parse(arguments: Sequence[str] | None) -> Request:
    parser = argparse.ArgumentParser(prog="python -m trainer.data", description=__doc__)
    parser.add_argument("--input", nargs="+", type=Path, required=True, metavar="FILE", help="text or JSONL files")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="where corpus and data.json go")
    parser.add_argument("--name", default="corpus", help="what data.json calls the corpus")
    parser.add_argument(
        "--tokenizer", default="byte", metavar="byte|FILE", help="tokenizer.json or SentencePiece model"
    )
    parser.add_argument("--validation-fraction", type=float, default=0.05, help="share of documents held out")
    parser.add_argument("--text-key", default="text", help="key of the text in JSONL")
    values = parser.parse_args(arguments)
    return Request(
        tuple(values.input), values.output, values.name, values.tokenizer, values.validation_fraction, values.text_key
    )


class _bar:
    """A progress bar of bytes on stderr where that is a terminal, and nothing elsewhere."""

    def __init__(self, title: str, total: int) -> None:
        from tqdm import tqdm  # type: ignore[import-untyped]

        self._bar = tqdm(total=total, desc=title, unit="B", unit_scale=True, disable=None, file=sys.stderr)

    def __enter__(self) -> Callable[[int], None]:
        return lambda count: self._bar.update(count) and None

    def __exit__(self, *details: object) -> None:
        self._bar.close()


if __name__ == "__main__":
    sys.exit(main())
