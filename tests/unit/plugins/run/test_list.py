"""All runs side by side: one whose files are half written, or no files at all, must not hide the others."""

import json
from pathlib import Path

import pytest

CONTRACTS = Path(__file__).parents[3] / "fixtures" / "contracts"
BAD = {
    "empty": b"",
    "half": b'{"schema": "rackweave.status/1", "run": "d',
    "other": b"[]",
    "keys": b'{"job_id": "7", "loss": "low"}',
    "no-text": b"\xff\xfe\x00{",
    "deep": b'{"a":' * 20_000,
}


@pytest.fixture
def runs(shared, slurm):
    """A run that is over, and one beside it of which a test breaks a file."""
    for name in ("good", "odd"):
        run = shared / "runs" / name
        (run / "attempts" / "7.0").mkdir(parents=True)
        for document in ("job.json", "status.json"):
            content = {**json.loads((CONTRACTS / document).read_text()), "run": name, "job_id": "7"}
            (run / document).write_text(json.dumps(content))
        (run / "attempts/7.0/train.json").write_text((CONTRACTS / "train.json").read_text())
        event = {"time": "2026-01-05T10:00:00Z", "kind": "step", "rank": 0, "step": 3, "loss": 2.5, "step_time_s": 1.0}
        (run / "attempts/7.0/events.jsonl").write_text(json.dumps(event) + "\n")
    (shared / "runs/a file").write_text("")
    return shared / "runs"


@pytest.mark.parametrize("kind", [*BAD, "directory", "loop"])
@pytest.mark.parametrize("name", ["status.json", "job.json", "attempts/7.0/train.json", "attempts/7.0/events.jsonl"])
def test_a_run_with_a_broken_file_is_listed_with_what_is_known(run_module, runs, as_user, name, kind):
    path = runs / "odd" / name
    path.unlink()
    if kind == "directory":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path.name)
    else:
        path.write_bytes(BAD[kind])
    found = {run["run"]: run for run in run_module("run_list", runs_dir=str(runs))["runs"]}
    assert found["good"]["job_id"] == "7"
    assert found["odd"]["state"] != "not launched"


def test_a_directory_of_runs_that_is_none_holds_no_run(run_module, tmp_path, slurm, as_user):
    (tmp_path / "file").write_text("")
    for name in ("file", "absent"):
        answer = run_module("run_list", runs_dir=str(tmp_path / name))
        assert answer["table"] == ["no run has been launched here"]
