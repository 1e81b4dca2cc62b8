"""The checks of nodes fit inventories that are not the lab's."""

import pytest

from tests.testinfra import test_identity, test_services


@pytest.mark.parametrize(
    ("listens", "host"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("192.0.2.7", "192.0.2.7"),
        ("0.0.0.0", "127.0.0.1"),
        ("", "127.0.0.1"),
        ("::", "[::1]"),
        ("2001:db8::7", "[2001:db8::7]"),
        ("[2001:db8::7]", "[2001:db8::7]"),
        ("trn01", "trn01"),
    ],
)
def test_an_exporter_is_asked_where_it_listens(listens, host):
    assert test_services.reached_at(listens) == host


class Host:
    def __init__(self, name):
        self.inventory_name = name


@pytest.mark.parametrize(
    ("name", "units"),
    [
        ("ctl", ["munge"]),
        ("slurm1", ["munge", "slurmctld"]),
        ("n1", ["munge", "slurmd"]),
    ],
)
def test_units_follow_the_hosts_of_slurm_and_not_the_group_of_the_submit_host(name, units):
    entry = {"slurm_manage": True, "slurm_host": "slurm1", "slurm_node": name == "n1"}
    assert test_services.units_of(Host(name), {name: entry}) == units


def test_one_host_may_be_controller_and_node():
    entry = {"slurm_manage": True, "slurm_host": "n1", "slurm_node": True}
    assert test_services.units_of(Host("n1"), {"n1": entry}) == ["munge", "slurmctld", "slurmd"]


@pytest.mark.parametrize(("text", "is_one"), [("10.0.0.7", True), ("2001:db8::7", True), ("trn01.example.org", False)])
def test_a_name_in_place_of_an_address_is_told_apart(text, is_one):
    assert test_identity.is_address(text) is is_one
