"""The module that observes a node: check mode, truthful `changed`, refusals."""

import json

import pytest

from tests.support.layouts import l06_roce_bonds
from tests.support.machines import build


@pytest.fixture
def tree(tmp_path):
    return str(build(l06_roce_bonds().machine, tmp_path / "tree"))


def test_the_document_is_returned_and_nothing_is_changed(run_module, tree):
    result = run_module("node_hardware", host="trn01", root=tree)

    assert result["changed"] is False
    assert result["document"]["host"] == "trn01"
    assert len(result["document"]["nics"]) == 8
    assert result["seconds"] > 0


def test_a_file_is_written_once(run_module, tree, tmp_path):
    dest = tmp_path / "node.json"
    first = run_module("node_hardware", host="trn01", root=tree, dest=str(dest))
    second = run_module("node_hardware", host="trn01", root=tree, dest=str(dest))

    assert (first["changed"], second["changed"]) == (True, False)
    assert json.loads(dest.read_text()) == first["document"]


def test_check_mode_says_what_it_would_do_and_writes_nothing(run_module, tree, tmp_path):
    dest = tmp_path / "node.json"
    result = run_module("node_hardware", check_mode=True, host="trn01", root=tree, dest=str(dest))

    assert result["changed"] is True
    assert not dest.exists()


def test_an_overlay_belongs_to_a_simulated_node(run_module, tree):
    result = run_module("node_hardware", host="trn01", overlay=tree)

    assert result["failed"]
    assert "origin=simulated" in result["msg"]


def test_a_root_that_is_not_there_is_one_sentence(run_module, tmp_path):
    result = run_module("node_hardware", host="trn01", root=str(tmp_path / "none"))

    assert result["failed"]
    assert result["msg"] == f"no such directory: {tmp_path / 'none'}"
