"""The gate: the odd node is named by majority, blocks by severity, and is waived only by name and date."""

import datetime
from dataclasses import replace

import pytest
from rackweave.errors import FabricError
from rackweave.fabric.environment import render_environments
from rackweave.fabric.findings import BLOCK, NOTE, SEVERITIES, WARN
from rackweave.fabric.fleet import COMPARISONS
from rackweave.fabric.gate import judge_fleet, read_waivers
from rackweave.hardware.node import GpuDirect

from tests.support.documents import fabric, fleet, judge, kinds, reference, request, with_nic, with_port, with_roce

TODAY = datetime.date(2027, 1, 15)


def changed(document, section, **values):
    return replace(document, **{section: replace(getattr(document, section), **values)})


def all_gpus(document, **values):
    return replace(document, gpus=tuple(replace(gpu, **values) for gpu in document.gpus))


def test_equal_nodes_pass():
    verdict = judge(fleet(4))

    assert verdict.findings == ()
    assert not verdict.blocked


DIFFERENCES = {
    "one GPU less": ("gpu-count", lambda it: replace(it, gpus=it.gpus[:7])),
    "another GPU": ("gpu-model", lambda it: all_gpus(it, name="NVIDIA H200")),
    "less GPU memory": ("gpu-memory", lambda it: all_gpus(it, memory_bytes=42 << 30)),
    "ECC off": ("gpu-ecc", lambda it: all_gpus(it, ecc_enabled=False)),
    "a lost NVLink": ("gpu-nvlink", lambda it: all_gpus(it, nvlink_links=17)),
    "a clock limit": ("clock-limit", lambda it: all_gpus(it, max_sm_clock_mhz=1410)),
    "a power limit": ("gpu-power-limit", lambda it: all_gpus(it, power_limit_w=500)),
    "one NIC excluded by its state": ("compute-nic-count", lambda it: with_port(it, "mlx5_5", state="DOWN")),
    "a slow link": ("compute-nic-rate", lambda it: with_port(it, "mlx5_5", rate_gbps=200.0)),
    "a small MTU": ("compute-nic-mtu", lambda it: with_port(it, "mlx5_5", mtu=1500)),
    "a small RDMA MTU": ("compute-nic-mtu", lambda it: with_port(it, "mlx5_5", active_mtu=1024)),
    "other firmware": ("compute-nic-firmware", lambda it: with_nic(it, "mlx5_5", firmware="28.36.1010")),
    "another card": ("compute-nic-model", lambda it: with_nic(it, "mlx5_5", board_id="MT_0000000999")),
    "another read request": ("max-read-request", lambda it: with_nic(it, "mlx5_5", max_read_request=512)),
    "another driver": ("nvidia-driver", lambda it: changed(it, "versions", nvidia_driver="550.90.07")),
    "a closed kernel module": ("nvidia-driver", lambda it: changed(it, "versions", nvidia_kernel_module="proprietary")),
    "another fabric manager": ("fabric-manager", lambda it: changed(it, "versions", fabric_manager="560.28.03")),
    "other libraries": ("nvidia-userspace", lambda it: changed(it, "versions", nvidia_userspace="565.57.01")),
    "another NCCL": ("nccl-version", lambda it: changed(it, "versions", nccl="2.20.5")),
    "another kernel": ("kernel", lambda it: changed(it, "versions", kernel="6.1.0-28-amd64")),
    "a plugin": ("nccl-plugin", lambda it: replace(it, nccl_plugins=("libnccl-net.so",))),
    "a small memlock": ("memlock", lambda it: changed(it, "limits", memlock_effective_bytes=8 << 20)),
    "a small configured memlock": ("memlock", lambda it: changed(it, "limits", memlock_configured_bytes=64 << 20)),
    "a small /dev/shm": ("shm", lambda it: changed(it, "limits", shm_bytes=64 << 20)),
    "a device that does not open": ("rdma-open", lambda it: changed(it, "limits", rdma_devices_opened=7)),
    "ACS on": ("acs", lambda it: changed(it, "pcie", acs_bridges=("0000:10:01.0",))),
    "IOMMU on": ("iommu", lambda it: changed(it, "pcie", iommu="on")),
    "no way to GPU memory": ("gdr", lambda it: replace(it, gpudirect=GpuDirect(False, False))),
    "trust lost at reboot": ("roce-trust", lambda it: with_roce(it, "mlx5_5", trust="pcp")),
    "PFC lost at reboot": ("roce-pfc", lambda it: with_roce(it, "mlx5_5", pfc_priorities=())),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_the_odd_node_is_named(name):
    kind, change = DIFFERENCES[name]
    nodes = fleet(5)
    nodes[2] = change(nodes[2])

    verdict = judge(nodes)

    assert (kind, "hgx-03") in kinds(verdict)
    assert {finding.host for finding in verdict.findings} == {"hgx-03"}
    assert verdict.blocked == any(finding.severity == BLOCK for finding in verdict.findings)


def test_a_cable_on_the_wrong_rail_is_named():
    nodes = fleet(4)
    ports = {nic.device: nic.ports[0].gids for nic in nodes[1].nics}
    nodes[1] = with_port(nodes[1], "mlx5_0", gids=ports["mlx5_1"])
    nodes[1] = with_port(nodes[1], "mlx5_1", gids=ports["mlx5_0"])
    interfaces = tuple(replace(it, addresses=()) if it.name.startswith("rail") else it for it in nodes[1].interfaces)
    nodes[1] = replace(nodes[1], interfaces=interfaces)

    assert ("rail-map", "hgx-02") in kinds(judge(nodes))


def swapped(document):
    """Return the node with the cables of its first two rails exchanged."""
    names = {"rail0": "rail1", "rail1": "rail0"}
    addresses = {it.name: it.addresses for it in document.interfaces}
    interfaces = tuple(replace(it, addresses=addresses[names.get(it.name, it.name)]) for it in document.interfaces)
    tables = {nic.device: nic.ports[0].gids for nic in document.nics}
    document = replace(document, interfaces=interfaces)
    document = with_port(document, "mlx5_0", gids=tables["mlx5_1"])
    return with_port(document, "mlx5_1", gids=tables["mlx5_0"])


def test_swapped_cables_are_found_without_declared_subnets():
    nodes = fleet(4)
    nodes[3] = swapped(nodes[3])

    verdict = judge(nodes, fabric=fabric(rail_subnets=None))

    (finding,) = verdict.findings
    assert (finding.kind, finding.host) == ("rail-subnet", "hgx-04")
    assert "rail 0: 198.51.100.32/27, rail 1: 198.51.100.0/27" in finding.message


def test_without_a_majority_the_message_says_so():
    nodes = fleet(2)
    nodes[1] = changed(nodes[1], "versions", kernel="6.1.0-28-amd64")

    (finding,) = judge(nodes).findings

    assert "no majority" in finding.message


def test_a_fault_of_every_node_is_found_too():
    nodes = [changed(node, "versions", fabric_manager="560.28.03") for node in fleet(3)]

    assert kinds(judge(nodes)) == {("fabric-manager", f"hgx-0{number}") for number in (1, 2, 3)}


def test_a_virtual_machine_keeps_its_acs():
    nodes = [
        changed(changed(it, "pcie", acs_bridges=("0000:10:01.0",)), "identity", virtualization="kvm") for it in fleet(2)
    ]

    assert "acs" not in {finding.kind for finding in judge(nodes).findings}


def test_one_host_twice_is_refused():
    documents = [*fleet(2), *fleet(1)]

    with pytest.raises(FabricError, match="more than one document of hgx-01"):
        judge_fleet(documents, {}, request())


def waived(waivers, today=TODAY):
    nodes = fleet(4)
    nodes[1] = with_port(nodes[1], "mlx5_5", rate_gbps=200.0)
    asked = request()
    return judge_fleet(nodes, render_environments(nodes, asked), asked, read_waivers(waivers), today)


WAIVER = {
    "kind": "compute-nic-rate",
    "host": "hgx-02",
    "by": "A. Operator",
    "until": "2027-01-31",
    "reason": "cable ordered",
}


def test_a_waiver_by_name_and_date_opens_the_gate_and_stays_visible():
    verdict = waived([WAIVER])

    assert not verdict.blocked
    assert verdict.as_dict()["waived"][0]["by"] == "A. Operator"


@pytest.mark.parametrize("change", [{"host": "hgx-03"}, {"kind": "compute-nic-mtu"}, {"until": "2027-01-14"}])
def test_a_waiver_of_something_else_or_past_its_date_does_not(change):
    verdict = waived([{**WAIVER, **change}])

    assert verdict.blocked
    assert verdict.blocked_hosts == ("hgx-02",)


def test_an_expired_waiver_is_reported():
    verdict = waived([{**WAIVER, "until": "2027-01-14"}])

    assert verdict.as_dict()["expired_waivers"] == ["compute-nic-rate on hgx-02, by A. Operator, expired 2027-01-14"]


def test_a_date_that_yaml_has_read_is_a_date():
    assert read_waivers([{**WAIVER, "until": datetime.date(2027, 1, 31)}])[0].until.year == 2027


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "everything"}, "kind='everything' is none of"),
        ({"by": None}, "by is missing"),
        ({"by": " "}, "must say who"),
        ({"until": "soon"}, "until='soon' is no date"),
        ({"until": None}, "until is missing"),
        ({"hosts": []}, r"unknown key\(s\) hosts"),
    ],
)
def test_a_careless_waiver_is_refused(change, message):
    with pytest.raises(FabricError, match=message):
        read_waivers([{**WAIVER, **change}])


def test_every_kind_of_finding_has_a_severity():
    assert set(SEVERITIES.values()) == {BLOCK, WARN, NOTE}
    assert {comparison.kind for comparison in COMPARISONS} <= set(SEVERITIES)


def test_a_missing_rail_is_reported_as_that_and_not_once_for_each_value_of_a_rail():
    documents = fleet(4)
    documents[2] = replace(documents[2], nics=documents[2].nics[:3] + documents[2].nics[4:])

    kinds = {finding.kind for finding in judge(documents).findings}

    assert kinds == {"compute-nic-count"}


def test_of_values_for_each_port_only_the_different_one_is_shown():
    documents = fleet(3)
    documents[1] = with_port(documents[1], "mlx5_2", mtu=1500)

    messages = [finding.message for finding in judge(documents, fabric=fabric(mtu=None)).findings]

    assert messages == ["MTU is 1500 (mlx5_2/1); 2 of 3 hosts (hgx-01, hgx-03) have 9000 there"]


def test_half_the_links_being_down_is_no_machine_of_half_the_rails():
    document = reference()
    for number in (0, 2, 4, 6):
        document = with_port(document, f"mlx5_{number}", state="DOWN")

    verdict = judge([document])

    assert verdict.blocked
    assert next(it.message for it in verdict.findings if it.kind == "compute-nic-link") == (
        f"mlx5_0 ({document.nics[0].bdf}), the NIC of GPU 0, is DOWN: cable or switch"
    )


def test_a_spare_card_of_another_kind_without_a_link_is_no_fault():
    spare = replace(
        reference().nics[0], device="mlx5_9", bdf="0000:1e:00.0", hca_type="MT4117", board_id="MT_1", serial=None
    )
    spare = replace(spare, node_guid=None, sys_image_guid=None, ports=(replace(spare.ports[0], state="DOWN", gids=()),))
    document = replace(reference(), nics=(*reference().nics, spare))

    assert not [it for it in judge([document]).findings if it.kind == "compute-nic-link"]


def test_a_different_dscp_map_is_shown_as_runs():
    documents = fleet(3)
    other = (0,) * 26 + (5,) + (0,) * 37
    for number in range(8):
        documents[0] = with_roce(documents[0], f"mlx5_{number}", dscp_to_priority=other)

    messages = [it.message for it in judge(documents).findings if it.kind == "roce-dscp-map"]

    assert any("DSCP map is 0-25:0 26-26:5 27-63:0" in message for message in messages)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("memory", lambda it: replace(it, memory_total_bytes=it.memory_total_bytes * 31 // 32)),
        ("cpu", lambda it: replace(it, cpu=replace(it.cpu, numa_nodes=it.cpu.numa_nodes * 4))),
        ("gpu-nvlink", lambda it: replace(it, nvswitches=it.nvswitches[:3])),
        ("virtualization", lambda it: replace(it, identity=replace(it.identity, virtualization="kvm"))),
        ("cuda", lambda it: replace(it, versions=replace(it.versions, cuda="11.8"))),
    ],
)
def test_a_lost_module_switch_or_setting_names_its_host(kind, change):
    nodes = fleet(4)
    nodes[1] = change(nodes[1])
    assert kinds(judge(nodes)) == {(kind, "hgx-02")}


def test_some_mebibytes_of_memory_are_no_difference():
    nodes = fleet(4)
    nodes[1] = replace(nodes[1], memory_total_bytes=nodes[1].memory_total_bytes - (64 << 20))
    assert judge(nodes).findings == ()
