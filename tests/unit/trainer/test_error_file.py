"""The error file of a rank, which torchrun reads when any rank has ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.elastic.multiprocessing.errors import error_handler, record

from trainer.__main__ import _error_file_in_one_piece

NAME = "TORCHELASTIC_ERROR_FILE"


def failing() -> None:
    raise ValueError("no such shard")


def test_torchrun_never_sees_an_error_file_that_is_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "error.json"
    monkeypatch.setenv(NAME, str(file))
    seen = []
    dump = json.dump

    def watched(content: Any, stream: Any) -> None:
        seen.append(file.exists())
        dump(content, stream)

    monkeypatch.setattr(error_handler.json, "dump", watched)
    with pytest.raises(ValueError, match="no such shard"), _error_file_in_one_piece():
        record(failing)()
    assert seen == [False]
    assert json.loads(file.read_text())["message"]["message"] == "ValueError: no such shard"
    assert list(tmp_path.iterdir()) == [file]


def test_a_run_that_ends_well_leaves_no_error_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, str(tmp_path / "error.json"))
    with _error_file_in_one_piece():
        record(lambda: None)()
    assert list(tmp_path.iterdir()) == []


def test_without_torchrun_an_error_stays_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(NAME, raising=False)
    with pytest.raises(ValueError, match="no such shard"), _error_file_in_one_piece():
        failing()
