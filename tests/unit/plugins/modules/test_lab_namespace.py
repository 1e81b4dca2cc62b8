"""Labs of one machine share a mount namespace: it stays while another lab is there, or is being built."""

from importlib import import_module

import pytest

MODULE = "ansible_collections.rackweave.cluster.plugins.modules.lab_namespace"


@pytest.fixture
def lab(run_module, monkeypatch, tmp_path):
    """Call the module for a lab of the given name; containers are those of the list."""
    module = import_module(MODULE)
    monkeypatch.setattr(module, "LOCK", tmp_path / "lock")
    monkeypatch.setattr(module, "CGROUP_PARENTS", ())
    monkeypatch.setattr(module, "containers_left", lambda *_: bool(call.containers))

    def call(name, state="present", **more):
        checkout = tmp_path / f"checkout-{name}"
        checkout.mkdir(exist_ok=True)
        call.checkouts[name] = checkout
        directory = str(tmp_path / "run")
        return run_module("lab_namespace", directory=directory, lab=name, checkout=str(checkout), state=state, **more)

    call.directory, call.checkouts, call.containers = tmp_path / "run", {}, []
    return call


def test_a_lab_that_is_only_being_built_keeps_the_namespace(lab):
    lab("one")
    lab("two")
    kept = lab("one", state="absent")
    assert not kept["changed"]
    assert "the lab two uses it" in kept["msg"]
    assert (lab.directory / "podman").exists()
    assert lab("two", state="absent")["changed"]
    assert not lab.directory.exists()


def test_containers_without_a_note_keep_it_too(lab):
    lab("one")
    lab.containers.append("of an older version")
    assert "containers" in lab("one", state="absent")["msg"]
    assert lab.directory.exists()


def test_a_lab_whose_checkout_is_gone_keeps_nothing(lab):
    lab("one")
    lab("two")
    lab.checkouts["two"].rmdir()
    assert lab("one", state="absent")["changed"]
    assert not lab.directory.exists()


def test_the_second_call_changes_nothing_and_taking_down_what_is_not_there_neither(lab):
    lab("one")
    assert not lab("one")["changed"]
    lab("one", state="absent")
    assert not lab("one", state="absent")["changed"]


def test_check_mode_neither_notes_nor_forgets_a_lab(lab):
    lab("one", check_mode=True)
    assert not lab.directory.exists()
    lab("one")
    assert lab("one", state="absent", check_mode=True)["changed"]
    assert (lab.directory / "labs/one").exists()
