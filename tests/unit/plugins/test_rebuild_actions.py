"""The actions of a rebuild: host key, what is remembered and reported, and the plan of a job that waits."""

import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from rackweave.hardware.document import document_text

from tests.support.documents import ROCE, reference

ROOT = Path(__file__).resolve().parents[3]
KEY = "AAAAC3NzaC1lZDI1NTE5AAAAINEWnewnewnewnewnewnewnewnewnewnewnewnewnewn"


@pytest.fixture
def node_presents(monkeypatch):
    def present(key):
        text = f"192.0.2.22 ssh-ed25519 {key}\n" if key else ""
        monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=text, returncode=0))

    return present


def host_key(run_action, file, **more):
    arguments = {"host": "gpu02", "address": "192.0.2.22", "ssh_arguments": f"-o UserKnownHostsFile={file}"}
    return run_action("host_key", **{**arguments, **more})


def test_a_host_key_is_written_once_and_only_with_consent(run_action, node_presents, tmp_path):
    file = tmp_path / "ssh/known_hosts"
    node_presents(KEY)
    refused = host_key(run_action, file)
    assert refused["failed"]
    assert not file.exists()
    assert host_key(run_action, file, accept_ok=True, check_mode=True)["changed"]
    assert not file.exists()
    assert host_key(run_action, file, accept_ok=True)["changed"]
    assert file.read_text() == f"192.0.2.22,gpu02 ssh-ed25519 {KEY}\n"
    assert not host_key(run_action, file)["changed"]


def test_a_node_that_still_starts_is_waited_for(run_action, monkeypatch, tmp_path):
    answers = iter(["", f"192.0.2.22 ssh-ed25519 {KEY}\n"])
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=next(answers), returncode=0))
    assert host_key(run_action, tmp_path / "known", accept_ok=True, timeout_s=5)["changed"]


def test_a_given_public_key_needs_no_look_at_the_node(run_action, node_presents, tmp_path):
    node_presents("")
    assert host_key(run_action, tmp_path / "known", expected=f"ssh-ed25519 {KEY}")["changed"]


@pytest.fixture
def places(tmp_path):
    def write(name, document):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / f"{document.host}.json").write_text(document_text(document))

    dirs = {f"{name}_dir": str(tmp_path / name) for name in ("observed", "accepted", "before")}
    return SimpleNamespace(write=write, dirs=dirs, path=tmp_path)


def swap(run_action, places, step, **more):
    request = {"fabric": ROCE, "nccl_version": "2.22.3"} if step == "report" else {}
    return run_action("swap_report", host="trn01", step=step, **places.dirs, **request, **more)


def test_without_a_baseline_the_node_is_compared_with_what_it_was(run_action, places):
    node = reference()
    places.write("observed", node)
    swap(run_action, places, "remember")
    places.write("observed", replace(node, gpus=node.gpus[:-1]))
    swap(run_action, places, "remember")  # a run that goes on must not take the new node for the old one
    result = swap(run_action, places, "report")
    assert "GPUs: 8 before, 7 now" in result["loss"]
    assert result["report"]["baseline"] == "as it was before the rebuild"
    swap(run_action, places, "forget")
    assert list((places.path / "before").iterdir()) == []


def test_the_accepted_document_is_the_better_baseline(run_action, places):
    node = reference()
    places.write("accepted", node)
    places.write("before", replace(node, gpus=node.gpus[:-1]))
    places.write("observed", node)
    result = swap(run_action, places, "report")
    assert result["report"]["baseline"] == "that was accepted"
    assert result["loss"] == ""


def test_check_mode_remembers_nothing(run_action, places):
    places.write("observed", reference())
    swap(run_action, places, "remember", check_mode=True)
    assert not (places.path / "before").exists()


def test_a_node_that_was_not_observed_is_one_sentence(run_action, places):
    assert "was not observed" in swap(run_action, places, "report")["msg"]


def roles_of(items):
    """Return the roles that plays or tasks call, in order; a loop over names counts as each of them."""
    found = []
    for item in items:
        found += [role["role"].rpartition(".")[2] for role in item.get("roles", [])]
        call = item.get("ansible.builtin.import_role") or item.get("ansible.builtin.include_role")
        if call:
            words = ":".join(filter(None, (call["name"].rpartition(".")[2], call.get("tasks_from"))))
            found += [words.replace("{{ __rebuild_part }}", part) for part in item.get("loop", [""])]
        found += roles_of(item.get("tasks", []))
    return found


def test_a_rebuild_provisions_with_the_roles_of_provision_in_their_order():
    plays = yaml.safe_load((ROOT / "playbooks/provision.yml").read_text())
    plays = [play for play in plays if "gpu_nodes" in play.get("hosts", "")]
    tasks = yaml.safe_load((ROOT / "roles/rebuild/tasks/provision.yml").read_text())
    assert len(roles_of(plays)) > 5
    assert roles_of(tasks) == roles_of(plays)


@pytest.mark.parametrize(
    ("result", "task", "words"),
    [
        (
            {"msg": "lost: GPUs: 8 before, 7 now\nmore"},
            "Keep a node out that lost a part",
            "lost: GPUs: 8 before, 7 now",
        ),
        ({"msg": "no package torch"}, "Install packages", "Install packages: no package torch"),
        (
            {"msg": "One or more items failed", "results": [{"msg": "ok"}, {"failed": True, "msg": "gone"}]},
            "Reserve the node, then resume it",
            "Reserve the node, then resume it: gone",
        ),
        ({}, "Start", "Start: failed"),
    ],
)
def test_the_reason_of_a_drain_is_what_failed(result, task, words):
    from ansible_collections.rackweave.cluster.plugins.filter.rebuild import failure_words

    assert failure_words(result, task) == words
