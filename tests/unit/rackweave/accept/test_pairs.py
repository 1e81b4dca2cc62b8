"""Who is measured with whom."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rackweave.accept.pairs import pair_rounds


@given(st.integers(2, 40), st.integers(0, 5), st.integers(1, 4))
def test_rounds_are_disjoint_hosts_meet_enough_others_and_every_pair_holds_a_tested_host(tested, idle, partners):
    hosts, neighbours = [f"a{n}" for n in range(tested)], [f"b{n}" for n in range(idle)]
    rounds = pair_rounds(hosts, neighbours, partners)
    met = {host: [] for host in hosts}
    for pairs in rounds:
        names = [name for pair in pairs for name in pair]
        assert len(names) == len(set(names))
        for one, two in pairs:
            assert one in hosts or two in hosts
            met.setdefault(one, []).append(two)
            met.setdefault(two, []).append(one)
    for host in hosts:
        assert len(set(met[host])) == len(met[host]) >= min(partners, tested + idle - 1)


def test_the_number_of_rounds_does_not_grow_with_the_number_of_hosts():
    assert len(pair_rounds([f"n{n}" for n in range(1000)])) == len(pair_rounds([f"n{n}" for n in range(10)]))


@pytest.mark.parametrize(("hosts", "neighbours"), [(["a"], []), ([], []), ([], ["a", "b"])])
def test_where_nobody_can_be_paired_there_is_no_round(hosts, neighbours):
    assert pair_rounds(hosts, neighbours) == []
