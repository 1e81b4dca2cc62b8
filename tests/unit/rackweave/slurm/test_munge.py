import base64

import pytest
from rackweave.slurm.munge import KeyState, SlurmError, decide_key, decode_key, nodes_to_ask

NONE = KeyState(None, False)


def test_a_key_is_generated_only_if_no_node_has_one():
    decision = decide_key({"ctl": NONE, "gpu01": NONE}, "ctl", None, rotate_ok=False)
    assert (decision.action, decision.host) == ("generate", "ctl")


def test_the_key_of_running_daemons_wins_over_the_controllers_own():
    states = {"ctl": KeyState("package", False), "gpu01": KeyState("used", True), "gpu02": NONE}
    assert decide_key(states, "ctl", None, rotate_ok=False).host == "gpu01"


def test_a_new_node_with_the_key_of_its_package_gets_the_clusters():
    states = {"ctl": KeyState("used", True), "gpu01": KeyState("package", False)}
    decision = decide_key(states, "ctl", None, rotate_ok=False)
    assert (decision.action, decision.host) == ("read", "ctl")


def test_fresh_nodes_each_with_a_package_key_take_the_controllers():
    states = {"gpu01": KeyState("a", False), "ctl": KeyState("b", False)}
    assert decide_key(states, "ctl", None, rotate_ok=False).host == "ctl"


def test_a_node_whose_key_was_damaged_gets_the_clusters_again():
    states = {"ctl": KeyState("a", True), "gpu01": KeyState("b", True), "gpu02": KeyState("a", True)}
    assert decide_key(states, "ctl", None, rotate_ok=False).host == "ctl"


def test_in_a_run_limited_to_the_damaged_node_the_controller_decides():
    states = {"ctl": KeyState("a", True), "gpu01": KeyState("b", True)}
    assert decide_key(states, "ctl", None, rotate_ok=False).host == "ctl"


def test_a_controller_against_the_majority_needs_consent():
    states = {"ctl": KeyState("a", True), "gpu01": KeyState("b", True), "gpu02": KeyState("b", True)}
    with pytest.raises(SlurmError, match="slurm_munge_rotate_ok"):
        decide_key(states, "ctl", None, rotate_ok=False)
    assert decide_key(states, "ctl", None, rotate_ok=True).host == "ctl"


def test_two_clusters_without_a_running_controller_are_refused_even_with_consent():
    states = {"ctl": NONE, "gpu01": KeyState("a", True), "gpu02": KeyState("b", True)}
    with pytest.raises(SlurmError, match="gpu01; gpu02"):
        decide_key(states, "ctl", None, rotate_ok=True)


def test_a_given_key_replaces_one_in_use_only_with_consent():
    states = {"ctl": KeyState("a", True), "gpu01": KeyState("a", True)}
    with pytest.raises(SlurmError, match=r"on (gpu01|ctl)"):
        decide_key(states, "ctl", "b", rotate_ok=False)
    assert decide_key(states, "ctl", "b", rotate_ok=True).action == "given"
    assert decide_key(states, "ctl", "a", rotate_ok=False).action == "given"


@pytest.mark.parametrize("text", ["changeme", "CHANGE-ME", "replace with your key", "not base64!", "QUJD"])
def test_a_placeholder_or_a_key_munge_refuses_is_refused_here(text):
    with pytest.raises(SlurmError, match="slurm_munge_key"):
        decode_key(text)


def test_a_key_is_decoded_once_line_breaks_or_not():
    key = bytes(range(128))
    encoded = base64.encodebytes(key).decode()
    assert decode_key(encoded) == key


NODES = [f"gpu{number:02d}" for number in range(1, 101)]


def test_a_controller_installed_anew_takes_the_key_of_a_node_outside_of_its_run():
    states = {"ctl": KeyState("package", False), "gpu07": KeyState("used", True)}
    decision = decide_key(states, "ctl", None, rotate_ok=False, silent=["gpu08", "gpu09"])
    assert (decision.action, decision.host) == ("read", "gpu07")


@pytest.mark.parametrize("controller", [NONE, KeyState("package", False)])
def test_a_controller_whose_nodes_give_no_answer_is_given_no_key_without_consent(controller):
    with pytest.raises(SlurmError, match=r"gpu01, gpu02 gave no answer.*slurm_munge_key"):
        decide_key({"ctl": controller}, "ctl", None, rotate_ok=False, silent=["gpu01", "gpu02"])
    assert decide_key({"ctl": controller}, "ctl", None, rotate_ok=True, silent=["gpu01"]).host == "ctl"
    assert decide_key({"ctl": controller}, "ctl", "given", rotate_ok=False, silent=["gpu01"]).action == "given"


def test_a_new_cluster_with_a_dead_node_gets_its_key():
    states = {"ctl": NONE, "gpu01": NONE, "gpu02": NONE}
    assert decide_key(states, "ctl", None, rotate_ok=False, silent=["gpu03"]).action == "generate"


def test_nodes_outside_are_asked_only_where_no_host_of_the_run_uses_a_key():
    assert nodes_to_ask({"ctl": KeyState("a", True)}, NODES) == []
    assert nodes_to_ask({"ctl": KeyState("b", False), "gpu01": KeyState("a", True)}, NODES) == []
    assert nodes_to_ask({"ctl": KeyState("b", False), "gpu01": NONE}, NODES[:3]) == ["gpu02", "gpu03"]


def test_a_daemon_without_a_key_does_not_count_as_one_that_uses_it():
    assert nodes_to_ask({"ctl": KeyState(None, True)}, NODES[:2]) == ["gpu01", "gpu02"]


def test_few_of_many_nodes_are_asked_and_not_neighbours_only():
    asked = nodes_to_ask({"ctl": NONE}, NODES)
    assert len(asked) == 8
    assert asked[-1] > "gpu80"
