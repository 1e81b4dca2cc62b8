"""Which GID row NCCL takes: the public tables, row by row, and what makes a row unusable."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rackweave.fabric.gid import GidQuery, gid_fault, gid_table, has_gap, predict_gid_index, smallest_cover
from rackweave.hardware.node import Gid

V1, V2 = "IB/RoCE v1", "RoCE v2"
LINK_LOCAL, ULA, IPV4 = "fe80::200:5eff:fe00:5301", "fd93::7", "::ffff:10.1.0.5"
GLOBAL, VLAN_IPV4, VLAN_LINK_LOCAL = "2001:db8::7", "::ffff:172.20.0.5", "fe80::200:5eff:fe00:5302"
MADE_UP = "::ffff:169.254.7.9"
VLAN = ipaddress.ip_network("172.20.0.0/16")


def table(*addresses, first=0):
    """Two rows for each address, version 1 before version 2, as the kernel fills the table."""
    rows = [(address, kind) for address in addresses for kind in (V1, V2)]
    return tuple(Gid(first + index, address, kind) for index, (address, kind) in enumerate(rows))


@pytest.mark.parametrize(
    ("gids", "query", "index"),
    [
        pytest.param(table(LINK_LOCAL, IPV4), GidQuery(), 3, id="link-local, then IPv4"),
        pytest.param(table(LINK_LOCAL, ULA, IPV4), GidQuery(), 5, id="a global IPv6 pushes IPv4 to 4 and 5"),
        pytest.param(
            table(LINK_LOCAL, VLAN_LINK_LOCAL, VLAN_IPV4), GidQuery(), 5, id="base without address, VLAN with"
        ),
        pytest.param(table(LINK_LOCAL, IPV4, VLAN_LINK_LOCAL, VLAN_IPV4), GidQuery(), 3, id="base and VLAN"),
        pytest.param(
            table(LINK_LOCAL, IPV4, VLAN_LINK_LOCAL, VLAN_IPV4), GidQuery(within=VLAN), 7, id="base and VLAN, in range"
        ),
        pytest.param(table(LINK_LOCAL, ULA), GidQuery(), 0, id="IPv6 only"),
        pytest.param(table(LINK_LOCAL, ULA), GidQuery(family="ipv6"), 3, id="IPv6 only, asked for"),
        pytest.param(table(LINK_LOCAL, MADE_UP), GidQuery(), 3, id="made-up IPv4 counts as valid"),
        pytest.param(table(LINK_LOCAL, IPV4, first=4), GidQuery(), 7, id="container: rows 0 to 3 are empty"),
        pytest.param(table(LINK_LOCAL, GLOBAL, IPV4), GidQuery(pinned=3), 3, id="pinned"),
        pytest.param(table(IPV4), GidQuery(), 1, id="IPv4 only"),
        pytest.param((Gid(0, LINK_LOCAL, V1), Gid(5, IPV4, V2)), GidQuery(), 5, id="a flap left a gap"),
        pytest.param((Gid(0, LINK_LOCAL, V1), Gid(1, IPV4, V1)), GidQuery(), 1, id="version 2 is missing"),
        pytest.param((), GidQuery(), 0, id="empty table"),
    ],
)
def test_nccl_takes_this_row(gids, query, index):
    assert predict_gid_index(gids, query) == index


@pytest.mark.parametrize(
    ("gids", "index", "words"),
    [
        (table(LINK_LOCAL, ULA), 0, "link-local"),
        (table(LINK_LOCAL, MADE_UP), 3, "169.254"),
        (table(LINK_LOCAL, IPV4), 2, "RoCE v1"),
        (table(LINK_LOCAL, IPV4), 9, "row 9 is empty"),
    ],
)
def test_a_row_that_cannot_arrive_is_named(gids, index, words):
    assert words in gid_fault(gids, index, ())


def test_a_row_outside_the_fabric_is_named_with_the_subnets():
    fault = gid_fault(table(LINK_LOCAL, IPV4), 3, [VLAN])

    assert "10.1.0.5" in fault
    assert "172.20.0.0/16" in fault


def test_a_good_row_has_no_fault():
    assert gid_fault(table(LINK_LOCAL, IPV4), 3, [ipaddress.ip_network("10.1.0.0/24")]) is None


def test_the_whole_table_is_shown():
    assert gid_table(table(LINK_LOCAL, IPV4)) == (
        f"0: {LINK_LOCAL} v1; 1: {LINK_LOCAL} v2; 2: 10.1.0.5 v1; 3: 10.1.0.5 v2"
    )


def test_empty_rows_before_the_chosen_one_are_seen():
    assert has_gap(table(LINK_LOCAL, IPV4, first=4), 7)
    assert not has_gap(table(LINK_LOCAL, IPV4), 3)


@given(addresses=st.lists(st.sampled_from([LINK_LOCAL, ULA, GLOBAL, VLAN_LINK_LOCAL]), max_size=6), data=st.data())
def test_an_ipv4_address_is_found_wherever_it_stands(addresses, data):
    at = data.draw(st.integers(0, len(addresses)))
    gids = table(*addresses[:at], IPV4, *addresses[at:])

    assert predict_gid_index(gids, GidQuery()) == 2 * at + 1


@given(addresses=st.lists(st.sampled_from([LINK_LOCAL, ULA, IPV4, VLAN_IPV4, MADE_UP]), max_size=8))
def test_with_a_range_nothing_outside_it_is_taken(addresses):
    index = predict_gid_index(table(*addresses), GidQuery(within=VLAN))

    assert index == 0 or table(*addresses)[index].gid == VLAN_IPV4


@given(parts=st.lists(st.integers(0, 255), min_size=1, max_size=6))
def test_the_cover_holds_every_subnet(parts):
    networks = [ipaddress.ip_network(f"10.40.{part}.0/24") for part in parts]

    cover = smallest_cover(networks)

    assert all(network.subnet_of(cover) for network in networks)
    halves = list(cover.subnets()) if cover.prefixlen < 24 else []
    assert not any(all(network.subnet_of(half) for network in networks) for half in halves)


def test_no_cover_spans_two_families():
    assert smallest_cover([VLAN, ipaddress.ip_network("fd93::/64")]) is None
