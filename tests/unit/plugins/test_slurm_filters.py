"""Settings of Slurm as YAML gives them: a password of digits only is a number."""

import base64
from importlib import import_module

import pytest
from ansible.errors import AnsibleFilterError

slurm = import_module("ansible_collections.rackweave.cluster.plugins.filter.slurm")
DATABASE = {
    "host": "ctl",
    "storage_host": "localhost",
    "storage_name": "acct",
    "storage_user": "slurm",
    "parameters": {},
}


def test_a_password_of_digits_is_a_text():
    assert "StoragePass=482910573664" in slurm.slurmdbd_conf({**DATABASE, "storage_password": 482910573664})


def test_a_munge_key_that_is_a_number_is_refused_in_one_sentence():
    with pytest.raises(AnsibleFilterError, match="munge"):
        slurm.munge_key_decision({"ctl": {}}, "ctl", 12345678)


@pytest.mark.parametrize("key", ["changeme", "correct horse battery staple", "c2hvcnQ=", 12345678])
def test_a_wrong_munge_key_is_complained_of_without_the_key(key):
    complaint = slurm.munge_key_complaint(key)
    assert complaint.startswith("slurm_munge_key")
    assert str(key) not in complaint


def test_a_good_munge_key_is_not_complained_of():
    assert slurm.munge_key_complaint(base64.b64encode(bytes(range(64))).decode()) == ""
