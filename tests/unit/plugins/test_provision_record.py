"""The action that collects what roles held back or skipped, and its lists."""

import importlib

import pytest

ACTION = importlib.import_module("ansible_collections.rackweave.cluster.plugins.action.provision_record")


class Arguments(ACTION.ActionModule):
    """The action without a task behind it: arguments come from the test."""

    def __init__(self, **arguments):
        self.arguments = arguments

    def validate_argument_spec(self, specification):
        defaults = {name: option.get("default") for name, option in specification.items()}
        return None, {**defaults, **self.arguments}


@pytest.fixture(autouse=True)
def without_a_task(monkeypatch):
    monkeypatch.setattr(ACTION.ActionBase, "run", lambda self, tmp=None, task_vars=None: {})


def record(variables=None, **arguments):
    return Arguments(role="gpu_driver", **arguments).run(task_vars=variables or {})


def test_what_is_held_back_is_added_once():
    facts = record(changes={"packages": True})["ansible_facts"]
    assert [entry["change"] for entry in facts["rackweave_pending"]] == ["packages"]
    again = record(facts, changes={"packages": True})["ansible_facts"]
    assert again["rackweave_pending"] == facts["rackweave_pending"]


def test_what_was_done_is_not_pending():
    assert record(changes={"packages": True}, held_back=False)["ansible_facts"]["rackweave_pending"] == []


def test_lists_are_continued_where_facts_are_not_injected():
    before = {"ansible_facts": {"rackweave_skipped": [{"role": "node_base", "skipped": "time", "reason": "container"}]}}
    skipped = record(before, skipped=["modules"], reason="container")["ansible_facts"]["rackweave_skipped"]
    assert [entry["role"] for entry in skipped] == ["node_base", "gpu_driver"]


def test_a_skip_without_a_reason_fails_the_task():
    result = record(skipped=["modules"])
    assert result["failed"] is True
    assert "without a reason" in result["msg"]
