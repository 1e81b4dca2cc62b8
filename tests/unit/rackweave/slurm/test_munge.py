import base64

import pytest
from rackweave.slurm.munge import KeyState, SlurmError, decide_key, decode_key

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
