"""A small corpus and a launcher that all trainer tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.attempts import write_text
from tests.support.launch import ForkServer


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared corpus with both splits."""
    from trainer.data.__main__ import main

    where = tmp_path_factory.mktemp("corpus")
    text = write_text(where / "text.txt")
    assert main(["--input", str(text), "--output", str(where)]) == 0
    return where


@pytest.fixture(scope="session")
def launcher() -> Iterator[ForkServer]:
    """Starts jobs with everything imported."""
    server = ForkServer()
    yield server
    server.close()
