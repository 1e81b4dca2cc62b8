import pytest
from hypothesis import given
from hypothesis import strategies as st
from rackweave.errors import RackweaveError
from rackweave.provision import qos

BLOCK = {
    "kind": "roce",
    "mtu": 9000,
    "dscp": 26,
    "ecn": True,
    "lossless_priority": 3,
    "cnp_dscp": 48,
    "cnp_priority": 6,
}


def test_the_service_gets_what_follows_from_the_block():
    roce = qos.qos_document(BLOCK, ["0000:0c:00.0"])["roce"]
    assert roce["traffic_class"] == roce["cma_tos"] == 106
    assert roce["pfc"] == [0, 0, 0, 1, 0, 0, 0, 0]
    assert roce["dscp_to_priority"] == {"26": 3, "48": 6}
    assert roce["ecn_priorities"] == [3]


@pytest.mark.parametrize("key", ["dscp", "lossless_priority", "ecn", "mtu"])
def test_a_block_that_leaves_out_what_a_lossless_port_needs_is_refused_by_name(key):
    block = {name: value for name, value in BLOCK.items() if name != key}
    with pytest.raises(RackweaveError, match=key):
        qos.qos_document(block, [])


def test_p033_a_dscp_of_another_priority_than_the_lossless_one_is_refused():
    with pytest.raises(RackweaveError, match="priority"):
        qos.qos_document({**BLOCK, "lossless_priority": 5}, [])


def test_trust_in_vlan_priorities_is_refused_for_routed_roce():
    with pytest.raises(RackweaveError, match="DSCP survives"):
        qos.qos_document({**BLOCK, "trust": "pcp"}, [])


def test_infiniband_and_an_empty_block_leave_ethernet_settings_out():
    assert qos.qos_document({"kind": "infiniband"}, ["0000:0c:00.0"])["roce"] is None
    assert qos.qos_document({}, [])["roce"] is None


def test_an_impossible_read_request_is_refused():
    with pytest.raises(RackweaveError, match="4097"):
        qos.qos_document(BLOCK, [], max_read_request_bytes=4097)


def row(bdf, **values):
    return {"bdf": bdf, "virtual_function": False, "default_route": False, "rate_gbps": 400, **values}


ROWS = [
    row("0000:0c:00.0"),
    row("0000:0d:00.0", virtual_function=True),
    row("0000:2a:00.0", default_route=True),
    row("0000:41:00.0", rate_gbps=25),
    row("0008:01:00.0"),
]


def test_virtual_functions_slow_ports_and_the_default_route_are_left_alone():
    assert qos.select_devices(ROWS, minimum_rate_gbps=100) == ["0000:0c:00.0", "0008:01:00.0"]


def test_named_devices_are_taken_as_they_are():
    assert qos.select_devices(ROWS, include=["0000:41:00.0"], minimum_rate_gbps=100) == ["0000:41:00.0"]


def test_p037_a_named_address_without_a_device_is_news_and_lists_what_is_there():
    with pytest.raises(RackweaveError, match=r"0000:61:00\.0.*0000:0c:00\.0"):
        qos.select_devices(ROWS, include=["0000:61:00.0"])


def test_p039_ten_or_more_devices_are_numbered_by_address_not_by_text():
    devices = [
        f"0000:{bus:02x}:00.0" for bus in (0x05, 0x10, 0x1A, 0x2B, 0x3C, 0x4D, 0x5E, 0x6F, 0x80, 0x91, 0xA2, 0xB3)
    ]
    names = qos.persistent_names(list(reversed(devices)), "rail")
    assert [names[bdf] for bdf in devices] == [f"rail{index}" for index in range(12)]


def test_p125_a_pci_domain_counts():
    assert qos.persistent_names(["0008:01:00.0", "0000:ff:00.0"], "rail") == {
        "0000:ff:00.0": "rail0",
        "0008:01:00.0": "rail1",
    }


def test_an_address_without_domain_is_refused():
    with pytest.raises(RackweaveError, match="with domain"):
        qos.persistent_names(["0c:00.0"], "rail")


@given(st.sets(st.integers(0, 2**16 - 1), max_size=20))
def test_names_are_unique_and_do_not_depend_on_the_order_given(numbers):
    devices = [f"{number >> 8:04x}:{number & 255:02x}:00.0" for number in numbers]
    names = qos.persistent_names(devices, "rail")
    assert len(set(names.values())) == len(devices)
    assert names == qos.persistent_names(devices[::-1], "rail")
