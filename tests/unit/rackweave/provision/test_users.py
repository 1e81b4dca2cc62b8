"""Users of the inventory, before one of them is made on every node."""

import pytest
from rackweave.errors import ProvisionError
from rackweave.provision.users import check_users

HPC = {"name": "hpc", "uid": 2000}


@pytest.mark.parametrize(
    "users",
    [
        [],
        [HPC],
        [{"name": "jane.doe", "uid": 3000}, {"name": "Train", "uid": 3001}],
        [HPC, {"name": "_svc-1", "uid": "2001", "home": "/srv/x", "shell": "/bin/sh"}],
    ],
)
def test_users_that_can_be_made_come_back_as_they_are(users):
    assert check_users(users) == users


@pytest.mark.parametrize(
    ("users", "words"),
    [
        ([{"name": "hpc"}], "must have name and uid"),
        (["hpc"], "must have name and uid"),
        ([{**HPC, "groups": ["docker"]}], "may have home and shell"),
        ([{"name": "two words", "uid": 1}], "no login name"),
        ([{"name": "1000", "uid": 1}], "no login name"),
        ([{"name": "root", "uid": 5}], "root, who is there"),
        ([{"name": "hpc", "uid": 0}], "above 0"),
        ([{"name": "hpc", "uid": "x"}], "above 0"),
        ([{"name": "hpc", "uid": True}], "above 0"),
        ([HPC, {"name": "other", "uid": "2000"}], "both have the uid 2000"),
        ([HPC, {"name": "hpc", "uid": 2001}], "more than once"),
    ],
)
def test_a_user_that_cannot_be_made_is_named_with_what_is_wrong(users, words):
    with pytest.raises(ProvisionError, match=words):
        check_users(users)
