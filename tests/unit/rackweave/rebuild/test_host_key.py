"""Host keys: only the rebuilt node's lines change, and only with consent for the key that it presents."""

import base64
import hashlib
import hmac

import pytest
from rackweave.rebuild.host_key import (
    HostKeyError,
    decide,
    known_hosts_file,
    known_keys,
    names_of,
    parse_keys,
    replaced,
)

OLD = "AAAAC3NzaC1lZDI1NTE5AAAAIGoldoldoldoldoldoldoldoldoldoldoldoldoldold"
NEW = "AAAAC3NzaC1lZDI1NTE5AAAAINEWnewnewnewnewnewnewnewnewnewnewnewnewnewn"
NAMES = ("192.0.2.22", "gpu02")
FILE = f"""# written by hand
gpu01,192.0.2.21 ssh-ed25519 {OLD}
gpu02,192.0.2.22 ssh-ed25519 {OLD} old
*.cluster ssh-ed25519 {OLD}
"""


def hashed(name, key):
    salt = b"0123456789abcdefghij"
    digest = hmac.new(salt, name.encode(), hashlib.sha1).digest()
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()} ssh-ed25519 {key}"


def presented(key=NEW):
    return parse_keys(f"# 192.0.2.22:22 SSH-2.0-OpenSSH_9.2\n192.0.2.22 ssh-ed25519 {key}\n")


def test_an_unchanged_key_changes_nothing():
    decision = decide("gpu02", known_keys(FILE, NAMES), presented(OLD))
    assert not decision.replace
    assert "unchanged" in decision.words


def test_a_new_key_is_refused_with_both_fingerprints_and_the_way_out():
    with pytest.raises(HostKeyError) as raised:
        decide("gpu02", known_keys(FILE, NAMES), presented())
    text = str(raised.value)
    assert presented()[0].fingerprint in text
    assert presented(OLD)[0].fingerprint in text
    assert "rebuild_host_keys" in text


@pytest.mark.parametrize("expected", [presented()[0].fingerprint, f"ssh-ed25519 {NEW} root@gpu02"])
def test_the_expected_key_is_consent(expected):
    decision = decide("gpu02", known_keys(FILE, NAMES), presented(), expected)
    assert decision.replace
    assert decision.keys == presented()


def test_another_key_than_the_expected_one_is_refused_even_with_consent_to_any():
    with pytest.raises(HostKeyError, match="another machine"):
        decide("gpu02", known_keys(FILE, NAMES), presented(), "SHA256:abc", accept_ok=True)


def test_consent_to_any_key_is_said():
    decision = decide("gpu02", known_keys("", NAMES), presented(), accept_ok=True)
    assert decision.replace
    assert "by consent" in decision.words
    assert "none was known" in decision.words


def test_a_node_that_presents_nothing_is_named():
    with pytest.raises(HostKeyError, match="presents no SSH host key"):
        decide("gpu02", known_keys(FILE, NAMES), (), accept_ok=True)


def test_a_certificate_authority_vouches_for_the_node():
    known = known_keys(f"@cert-authority *.cluster,gpu* ssh-ed25519 {OLD}\n", NAMES)
    assert not decide("gpu02", known, ()).replace


def test_an_authority_that_excludes_the_node_does_not_vouch():
    assert not known_keys(f"@cert-authority gpu*,!gpu02 ssh-ed25519 {OLD}\n", ("gpu02",)).certified


def test_only_the_lines_of_the_node_are_replaced():
    after = replaced(FILE, NAMES, presented())
    lines = after.splitlines()
    assert lines[:2] == FILE.splitlines()[:2]
    assert lines[2] == FILE.splitlines()[3]
    assert lines[3:] == [f"192.0.2.22,gpu02 ssh-ed25519 {NEW}"]
    assert replaced(after, NAMES, presented()) == after


def test_a_line_that_names_other_hosts_too_keeps_them():
    after = replaced(f"gpu01,gpu02 ssh-ed25519 {OLD}\n", ("gpu02",), presented())
    assert after.splitlines() == [f"gpu01 ssh-ed25519 {OLD}", f"gpu02 ssh-ed25519 {NEW}"]


def test_hashed_names_are_found_and_replaced():
    text = f"{hashed('gpu02', OLD)}\n{hashed('gpu01', OLD)}\n"
    assert known_keys(text, NAMES).keys == presented(OLD)
    assert replaced(text, NAMES, presented()).splitlines()[0] == hashed("gpu01", OLD)


def test_another_port_has_another_name():
    assert names_of("192.0.2.22", 2222, ["gpu02"]) == ("[192.0.2.22]:2222", "[gpu02]:2222")
    assert names_of("gpu02", 22, ["gpu02"]) == ("gpu02",)


@pytest.mark.parametrize(
    ("arguments", "file"),
    [
        ("-o UserKnownHostsFile=/x/known -o IdentitiesOnly=yes", "/x/known"),
        ('-o "UserKnownHostsFile /x/known" -4', "/x/known"),
        ("-o ProxyJump=gate", "~/.ssh/known_hosts"),
    ],
)
def test_the_file_is_the_one_that_ssh_uses(arguments, file):
    assert known_hosts_file(arguments, "~/.ssh/known_hosts") == file


def test_text_that_is_no_key_is_left_out():
    assert parse_keys("ssh-ed25519\nssh-ed25519 not!base64\nssh-dss AAAA\n\n") == ()
