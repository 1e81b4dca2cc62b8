"""`rackweave diagnose` on what an operator may point it at."""

import gzip
import json
import sys

import pytest
from rackweave.cli import main

FAULT = "ValueError: the configuration is wrong\n"


@pytest.fixture
def attempt(tmp_path):
    logs = tmp_path / "7.0/logs/gpu01.example.com/0"
    logs.mkdir(parents=True)
    (logs / "stderr.log").write_text('Traceback (most recent call last):\n  File "x.py", line 1\n' + FAULT)
    return tmp_path / "7.0"


# Without the time, which would give each process that collects tests other names for them.
PACKED = gzip.compress(b"x" * 1000, mtime=0)


@pytest.mark.parametrize(
    "content",
    [PACKED[:-9], PACKED[:-8] + b"\0" * 8, PACKED[:10] + b"\xff" * 20],
    ids=["cut", "another checksum", "no packed data behind a right head"],
)
def test_a_damaged_file_of_a_directory_is_named_and_the_others_are_read(attempt, capsys, content):
    (attempt / "logs/gpu01.example.com/0/stdout.log.1.gz").write_bytes(content)
    assert main(["diagnose", str(attempt), "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["diagnosis_class"] == "app.exception"
    assert json.loads(shown.out)["culprit"] == "rank:0,host:gpu01.example.com"
    assert shown.err.startswith("rackweave diagnose: passed over: ")
    assert main(["diagnose", str(attempt / "logs/gpu01.example.com/0/stdout.log.1.gz")]) == 2
    assert "damaged gzip file" in capsys.readouterr().err


def test_a_directory_without_evidence_is_refused_and_not_called_healthy(tmp_path, capsys):
    assert main(["diagnose", str(tmp_path)]) == 2
    assert "holds no file that could be evidence" in capsys.readouterr().err


def test_a_standard_input_that_is_not_there_is_one_sentence(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", None)
    assert main(["diagnose", "-"]) == 2
    assert "there is no standard input" in capsys.readouterr().err


def test_a_directory_that_holds_itself_is_read_once(attempt, capsys):
    (attempt / "logs/again").symlink_to("..")
    assert main(["diagnose", str(attempt), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["diagnosis_class"] == "app.exception"
