"""Readers of run files: the committed examples pass, what they do not know is refused by name."""

import copy
import json
from pathlib import Path

import pytest
from rackweave.errors import DocumentError
from rackweave.run import attempt
from rackweave.run.plan_file import parse_plan
from rackweave.run.status_file import parse_status
from rackweave.run.train_file import parse_train, serialise_train

CONTRACTS = Path(__file__).parents[3] / "fixtures" / "contracts"
READERS = {
    "plan.json": parse_plan,
    "train.json": parse_train,
    "attempt.json": attempt.parse_attempt,
    "result.json": attempt.parse_result,
    "exit.json": attempt.parse_exit,
    "end.json": attempt.parse_end,
    "job.json": attempt.parse_job,
    "status.json": parse_status,
}


def text_of(name):
    return (CONTRACTS / name).read_text()


@pytest.mark.parametrize("name", READERS)
def test_the_committed_example_is_read(name):
    assert READERS[name](text_of(name))


@pytest.mark.parametrize("name", READERS)
def test_an_unknown_key_is_refused_by_name(name):
    document = json.loads(text_of(name)) | {"surprise": 1}
    with pytest.raises(DocumentError, match="unknown key 'surprise'"):
        READERS[name](json.dumps(document))


@pytest.mark.parametrize("name", READERS)
def test_another_schema_is_refused_with_both_names(name):
    document = json.loads(text_of(name)) | {"schema": "rackweave.else/9"}
    with pytest.raises(DocumentError, match=r"rackweave\.else/9.*but this version reads 'rackweave\.\w+/1'"):
        READERS[name](json.dumps(document))


@pytest.mark.parametrize("name", READERS)
def test_every_missing_required_key_is_named(name):
    document = json.loads(text_of(name))
    for key in document:
        if key == "schema":
            continue
        shorter = {other: value for other, value in document.items() if other != key}
        with pytest.raises(DocumentError, match=f"lacks the key '{key}'"):
            READERS[name](json.dumps(shorter))


def test_half_a_file_is_refused_with_the_place():
    with pytest.raises(DocumentError, match=r"plan\.json is not valid JSON.*line"):
        parse_plan(text_of("plan.json")[:300])


def changed_plan(change):
    document = copy.deepcopy(json.loads(text_of("plan.json")))
    change(document)
    return json.dumps(document)


def swap_hosts(document):
    for row, host, local_rank in zip(document["ranks"], ("node-b", "node-a", "node-b", "node-a"), (0, 0, 1, 1)):
        row.update(host=host, local_rank=local_rank)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda plan: plan["sizes"].update(world_size=8), "world_size=8, but the parallel sizes make 4"),
        (lambda plan: plan["ranks"].pop(), "table has 3"),
        (lambda plan: plan["sizes"].update(global_batch_size=9), "global_batch_size=9, but micro_batch_size=2"),
        (swap_hosts, "not consecutive"),
        (lambda plan: plan["ranks"][1].update(local_rank=3), "local_rank 3, but torchrun will give it 1"),
        (lambda plan: plan["ranks"][1].update(tp_rank=0), "rank 1 is written at tp=0"),
        (lambda plan: plan["ranks"][0].update(rank=2), "row 0 of the rank table is rank 2"),
        (lambda plan: plan["sizes"].update(tensor_parallel_size=True), "tensor_parallel_size is True"),
    ],
)
def test_a_plan_that_contradicts_itself_is_refused(change, message):
    with pytest.raises(DocumentError, match=message):
        parse_plan(changed_plan(change))


def test_hosts_come_in_rank_order_and_not_in_alphabetical_order():
    plan = parse_plan(text_of("plan.json"))
    assert plan.hosts == ("node-b", "node-a")
    assert plan.master_host == "node-b"
    assert [place.rank for place in plan.ranks_on("node-a")] == [2, 3]


@pytest.mark.parametrize(
    ("section", "values", "message"),
    [
        ("optimizer", {"minimum_learning_rate": 1.0}, "minimum_learning_rate=1 is above learning_rate=0.003"),
        ("optimizer", {"decay_steps": 5}, "decay_steps=5 must be above warmup_steps=10"),
        ("optimizer", {"learning_rate": float("nan")}, "learning_rate is nan"),
        ("optimizer", {"schedule": "zigzag"}, "must be one of cosine, linear, constant"),
        ("data", {"validation": []}, "data.validation is empty"),
        ("dropout", {"hidden": 1.5}, "must be at most 1"),
    ],
)
def test_training_settings_that_cannot_work_are_refused(section, values, message):
    document = json.loads(text_of("train.json"))
    document[section] |= values
    with pytest.raises(DocumentError, match=message):
        serialise_train(document)


def test_attempts_sort_by_job_and_restart_as_numbers():
    names = ["9.0", "10.1", "10.0", "9.10", "9.2", "notes", ".tmp"]
    assert attempt.sort_attempts(names) == ("9.0", "9.2", "9.10", "10.0", "10.1")


def test_a_broken_result_is_named_and_the_others_are_read():
    results, broken = attempt.read_results({"1": text_of("result.json"), "2": "{"})
    assert list(results) == [1]
    assert len(broken) == 1
