"""Planning on the controller: which documents count, what is written, and that nothing is written twice."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
CONTRACTS = ROOT / "tests" / "fixtures" / "contracts"
SETTINGS = {
    "run_dir": "/mnt/shared/runs/demo",
    "venv": "/mnt/shared/venv",
    "command": ["python", "-m", "trainer", "--attempt", "{attempt}"],
    "time_limit_s": 3600,
    "save_signal_s": 60,
    "stall_s": 120,
    "requeue_ok": False,
    "max_restarts": 2,
}


@pytest.fixture
def documents(run_action, tmp_path):
    def call(hosts, examples=None, **held):
        for directory, names in held.items():
            (tmp_path / directory).mkdir()
            for name in names:
                (tmp_path / directory / f"{name}.json").write_text("{}")
        directories = [str(tmp_path / name) for name in ("accepted", "observed")]
        more = {"examples": str(tmp_path / examples)} if examples else {}
        return run_action("plan_documents", directories=directories, hosts=hosts, **more)

    return call


def test_accepted_documents_come_before_observed_ones(documents, tmp_path):
    result = documents(["a"], accepted=["a"], observed=["a"])
    assert result["files"] == {"a": str(tmp_path / "accepted/a.json")}
    assert result["msg"] == f"node documents: {tmp_path / 'accepted'}"


def test_each_host_has_its_own_best_document_and_the_sentence_says_so(documents, tmp_path):
    result = documents(["a", "b", "c"], accepted=["b"], observed=["a", "b"])
    assert result["files"] == {"a": str(tmp_path / "observed/a.json"), "b": str(tmp_path / "accepted/b.json")}
    assert (result["hosts"], result["declared"]) == (["a", "b"], ["c"])
    assert f"{tmp_path / 'observed'} (a), {tmp_path / 'accepted'} (b); none of c: the declared" in result["msg"]


def test_without_documents_the_examples_stand_in(documents, tmp_path):
    result = documents(["a"], examples="shown", shown=["a"])
    assert result["files"] == {"a": str(tmp_path / "shown/a.json")}
    assert result["msg"].startswith("example documents")


def test_examples_of_some_hosts_are_no_documents(documents):
    assert documents(["a", "b"], examples="shown", shown=["a"])["files"] == {}


def test_examples_are_not_mixed_with_real_documents(documents):
    assert documents(["a", "b"], examples="shown", shown=["a", "b"], accepted=["a"])["declared"] == ["b"]


@pytest.fixture
def plan(run_action, tmp_path):
    def call(check_mode=False, train=None, layout=None, **settings):
        return run_action(
            "run_plan",
            check_mode=check_mode,
            run="demo",
            directory=str(tmp_path / "plan"),
            scripts_dir=str(ROOT / "roles/training_job/files"),
            layout={**json.loads((CONTRACTS / "plan.json").read_text()), **(layout or {})},
            train={**json.loads((CONTRACTS / "train.json").read_text()), **(train or {})},
            settings={**SETTINGS, **settings},
        )

    return call


def test_equal_inputs_leave_the_plan_unchanged(plan, tmp_path):
    assert plan()["changed"] is True
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "plan").iterdir()}
    assert plan()["changed"] is False
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "plan").iterdir()} == before


def test_only_the_file_that_differs_is_written(plan):
    plan()
    assert plan(train={"steps": 300})["written"] == ["train.json"]


def test_run_files_of_a_disk_that_failed_are_written_anew(plan, tmp_path):
    plan()
    (tmp_path / "plan/train.json").write_bytes(b"\xff\x00half")
    assert plan()["written"] == ["train.json"]
    assert plan()["changed"] is False


def test_check_mode_writes_nothing(plan, tmp_path):
    assert plan(check_mode=True)["changed"] is True
    assert not (tmp_path / "plan").exists()


def test_environments_beside_the_run_files_are_left_alone(plan, tmp_path):
    conf = tmp_path / "plan" / "nccl" / "node-a.conf"
    conf.parent.mkdir(parents=True)
    conf.write_text("A=1\n")
    plan()
    assert conf.read_text() == "A=1\n"


def test_booleans_and_numbers_of_the_inventory_reach_the_job_as_written(plan, tmp_path):
    plan(environment={"FLAG": True, "COUNT": 3, "RATE": 0.5, "WORD": "a b"})
    text = (tmp_path / "plan" / "job.sbatch").read_text()
    for line in ("export FLAG=1", "export COUNT=3", "export RATE=0.5", "export WORD='a b'"):
        assert line in text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": {"run": "other"}}, "the training settings of 'other'"),
        ({"layout": {"ranks": []}}, "ranks must be a list of at least 1 items"),
        ({"save_signal_s": 9999}, "save signal"),
    ],
)
def test_what_cannot_work_is_one_sentence(plan, changes, message):
    result = plan(**changes)
    assert result["failed"]
    assert message in result["msg"]
