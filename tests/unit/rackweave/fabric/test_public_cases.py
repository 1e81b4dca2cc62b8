"""Failures that operators of GPU clusters reported in public, re-invented with made-up nodes.

Each test states what must come out instead. Cases about parsers, tables and single values stand with their module.
"""

from dataclasses import replace

import pytest
from rackweave.cli.system import LocalSystem
from rackweave.fabric.block import read_fabric
from rackweave.fabric.environment import render_environment, render_environments
from rackweave.fabric.gate import judge_fleet
from rackweave.fabric.rails import plan_rails
from rackweave.fabric.request import EnvironmentRequest
from rackweave.hardware.collect import collect_node
from rackweave.hardware.difference import compare_documents
from rackweave.hardware.node import GpuDirect
from rackweave.slurm.hardware import node_shape

from tests.support.documents import environment, fabric, fleet, gids, judge, kinds, reference, with_nic, with_port
from tests.support.layouts import LAYOUTS
from tests.support.machines import build

LINK_LOCAL = "fe80::200:5eff:fe00:5301"


@pytest.fixture
def collect(tmp_path):
    def collected(name, host="gx01"):
        root = build(LAYOUTS[name]().machine, tmp_path / host)
        return collect_node(LocalSystem([str(root)]), host, "measured", None, None)

    return collected


def render(document, block, nccl="2.22.3"):
    return render_environment(document, EnvironmentRequest(fabric=read_fabric(block), nccl_version=nccl))


def with_tables(document, make):
    """Give every compute port the GID table that ``make`` returns for its rail and its own IPv4 address."""
    for number, nic in enumerate(document.nics):
        own = nic.ports[0].gids[2].gid
        document = with_port(document, nic.device, gids=make(number, own))
    interfaces = tuple(replace(it, addresses=()) if it.name.startswith("rail") else it for it in document.interfaces)
    return replace(document, interfaces=interfaces)


def test_a_node_with_one_card_more_is_named_with_the_address_of_the_card():
    nodes = fleet(8)
    spare = replace(
        nodes[7].nics[7], device="mlx5_8", bdf="0000:bd:00.0", sys_image_guid="0000:5eff:fe00:53ff", node_guid=None
    )
    nodes[7] = replace(nodes[7], nics=(*nodes[7].nics, spare))

    verdict = judge(nodes, fabric=fabric(rail_subnets=None))

    (finding,) = [it for it in verdict.findings if it.kind == "compute-nic-extra"]
    assert finding.host == "hgx-08"
    assert "0000:bd:00.0" in finding.message
    assert verdict.blocked


def test_equal_machines_numbered_differently_get_lists_of_their_own_and_equal_rails(collect):
    first, second = collect("l10-four-nics-node-a", "hgx-c01"), collect("l10-four-nics-node-b", "hgx-c02")
    request = EnvironmentRequest(fabric=read_fabric(LAYOUTS["l10-four-nics-node-a"]().fabric), nccl_version="2.22.3")

    made = render_environments([first, second], request)

    assert made["hgx-c01"].variables["NCCL_IB_HCA"] == "=mlx5_0:1,mlx5_3:1,mlx5_5:1,mlx5_8:1"
    assert made["hgx-c02"].variables["NCCL_IB_HCA"] == "=mlx5_0:1,mlx5_1:1,mlx5_4:1,mlx5_5:1"
    assert [rail.gpus for rail in made["hgx-c01"].rails.rails] == [rail.gpus for rail in made["hgx-c02"].rails.rails]
    assert "rail-map" not in {it.kind for it in judge_fleet([first, second], made, request).findings}


def test_the_port_in_the_fabrics_subnet_is_taken_whatever_it_is_called():
    addresses = ["::ffff:10.0.0.7", "::ffff:169.254.3.4", "::ffff:10.100.0.7", "::ffff:192.0.2.7"]
    nodes = []
    for host, order in (("hgx-01", [0, 1, 2, 3]), ("hgx-02", [2, 3, 0, 1])):
        base = replace(reference(hcas=4), host=host, gpus=(), interfaces=())
        for number, at in enumerate(order):
            base = with_port(base, f"mlx5_{number}", gids=gids(LINK_LOCAL, addresses[at]))
        nodes.append(base)
    block = fabric(rail_subnets=["10.100.0.0/16"])

    plans = [plan_rails(node, block) for node in nodes]

    assert [[member.device for member in plan.members] for plan in plans] == [["mlx5_2"], ["mlx5_0"]]
    reasons = {verdict.device: verdict.reason for verdict in plans[0].verdicts}
    assert "only link-local ones" in reasons["mlx5_1"]
    assert "10.0.0.7 is outside the fabric's subnets (10.100.0.0/16)" in reasons["mlx5_0"]


def test_dual_port_cards_on_isolated_rails_get_planes_or_a_warning(collect):
    document = collect("l04-dual-port-per-gpu")
    block = {**LAYOUTS["l04-dual-port-per-gpu"]().fabric, "rail_isolated": True}

    new, old = render(document, block, "2.30.7"), render(document, block, "2.22.3")

    assert new.variables["NCCL_IB_HCA"].startswith("=mlx5_0:1:0:0,mlx5_1:1:0:1,mlx5_3:1:1:0")
    assert old.variables["NCCL_IB_HCA"].startswith("=mlx5_0:1,mlx5_1:1,mlx5_3:1")
    assert "planes" in {finding.kind for finding in old.findings}
    assert old.variables["NCCL_CROSS_NIC"] == "0"


def test_storage_pairs_of_a_twelve_device_machine_are_left_out(collect):
    result = render(collect("l01-twelve-devices"), LAYOUTS["l01-twelve-devices"]().fabric)

    names = "mlx5_0:1,mlx5_3:1,mlx5_4:1,mlx5_5:1,mlx5_6:1,mlx5_9:1,mlx5_10:1,mlx5_11:1"
    assert result.variables["NCCL_IB_HCA"] == f"={names}"


def test_bonds_are_devices_and_a_far_one_is_noted_as_without_gpudirect(collect):
    result = render(collect("l06-roce-bonds"), LAYOUTS["l06-roce-bonds"]().fabric)

    assert result.variables["NCCL_IB_HCA"].split(",")[-1] == "mlx5_bond_8:1"
    assert "rail(s) 7 are farther than PXB" in dict(result.omitted)["NCCL_NET_GDR_LEVEL"]


def test_an_address_from_router_advertisements_moves_ipv4_to_row_5_and_is_followed():
    before = reference()
    after = with_tables(before, lambda rail, own: gids(LINK_LOCAL, f"2001:db8::{rail}", own))

    result = environment(after)

    assert {prediction.index for prediction in result.gids} == {5}
    assert result.findings == ()
    assert "NCCL_IB_GID_INDEX" not in result.variables
    assert "gid-moved" in {change.kind for change in compare_documents(before, after)}


def test_a_pinned_index_that_points_at_ipv6_now_blocks_with_the_table():
    after = with_tables(reference(), lambda rail, own: gids(LINK_LOCAL, f"2001:db8::{rail}", own))

    result = environment(after, fabric=fabric(gid_index=3))

    findings = [it for it in result.findings if it.kind == "gid"]
    assert len(findings) == 8
    assert "4: 198.51.100.1 v1; 5: 198.51.100.1 v2" in findings[0].message


def test_an_ipv6_fabric_of_another_vendor_gets_its_address_family():
    document = with_tables(reference(), lambda rail, own: gids(LINK_LOCAL, f"fd93::{rail + 1}"))
    renamed = tuple(replace(nic, device=f"bnxt_re_{number}") for number, nic in enumerate(document.nics))

    result = environment(replace(document, nics=renamed), fabric=fabric(rail_subnets=None, subnets=["fd93::/64"]))

    assert result.variables["NCCL_IB_ADDR_FAMILY"] == "AF_INET6"
    assert {prediction.index for prediction in result.gids} == {3}
    assert result.variables["NCCL_IB_HCA"].startswith("=bnxt_re_0:1,")
    assert result.findings == ()


def test_a_flap_that_left_an_empty_row_is_followed_and_kills_a_pinned_index():
    def flapped(rail, own):
        rows = gids(LINK_LOCAL, own)
        return (*rows[:3], replace(rows[3], index=5)) if rail == 3 else rows

    document = with_tables(reference(), flapped)
    free, pinned = environment(document, "2.28.9"), environment(document, "2.28.9", fabric=fabric(gid_index=3))

    assert [prediction.index for prediction in free.gids] == [3, 3, 3, 5, 3, 3, 3, 3]
    assert free.findings == ()
    assert any("row 3 is empty" in it.message for it in pinned.findings)


def test_base_and_vlan_addresses_get_the_range_of_the_fabric():
    def both(rail, own):
        return gids(LINK_LOCAL, f"::ffff:10.1.{rail}.5", LINK_LOCAL, f"::ffff:172.20.{rail}.5")

    block = fabric(rail_subnets=[f"172.20.{rail}.0/24" for rail in range(8)])
    result = environment(with_tables(reference(), both), fabric=block)

    assert result.variables["NCCL_IB_ADDR_RANGE"] == "172.20.0.0/21"
    assert {prediction.index for prediction in result.gids} == {7}
    assert result.findings == ()


def test_version_1_is_never_fallen_back_to():
    document = with_tables(reference(), lambda rail, own: gids(LINK_LOCAL, own)[:3])

    result = environment(document)

    assert all("RoCE v1" in (prediction.fault or "") for prediction in result.gids)
    assert "NCCL_IB_ROCE_VERSION_NUM" not in result.variables


def test_a_port_without_an_address_is_a_fault_with_the_table():
    result = environment(
        with_tables(reference(), lambda rail, own: gids(LINK_LOCAL, "::ffff:169.254.7.9")),
        fabric=fabric(rail_subnets=None),
    )

    assert all("made one up" in (prediction.fault or "") for prediction in result.gids)


def test_names_by_bus_instead_of_numbers_change_nothing_but_the_names():
    document = reference()
    renamed = tuple(replace(nic, device=f"rocep{int(nic.bdf[5:7], 16)}s0") for nic in document.nics)

    result = environment(replace(document, nics=renamed))

    assert result.variables["NCCL_IB_HCA"].startswith("=rocep28s0:1,rocep44s0:1,")
    assert len(result.rails.rails) == 8


def test_twelve_devices_are_in_the_order_of_their_numbers(collect):
    names = [nic.device for nic in collect("l01-twelve-devices").nics]

    assert names == [f"mlx5_{number}" for number in range(12)]


def test_a_peer_memory_module_that_was_not_loaded_again_blocks():
    nodes = fleet(3)
    nodes[1] = replace(nodes[1], gpudirect=GpuDirect(peermem=False, dmabuf=False))

    verdict = judge(nodes)

    assert ("gdr", "hgx-02") in kinds(verdict)
    assert verdict.blocked


def test_a_nccl_too_old_to_see_the_peer_memory_module_is_told():
    document = replace(reference(), gpudirect=GpuDirect(peermem=True, dmabuf=False))

    assert "peermem-unseen" in {finding.kind for finding in environment(document, "2.22.3").findings}
    assert environment(document, "2.28.9").findings == ()


def test_a_fabric_manager_of_the_same_branch_is_not_the_same_version():
    versions = replace(reference().versions, nvidia_driver="530.41.03", nvidia_userspace="530.41.03")
    nodes = [replace(node, versions=replace(versions, fabric_manager="530.30.02")) for node in fleet(2)]

    assert {kind for kind, _ in kinds(judge(nodes))} == {"fabric-manager"}


def test_a_node_without_nvswitch_needs_no_fabric_manager():
    versions = replace(reference().versions, fabric_manager=None)
    nodes = [replace(node, nvswitches=(), versions=versions) for node in fleet(2)]

    assert judge(nodes).findings == ()


def test_gres_cores_are_core_indexes_of_whole_sockets_not_thread_numbers(collect):
    shape = node_shape(collect("l06-roce-bonds"))

    cores = sorted({group.cores for group in shape.gpus})
    assert cores == ["0-55", "56-111"]


def test_gpus_in_other_pci_domains_have_cores_too(collect):
    document = collect("l08-four-gpus-in-many-domains")

    assert [gpu.bdf for gpu in document.gpus] == ["0008:01:00.0", "0009:01:00.0", "0018:01:00.0", "0019:01:00.0"]
    assert all(group.cores for group in node_shape(document).gpus)


def test_configured_memory_comes_from_slurmd_not_from_the_kernel(collect):
    document = collect("l06-roce-bonds")

    assert document.slurm.real_memory_mib == 2063751
    assert document.memory_total_bytes // 2**20 != 2063751


def test_a_declared_rdma_fabric_never_becomes_sockets_in_silence():
    bare = replace(reference(), nics=())

    result = environment(bare)

    assert result.variables.get("NCCL_IB_DISABLE") != "1"
    assert any(finding.kind == "no-rdma" and finding.severity == "block" for finding in result.findings)
    assert environment(reference()).variables["NCCL_NET"] == "IB"


def test_interfaces_named_differently_are_each_in_their_own_hosts_file():
    nodes = fleet(2)
    interfaces = tuple(replace(it, name="ens10f0") if it.name == "eno1" else it for it in nodes[1].interfaces)
    nodes[1] = replace(nodes[1], interfaces=interfaces)

    first, second = environment(nodes[0]), environment(nodes[1])

    assert first.variables["NCCL_SOCKET_IFNAME"] == "=eno1"
    assert second.variables["NCCL_SOCKET_IFNAME"] == "=ens10f0"


def test_a_topology_file_of_a_bigger_machine_is_not_set():
    document = reference()
    present = [gpu.bdf for gpu in document.gpus]
    file = {"path": "/opt/topology/machine.xml", "bus_ids": present}
    fitting = environment(document, fabric=fabric(topology_file=file))
    bigger = environment(document, fabric=fabric(topology_file={**file, "bus_ids": [*present, "0001:00:00.0"]}))

    assert fitting.variables["NCCL_TOPO_FILE"] == "/opt/topology/machine.xml"
    assert "NCCL_TOPO_FILE" not in bigger.variables
    assert "0001:00:00.0" in dict(bigger.omitted)["NCCL_TOPO_FILE"]


def test_a_plugin_on_some_nodes_only_is_named():
    nodes = fleet(4)
    for position in (0, 1, 2):
        nodes[position] = replace(nodes[position], nccl_plugins=("libnccl-net.so",))

    assert ("nccl-plugin", "hgx-04") in kinds(judge(nodes))


def test_a_card_in_the_wrong_slot_is_missed_where_it_belongs():
    document = reference()
    far = ("pci0000:c0", "0000:c0:01.0", "0000:c1:00.0")
    moved = with_nic(document, "mlx5_3", bdf="0000:c1:00.0", pcie_path=far, numa_node=1)

    plan = plan_rails(moved, fabric(rail_subnets=None))

    assert "compute-nic-count" in {finding.kind for finding in plan.findings}
    assert "nearest to no GPU" in {verdict.device: verdict.reason for verdict in plan.verdicts}["mlx5_3"]
