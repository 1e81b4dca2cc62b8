"""Rotated logs: parts are read oldest first, as one log."""

from __future__ import annotations

import gzip
import json
from datetime import datetime
from pathlib import Path

import pytest
from rackweave.cli import main
from rackweave.watch.rotation import Span, in_order
from rackweave.watch.scanner import Source
from rackweave.watch.verdict import diagnose

OOM = "[rank4]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.91 GiB."


def _steps(first: int, minute: int, loss: str = "2.31") -> str:
    return "".join(
        f"[2026-03-10 10:{minute:02d}:{n:02d}] step {first + n} | loss {loss} | grad norm 0.4\n" for n in range(5)
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            ["a/t.log", "a/t.log.1", "a/t.log.10.gz", "a/t.log.2.gz", "b.log"],
            ["a/t.log.10.gz", "a/t.log.2.gz", "a/t.log.1", "a/t.log", "b.log"],
        ),
        (["m", "m-20260802.gz", "m-20260801.gz"], ["m-20260801.gz", "m-20260802.gz", "m"]),
        (["m.2026-08-02", "m.2026-08-01", "m"], ["m.2026-08-01", "m.2026-08-02", "m"]),
    ],
)
def test_parts_of_a_log_come_oldest_first(given: list[str], expected: list[str]) -> None:
    assert [path for path, _ in in_order(given)] == expected


def test_numbered_files_without_the_file_that_is_written_stay_as_they_are() -> None:
    given = ["rank.log.1", "rank.log.0", "nccl.7.log", "nccl.8.log"]
    assert in_order(given) == [(path, False) for path in given]


def test_files_whose_times_overlap_are_no_rotated_log() -> None:
    def span(path: str) -> Span:
        return Span(datetime(2026, 8, 1), datetime(2026, 8, 2))

    assert not any(goes_on for _, goes_on in in_order(["t.log", "t.log.1"], span))


def test_steps_of_a_newer_part_disprove_what_ended_an_older_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.log.1.gz").write_bytes(gzip.compress((_steps(1, 0) + OOM + "\n").encode()))
    (tmp_path / "t.log").write_text(_steps(6, 5) + _steps(11, 6, "nan"))
    for words in ([str(tmp_path / "t.log"), str(tmp_path / "t.log.1.gz")], [str(tmp_path)]):
        assert main(["diagnose", *words, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["diagnosis_class"] == "num.nan"


def test_steps_of_a_file_written_meanwhile_disprove_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.log.1").write_text(_steps(1, 0) + OOM + "\n")
    (tmp_path / "t.log").write_text(_steps(1, 0))
    assert main(["diagnose", str(tmp_path / "t.log"), str(tmp_path / "t.log.1"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["diagnosis_class"] == "mem.cuda_oom"


def test_evidence_names_the_part_in_which_a_line_stands() -> None:
    sources = [Source("t.log.1", _steps(1, 0)), Source("t.log", OOM, continues=True)]
    assert diagnose(sources).evidence[0].startswith("t.log:")
