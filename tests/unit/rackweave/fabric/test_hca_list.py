"""NCCL's grammar of device lists, and the mistakes people make with it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rackweave.errors import FabricError
from rackweave.fabric.hca_list import HcaEntry, HcaList, check_devices, parse_hca_list

TWELVE = [f"mlx5_{number}" for number in range(12)]
names = st.from_regex(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,14}", fullmatch=True)
numbers = st.one_of(st.none(), st.integers(0, 64))


def entry(name, port, rail, plane):
    return HcaEntry(name, port, rail, plane)


entries = st.lists(
    st.builds(entry, names, numbers, numbers, numbers), min_size=1, max_size=32, unique_by=lambda it: (it.name, it.port)
)


@given(entries=entries, exact=st.booleans(), exclude=st.booleans())
def test_a_list_survives_a_round_trip(entries, exact, exclude):
    value = HcaList(tuple(entries), exact, exclude)

    assert parse_hca_list(value.text()) == value


def test_a_prefix_takes_its_neighbours_and_an_exact_name_does_not():
    assert [name for name in TWELVE if parse_hca_list("mlx5_1").selects(name)] == ["mlx5_1", "mlx5_10", "mlx5_11"]
    assert [name for name in TWELVE if parse_hca_list("=mlx5_1").selects(name)] == ["mlx5_1"]


def test_exclusion_keeps_the_others():
    kept = [name for name in TWELVE if parse_hca_list("^=mlx5_1,mlx5_2").selects(name)]

    assert kept == [name for name in TWELVE if name not in ("mlx5_1", "mlx5_2")]


def test_a_port_narrows_the_choice():
    value = parse_hca_list("=mlx5_0:2")

    assert value.selects("mlx5_0", 2)
    assert not value.selects("mlx5_0", 1)


def test_rail_and_plane_are_read():
    assert parse_hca_list("=mlx5_0:1:3:1").entries == (HcaEntry("mlx5_0", 1, 3, 1),)


def test_an_empty_value_takes_every_device():
    assert all(parse_hca_list("").selects(name) for name in TWELVE)


@pytest.mark.parametrize(
    ("text", "corrected"),
    [
        ("^=mlx5_8,^=mlx5_14", "^=mlx5_8,mlx5_14"),
        ("=^mlx5_8", "^=mlx5_8"),
        ("=mlx5_0,=mlx5_1", "=mlx5_0,mlx5_1"),
        ("mlx5_0,^mlx5_1", "^mlx5_0,mlx5_1"),
        ("==mlx5_0", "=mlx5_0"),
    ],
)
def test_marks_in_the_wrong_place_are_refused_with_the_form_that_was_meant(text, corrected):
    with pytest.raises(FabricError) as caught:
        parse_hca_list(text)

    assert repr(corrected) in str(caught.value)


@pytest.mark.parametrize(
    "text", ["=", "^", "=mlx5_0,", "=mlx5_0:", "=mlx5_0:x", "=mlx5_0:1:2:3:4", "= mlx5_0", "=mlx5_0 ,mlx5_1"]
)
def test_what_nccl_would_misread_is_refused(text):
    with pytest.raises(FabricError):
        parse_hca_list(text)


def test_a_name_cut_into_a_neighbour_is_found_as_a_double():
    with pytest.raises(FabricError, match="mlx5_1 twice"):
        parse_hca_list("=mlx5_0:1,mlx5_1:1,mlx5_1:1")


def test_a_name_that_no_device_has_is_refused():
    with pytest.raises(FabricError, match="the node has no mlx5_12"):
        check_devices(parse_hca_list("=mlx5_0,mlx5_12"), TWELVE)


def test_more_than_32_devices_are_refused():
    with pytest.raises(FabricError, match="33 devices"):
        parse_hca_list("=" + ",".join(f"mlx5_{number}" for number in range(33)))
