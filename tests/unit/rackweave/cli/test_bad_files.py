"""Every file that a command is given may be anything: a sentence and status 2, or a page that says what it lacks."""

import gzip
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rackweave.cli import main

from tests.support.documents import EXAMPLES

ROOT = Path(__file__).parents[4]
CONTRACTS = ROOT / "tests/fixtures/contracts"
NODES = EXAMPLES / "prod-8hca"
CONTENTS = {
    "empty": b"",
    "half": b'{"schema": "rackweave.plan/1", "run": "d',
    "other": b"[]",
    "no-text": b"\xff\xfe\x00{",
    "deep": b'{"a":' * 20_000,
    "huge": b'{"a": ' + b"9" * 5_000 + b"}",
}
KINDS = (*CONTENTS, "directory", "loop", "absent", "nowhere")


def put(path, kind):
    """Make something of that kind at a path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "directory":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "nowhere":
        path.symlink_to("/nowhere/at/all")
    elif kind != "absent":
        path.write_bytes(CONTENTS[kind])
    return path


def refused(capsys, *words):
    status = main([str(word) for word in words])
    shown = capsys.readouterr()
    assert (status, shown.out) == (2, "")
    assert shown.err.count("\n") == 1
    return shown.err


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_of_another_kind_is_one_sentence_that_names_it(capsys, tmp_path, kind):
    bad = put(tmp_path / "bad.json", kind)
    fabric = tmp_path / "fabric.json"
    fabric.write_text('{"kind": "roce"}')
    assert refused(capsys, "plan", "--cluster", "1x8xH100", "--model", bad)
    assert str(bad) in refused(capsys, "plan", "--cluster", "1x8xH100", "--model", "llama3-8b", "--calibration", bad)
    assert refused(capsys, "score", "--rows", bad)
    assert refused(capsys, "nccl", "--nodes", NODES, "--fabric", bad)
    nodes = tmp_path / "nodes"
    shutil.copytree(NODES, nodes)
    (nodes / "trn01.json").unlink()
    put(nodes / "trn01.json", "empty" if kind == "absent" else kind)
    assert "trn01.json" in refused(capsys, "nccl", "--nodes", nodes, "--fabric", fabric)
    assert "trn01.json" in refused(capsys, "plan", "--cluster", nodes, "--model", "llama3-8b")


@pytest.mark.parametrize("kind", ["empty", "loop", "nowhere", "absent"])
def test_what_stands_where_a_directory_of_files_is_to_be_is_named(capsys, tmp_path, kind):
    out = put(tmp_path / "out", kind)
    fabric = tmp_path / "fabric.json"
    fabric.write_text('{"kind": "roce"}')
    words = ("nccl", "--nodes", NODES, "--fabric", fabric, "--output", out)
    if kind == "absent":
        assert main([str(word) for word in words]) == 0
        assert len(list(out.iterdir())) == 8
    else:
        assert f"{out} cannot be made" in refused(capsys, *words)


def attempt(where):
    where.mkdir(parents=True)
    shutil.copy(CONTRACTS / "plan.json", where)
    events = (
        {"time": f"2026-01-05T10:00:{step:02d}+00:00", "kind": "step", "rank": 0, "step": step, "step_time_s": 1.0}
        for step in range(10)
    )
    (where / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return where


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "absent"])
@pytest.mark.parametrize(
    "name", ["plan.json", "train.json", "end.json", "verdict.json", "events.jsonl", "../../job.json"]
)
def test_the_page_is_made_and_names_what_it_lacks(capsys, tmp_path, name, kind):
    made = attempt(tmp_path / "demo/attempts/7.0")
    path = Path(os.path.normpath(made / name))
    path.unlink(missing_ok=True)
    put(path, kind)
    assert main(["report", str(tmp_path / "demo")]) == 0
    shown = capsys.readouterr()
    page = (tmp_path / "demo/report.html").read_text()
    if name == "events.jsonl" and kind in CONTENTS:  # lines that are no events are counted
        assert shown.err == ""
    elif name != "events.jsonl" or kind != "nowhere":
        assert path.name in shown.err
        assert "cannot be read" in page
    assert "Run demo" in page


def test_a_verdict_without_its_keys_does_not_break_the_page(capsys, tmp_path):
    made = attempt(tmp_path / "demo/attempts/7.0")
    (made / "verdict.json").write_text('{"schema": "rackweave.verdict/1", "severity": "fatal"}')
    assert main(["report", str(tmp_path / "demo")]) == 0
    assert "lacks the key" in capsys.readouterr().err


def test_the_page_of_before_stays_where_the_new_one_cannot_be_written(capsys, tmp_path):
    attempt(tmp_path / "demo/attempts/7.0")
    assert "--output" in refused(capsys, "report", tmp_path / "demo", "--output", "/dev/full")
    assert "report.html" in refused(capsys, "report", tmp_path / "demo", "--output", tmp_path / "no/report.html")


def command(tail, before=""):
    words = f"{before}{sys.executable} -m rackweave {tail}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "plugins/module_utils")}
    return subprocess.run(["bash", "-c", words], capture_output=True, text=True, env=environment, check=False)


def test_an_output_that_is_full_is_one_sentence():
    found = command(f'nccl --nodes {NODES} --fabric <(echo \'{{"kind": "roce"}}\') > /dev/full')
    assert found.returncode == 2
    assert found.stderr == "rackweave nccl: standard output: No space left on device\n"


@pytest.mark.parametrize("unbuffered", ["", "PYTHONUNBUFFERED=1 "])
def test_an_output_that_is_full_is_told_from_an_input_that_fails(tmp_path, unbuffered):
    log = tmp_path / "log"
    log.write_text("torch.OutOfMemoryError: CUDA out of memory.\n")
    full = command(f"diagnose {log} > /dev/full", unbuffered)
    assert (full.returncode, full.stderr) == (2, "rackweave diagnose: standard output: No space left on device\n")
    # A file that opens and then cannot be read: its error names nothing.
    bad = command("diagnose /proc/self/mem", unbuffered)
    assert (bad.returncode, bad.stderr) == (
        2,
        "rackweave diagnose: /proc/self/mem: cannot be read: Input/output error\n",
    )
    bad = command("diagnose - 0> /dev/null", unbuffered)
    assert (bad.returncode, bad.stderr.count("\n")) == (2, 1)
    assert "-: standard input cannot be read" in bad.stderr


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (OSError(5, "Input/output error"), "a file or device failed: Input/output error"),
        (OSError(5, "Input/output error", "x"), "x: Input/output error"),
        (BrokenPipeError(32, "Broken pipe"), "a file or device failed: Broken pipe"),
    ],
)
def test_an_error_of_unknown_origin_is_not_blamed_on_the_output(monkeypatch, capsys, error, sentence):
    def fail(arguments):
        raise error

    monkeypatch.setattr("rackweave.cli.score.run", fail)
    assert refused(capsys, "score", "--rows", "x") == f"rackweave score: {sentence}\n"


def test_a_model_comes_through_a_pipe_too():
    found = command("plan --cluster 1x8xH100 --json --model <(echo '{\"layers\": 0}')")
    assert (found.returncode, found.stderr.count("\n")) == (2, 1)
    assert "unknown model" not in found.stderr


def test_a_root_that_is_none_is_not_a_machine_without_parts(capsys, tmp_path):
    assert "is no directory" in refused(capsys, "nccl", "--collect", "a", "--root", tmp_path / "nowhere")


def test_a_packed_log_is_read_through_a_pipe_too(tmp_path):
    log = tmp_path / "log.gz"
    log.write_bytes(gzip.compress(b"torch.OutOfMemoryError: CUDA out of memory.\n"))
    found = command(f"diagnose --json - < {log}")
    assert json.loads(found.stdout)["diagnosis_class"] == "mem.cuda_oom"
    assert found.stdout == command(f"diagnose --json - < <(gunzip -c {log})").stdout
    log.write_bytes(log.read_bytes()[:20])
    broken = command(f"diagnose - < {log}")
    assert (broken.returncode, broken.stderr.count("\n")) == (2, 1)
    assert "-: damaged gzip data" in broken.stderr


def test_a_closed_output_is_one_sentence_and_a_closed_error_output_breaks_nothing(tmp_path):
    attempt(tmp_path / "demo/attempts/7.0")
    (tmp_path / "demo/job.json").write_text("[]")
    closed = command(f"report {tmp_path / 'demo'} >&-")
    assert (closed.returncode, closed.stderr.count("\n")) == (2, 1)
    assert "there is no standard output" in closed.stderr
    silent = command(f"report {tmp_path / 'demo'} 2>&-")
    assert (silent.returncode, silent.stdout) == (0, f"{tmp_path / 'demo/report.html'}\n")


def test_a_reader_that_has_seen_enough_is_no_error():
    found = command(f'nccl --nodes {NODES} --fabric <(echo \'{{"kind": "roce"}}\') | head -c 1')
    assert (found.stdout, found.stderr) == ("N", "")


def test_a_reader_that_has_gone_makes_no_alarm_a_good_end(tmp_path):
    log = tmp_path / "log"
    log.write_text("torch.OutOfMemoryError: CUDA out of memory.\n")
    left = "; echo ${PIPESTATUS[0]} >&2"
    # 141 where the reader had gone before the command knew its own status, as with any other program.
    assert command(f"diagnose --exit-code {log} | true{left}").stderr in ("1\n", "141\n")
    assert command(f"plan --model gpt-400b --cluster 1x8xH100 --json | true{left}").stderr in ("1\n", "141\n")
