"""Arithmetic of traffic class, DSCP, ECN and priority, for every value that vendors publish."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rackweave.errors import FabricError
from rackweave.fabric.roce import (
    DEFAULT_DSCP_TO_PRIORITY,
    as_ranges,
    dscp_of,
    ecn_bits_of,
    pfc_bitmap,
    pfc_list,
    priority_of,
    traffic_class_of,
    traffic_classes_for,
)


@pytest.mark.parametrize(
    ("traffic_class", "dscp", "ecn_bits", "priority"),
    [
        pytest.param(106, 26, 2, 3, id="NVIDIA's default"),
        pytest.param(104, 26, 0, 3, id="the same without ECN bits"),
        pytest.param(96, 24, 0, 3, id="DSCP 24"),
        pytest.param(41, 10, 1, 1, id="one cloud"),
        pytest.param(52, 13, 0, 1, id="another cloud, data"),
        pytest.param(84, 21, 0, 2, id="another cloud, control messages"),
        pytest.param(136, 34, 0, 4, id="DSCP 34"),
        pytest.param(160, 40, 0, 5, id="DSCP 40"),
        pytest.param(186, 46, 2, 5, id="DSCP 46"),
    ],
)
def test_a_published_traffic_class_means_this(traffic_class, dscp, ecn_bits, priority):
    assert dscp_of(traffic_class) == dscp
    assert ecn_bits_of(traffic_class) == ecn_bits
    assert priority_of(traffic_class) == priority


def test_congestion_notifications_have_dscp_48_and_priority_6():
    assert priority_of(traffic_class_of(48, ecn=False)) == 6


def test_priority_follows_the_map_of_the_port_not_the_default():
    moved = list(DEFAULT_DSCP_TO_PRIORITY)
    moved[26] = 5

    assert priority_of(106, moved) == 5


def test_traffic_classes_of_priority_5_are_160_to_191():
    assert as_ranges(traffic_classes_for([5], DEFAULT_DSCP_TO_PRIORITY)) == "160-191"


def test_pfc_is_a_bitmap_and_a_list():
    assert pfc_bitmap([3]) == 8
    assert pfc_list([3]) == "0,0,0,1,0,0,0,0"
    assert pfc_bitmap([]) == 0


@given(dscp=st.integers(0, 63), ecn=st.booleans())
def test_a_traffic_class_gives_back_what_it_was_made_of(dscp, ecn):
    value = traffic_class_of(dscp, ecn)

    assert dscp_of(value) == dscp
    assert (ecn_bits_of(value) in (1, 2)) == ecn


@pytest.mark.parametrize("value", [-1, 256, 1.5, True, "106"])
def test_anything_but_a_byte_is_refused(value):
    with pytest.raises(FabricError, match="0 to 255"):
        dscp_of(value)
