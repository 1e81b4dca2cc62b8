"""Tokenizers: bytes (built in), Hugging Face `tokenizers` files, SentencePiece models."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from ..config import TokenizerConfig
from ..errors import StopError


class Tokenizer(Protocol):
    """What the corpus tool and the trainer need of a tokenizer."""

    @property
    def vocab_size(self) -> int:
        """Number of token ids, end-of-document included."""

    @property
    def end_of_document(self) -> int:
        """Id that closes each document."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text."""


class ByteTokenizer:
    """One token per UTF-8 byte, and 256 as end of document."""

    vocab_size = 257
    end_of_document = 256

    def encode(self, text: str) -> list[int]:
        """Return the bytes of a text."""
        return list(text.encode("utf-8"))


class HuggingFaceTokenizer:
    """A `tokenizer.json`; its end of document is the first of the usual special tokens that it knows."""

    _ENDS = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "[SEP]", "<|im_end|>")

    def __init__(self, file: str) -> None:
        library = _library("tokenizers", "a Hugging Face tokenizer file")
        try:
            self._tokenizer = library.Tokenizer.from_file(file)
        except Exception as error:  # the library raises a bare Exception for every malformed file
            raise StopError(f"{file} is no Hugging Face tokenizer file: {error}") from error
        known = [self._tokenizer.token_to_id(token) for token in self._ENDS]
        ends = [token for token in known if token is not None]
        if not ends:
            raise StopError(f"{file} has none of the end-of-document tokens {', '.join(self._ENDS)}")
        self.end_of_document: int = ends[0]
        # Ids may have gaps, so the number of tokens does not say how large a table must be.
        self.vocab_size: int = max(self._tokenizer.get_vocab(with_added_tokens=True).values()) + 1
        # Files of models with short inputs cut, or pad, every text.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._file = file

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without special tokens.

        Raises:
            StopError: if the vocabulary has no token for a part of the text.
        """
        try:
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        except Exception as error:  # a bare Exception again
            raise StopError(f"{self._file} cannot encode {text[:40]!r}: {error}") from error
        return ids


class SentencePieceTokenizer:
    """A SentencePiece model with an end-of-sentence piece."""

    def __init__(self, file: str) -> None:
        library = _library("sentencepiece", "a SentencePiece model")
        try:
            self._processor = library.SentencePieceProcessor(model_file=file)
        except (OSError, RuntimeError) as error:
            raise StopError(f"{file} is no SentencePiece model: {error}") from error
        self.end_of_document: int = self._processor.eos_id()
        self.vocab_size: int = self._processor.get_piece_size()
        if self.end_of_document < 0:
            raise StopError(f"{file} defines no end-of-sentence piece to close documents with")

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text."""
        ids: list[int] = self._processor.encode(text)
        return ids


def load_tokenizer(config: TokenizerConfig) -> Tokenizer:
    """Return the configured tokenizer.

    Raises:
        StopError: if its file is absent or malformed, or its library is not installed.
    """
    if config.file is None:
        return ByteTokenizer()
    if not Path(config.file).is_file():
        raise StopError(f"the tokenizer file {config.file} does not exist")
    return HuggingFaceTokenizer(config.file) if config.kind == "huggingface" else SentencePieceTokenizer(config.file)


def tokenizer_config(choice: str) -> TokenizerConfig:
    """Return the configuration for a command-line choice: `byte`, a `.json` file or a SentencePiece model."""
    if choice == "byte":
        return TokenizerConfig("byte", None)
    return TokenizerConfig("huggingface" if choice.endswith(".json") else "sentencepiece", choice)


def _library(name: str, purpose: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError:
        raise StopError(f"the Python package {name} is needed for {purpose} and is not installed") from None
