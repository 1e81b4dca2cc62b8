"""The environment of one node: which variables are set, which are left out, and why."""

from dataclasses import replace

import pytest
from rackweave.errors import FabricError
from rackweave.fabric.nccl_conf import parse_conf
from rackweave.fabric.request import EnvironmentRequest
from rackweave.fabric.variables import RULES, standing
from rackweave.hardware.node import Interface, NodeDocument

from tests.support.documents import environment, fabric, gids, reference, request, with_nic, with_port


@pytest.fixture
def document():
    return reference()


def omitted(result):
    return dict(result.omitted)


def test_the_reference_text_with_four_hcas_is_rendered_exactly():
    result = environment(reference(hcas=4))

    assert "NCCL_IB_HCA==mlx5_0:1,mlx5_1:1,mlx5_2:1,mlx5_3:1\n" in result.conf()
    assert result.variables["NCCL_IB_DISABLE"] == "0"


def test_eight_hcas_are_rendered_in_the_order_of_the_gpus(document):
    assert environment(document).variables["NCCL_IB_HCA"] == "=" + ",".join(f"mlx5_{number}:1" for number in range(8))


def test_the_file_read_by_nccl_is_the_environment(document):
    result = environment(document)

    assert parse_conf(result.conf()) == result.variables


def test_every_value_has_a_reason_and_a_source(document):
    asked = request()
    reasons = environment(document).reasons(asked)

    assert all(row["reason"] and row["source"] for row in reasons["variables"].values())
    assert all(reasons["omitted"].values())
    assert {row["role"] for row in reasons["devices"]} == {"compute"}
    assert reasons["gids"][0]["table"].startswith("0: fe80")


def test_traffic_class_follows_the_fabric_block(document):
    result = environment(document, fabric=fabric(dscp=46, lossless_priority=5, fifo_dscp=48))

    assert result.variables["NCCL_IB_TC"] == "186"
    assert result.variables["NCCL_IB_FIFO_TC"] == "194"


def test_control_messages_ride_with_the_data_where_the_fabric_says_nothing(document):
    assert environment(document).variables["NCCL_IB_FIFO_TC"] == "106"


def test_no_gid_index_is_pinned_for_a_nccl_that_searches(document):
    result = environment(document, "2.21.5")

    assert "NCCL_IB_GID_INDEX" not in result.variables
    assert "row 3" in omitted(result)["NCCL_IB_GID_INDEX"]


def test_an_older_nccl_gets_the_index_of_this_node(document):
    here = environment(document, "2.20.5")
    for number in range(8):
        port = document.nics[number].ports[0]
        moved = gids("fe80::1", f"2001:db8::{number}", port.gids[2].gid)
        document = with_port(document, f"mlx5_{number}", gids=moved)
    there = environment(document, "2.20.5")

    assert here.variables["NCCL_IB_GID_INDEX"] == "3"
    assert there.variables["NCCL_IB_GID_INDEX"] == "5"


def test_an_older_nccl_cannot_take_two_indexes(document):
    port = document.nics[4].ports[0]
    document = with_port(document, "mlx5_4", gids=gids("fe80::1", "2001:db8::7", port.gids[2].gid))

    result = environment(document, "2.20.5")

    (finding,) = [it for it in result.findings if it.kind == "gid"]
    assert "mlx5_4/1: 5" in finding.message
    assert "2.21" in finding.message


def test_the_transport_is_asked_for_by_name_where_no_plugin_is_loaded(document):
    assert environment(document).variables["NCCL_NET"] == "IB"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"image": True}, "unknown"),
        ({"image": True, "nccl_plugins": ("libnccl-net.so",)}, "libnccl-net.so is loaded"),
    ],
)
def test_the_plugin_of_an_image_is_not_bypassed(document, changes, words):
    result = environment(document, **changes)

    assert "NCCL_NET" not in result.variables
    assert words in omitted(result)["NCCL_NET"]


def test_a_plugin_on_the_host_is_not_bypassed(document):
    result = environment(replace(document, nccl_plugins=("libnccl-net-ofi.so",)))

    assert "libnccl-net-ofi.so" in omitted(result)["NCCL_NET"]


def test_an_image_without_plugin_gets_the_transport_by_name(document):
    assert environment(document, image=True, nccl_plugins=()).variables["NCCL_NET"] == "IB"


def test_rail_isolation_forbids_other_nics(document):
    assert environment(document, fabric=fabric(rail_isolated=True)).variables["NCCL_CROSS_NIC"] == "0"
    assert "NCCL_CROSS_NIC" not in environment(document).variables


def test_queue_pairs_spread_the_flows_of_a_roce_fabric_only(document):
    infiniband = replace(
        document,
        nics=tuple(
            replace(nic, roce=None, ports=tuple(replace(port, link_layer="InfiniBand") for port in nic.ports))
            for nic in document.nics
        ),
    )

    assert environment(document).variables["NCCL_IB_QPS_PER_CONNECTION"] == "4"
    result = environment(infiniband, fabric=fabric(kind="infiniband", service_level=3, rail_subnets=None))
    assert "NCCL_IB_QPS_PER_CONNECTION" not in result.variables
    assert "NCCL_IB_TC" not in result.variables
    assert result.variables["NCCL_IB_SL"] == "3"


def test_the_gdr_level_is_left_to_nccl_unless_measured(document):
    measured = fabric(gdr_level="PHB", gdr_level_reason="ib_write_bw 380 Gb/s at PHB")

    assert "NCCL_NET_GDR_LEVEL" not in environment(document).variables
    assert environment(document, fabric=measured).variables["NCCL_NET_GDR_LEVEL"] == "PHB"
    with pytest.raises(FabricError, match="gdr_level_reason"):
        fabric(gdr_level="PHB")


def test_acceptance_logs_which_transport_is_chosen_and_production_only_errors(document):
    accepted = environment(document, "2.30.7", profile="acceptance", log_directory="/mnt/shared/logs").variables

    assert accepted["NCCL_DEBUG"] == "INFO"
    assert accepted["NCCL_DEBUG_FILE"] == "/mnt/shared/logs/nccl.%h.%p.log"
    assert accepted["NCCL_IGNORE_NET_MISMATCH"] == "0"
    assert environment(document).variables["NCCL_DEBUG"] == "WARN"


def test_the_flight_recorder_is_set_under_both_names(document):
    result = environment(document, torch_version="2.5.0a0", log_directory="/mnt/shared/logs").variables

    assert result["TORCH_FR_BUFFER_SIZE"] == result["TORCH_NCCL_TRACE_BUFFER_SIZE"] == "20000"
    assert result["TORCH_FR_DUMP_TEMP_FILE"] == result["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"]
    assert result["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "3"
    assert "NCCL_ASYNC_ERROR_HANDLING" not in result


def test_an_old_pytorch_gets_the_old_name_too(document):
    assert environment(document, torch_version="2.1.2").variables["NCCL_ASYNC_ERROR_HANDLING"] == "1"


def test_the_heartbeat_outlives_the_collective_timeout(document):
    result = environment(document, collective_timeout_s=1800).variables

    assert int(result["TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"]) > 1800


def test_the_operator_wins_and_the_computed_value_stays_visible(document):
    block = fabric(variables={"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"})
    result = environment(document, fabric=block)

    assert result.variables["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "1"
    setting = next(it for it in result.settings if it.name == "TORCH_NCCL_ASYNC_ERROR_HANDLING")
    assert "computed: 3" in setting.reason
    assert setting.source == "fabric: variables"


@pytest.mark.parametrize(
    ("name", "value"),
    [("NCCL_IB_DISABLE", "1"), ("NCCL_NVLS_ENABLE", "0"), ("NCCL_IB_GID_INDEX", "3"), ("NCCL_P2P_DISABLE", "1")],
)
def test_a_harmful_value_of_the_operator_is_reported(document, name, value):
    result = environment(document, "2.28.9", fabric=fabric(variables={name: value}))

    assert "harmful-variable" in {finding.kind for finding in result.findings}


def test_an_operators_list_with_an_unknown_device_is_refused(document):
    with pytest.raises(FabricError, match="the node has no mlx5_12"):
        environment(document, fabric=fabric(variables={"NCCL_IB_HCA": "=mlx5_0,mlx5_12"}))


@pytest.mark.parametrize(
    ("name", "nccl", "expected"),
    [
        ("NCCL_IB_GID_INDEX", "2.20.5", "needed"),
        ("NCCL_IB_GID_INDEX", "2.21.5", "harmful"),
        ("NCCL_IB_ADDR_RANGE", "2.20.5", "unknown to this NCCL"),
        ("NCCL_IB_ADDR_RANGE", "2.22.3", "harmless"),
        ("NCCL_IB_FIFO_TC", "2.21.5", "unknown to this NCCL"),
        ("NCCL_IB_FIFO_TC", "2.22.3", "harmless"),
    ],
)
def test_versions_say_what_a_variable_does(name, nccl, expected):
    assert standing(name, nccl) == expected


@pytest.mark.parametrize("nccl", ["2.18.3", "2.20.5", "2.21.5", "2.22.3", "2.28.9", "2.30.7"])
def test_no_variable_is_set_that_this_nccl_ignores(document, nccl):
    for name in environment(document, nccl, profile="acceptance").variables:
        if name in RULES:
            assert standing(name, nccl) != "unknown to this NCCL", name


@pytest.mark.parametrize("nccl", [None, "", "latest"])
def test_an_rdma_fabric_needs_the_version_of_nccl(nccl):
    with pytest.raises(FabricError, match=r"nccl_version=.*2\.22\.3"):
        EnvironmentRequest(fabric=fabric(), nccl_version=nccl)


def test_an_unknown_profile_is_refused():
    with pytest.raises(FabricError, match="profile='fast'"):
        request(profile="fast")


ETHERNET = {"kind": "ethernet"}


def container(*interfaces):
    return NodeDocument(host="gpu01", origin="simulated", interfaces=interfaces)


def lab(*interfaces, **changes):
    from rackweave.fabric.block import read_fabric

    return environment(container(*interfaces), None, fabric=read_fabric({**ETHERNET, **changes}), profile="lab")


def test_the_lab_gets_its_interface_by_exact_name():
    result = lab(Interface("eth0", addresses=("10.89.77.21/24",), default_route=True))

    assert result.variables["GLOO_SOCKET_IFNAME"] == "eth0"
    assert result.variables["NCCL_SOCKET_IFNAME"] == "=eth0"
    assert result.variables["NCCL_IB_DISABLE"] == "1"
    assert result.findings == ()


def test_the_only_interface_with_an_address_is_taken():
    result = lab(Interface("eth0", addresses=("fe80::1/64",)), Interface("eth1", addresses=("10.0.0.1/24",)))

    assert result.variables["GLOO_SOCKET_IFNAME"] == "eth1"


def test_a_management_subnet_decides_between_interfaces():
    interfaces = [
        Interface("eth0", addresses=("10.0.0.1/24",), default_route=True),
        Interface("eth1", addresses=("10.1.0.1/24",)),
    ]

    assert lab(*interfaces, management_subnets=["10.1.0.0/24"]).variables["GLOO_SOCKET_IFNAME"] == "eth1"


def test_an_undecidable_interface_blocks_and_says_how_to_decide():
    interfaces = [Interface("eth0", addresses=("10.0.0.1/24",)), Interface("eth1", addresses=("10.1.0.1/24",))]

    (finding,) = lab(*interfaces).findings

    assert finding.kind == "socket-interface"
    assert "management_subnets" in finding.message
    assert "eth1 (10.1.0.1/24)" in finding.message


def test_the_operators_interface_must_exist():
    (finding,) = lab(Interface("eth0", addresses=("10.0.0.1/24",)), socket_interface="bond0").findings

    assert "bond0" in finding.message
    assert "has eth0" in finding.message


def test_one_host_may_have_another_interface_than_the_rest():
    result = lab(
        Interface("eth0", addresses=("10.0.0.1/24",)),
        Interface("eth9", addresses=("10.9.0.1/24",)),
        socket_interface="eth0",
        hosts={"gpu01": {"socket_interface": "eth9"}},
    )

    assert result.variables["GLOO_SOCKET_IFNAME"] == "eth9"


def test_a_fabric_without_a_single_rdma_device_blocks():
    bare = replace(reference(), nics=())

    assert "no-rdma" in {finding.kind for finding in environment(bare).findings}
    assert "NCCL_IB_HCA" not in environment(bare).variables


@pytest.mark.parametrize("version", ["22203", "2", "latest", "v2.22", ""])
def test_a_version_that_does_not_say_major_and_minor_is_refused(version):
    with pytest.raises(FabricError, match="name the NCCL that the job loads"):
        request(version)


def test_an_operators_list_that_selects_other_devices_than_the_evidence_is_reported():
    twelve = with_nic(reference(), "mlx5_7", device="mlx5_10")

    prefix = environment(twelve, fabric=fabric(variables={"NCCL_IB_HCA": "mlx5_1"})).findings
    same = environment(reference(), fabric=fabric(variables={"NCCL_IB_HCA": "=" + ",".join(
        f"mlx5_{number}" for number in range(8))})).findings  # fmt: skip

    assert [it.kind for it in prefix] == ["hca-list"]
    assert "leaves out mlx5_0" in prefix[0].message
    assert "without = a name is a prefix" in prefix[0].message
    assert "mlx5_10" not in prefix[0].message.split(";")[0]
    assert same == ()
