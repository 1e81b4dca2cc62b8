"""Faults that every node has alike, which no comparison of nodes can see, and other cases of one node."""

from dataclasses import replace

import pytest
from rackweave.errors import FabricError
from rackweave.hardware.node import Gid

from tests.support.documents import environment, fabric, fleet, gids, judge, kinds, reference, with_nic, with_port

ALL = [f"hgx-0{number}" for number in (1, 2, 3)]


def found(verdict):
    return {(it.kind, it.message) for it in verdict.findings if it.host == ALL[0]}


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        ("gpu-memory", "memory_bytes", 40 << 30),
        ("gpu-nvlink", "nvlink_links", 17),
        ("gpu-ecc", "ecc_enabled", False),
        ("gpu-power-limit", "power_limit_w", 400),
        ("clock-limit", "max_sm_clock_mhz", 1200),
        ("gpu-model", "name", "NVIDIA H100 PCIe"),
    ],
)
def test_a_gpu_that_is_odd_in_the_same_way_on_every_node_is_named(kind, field, value):
    nodes = [replace(it, gpus=(replace(it.gpus[0], **{field: value}), *it.gpus[1:])) for it in fleet(3)]
    verdict = judge(nodes)
    assert {host for it, host in kinds(verdict) if it == kind} == set(ALL)
    assert any(it == kind and f"GPU 0 (0000:1a:00.0) has {value}" in text for it, text in found(verdict))


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("compute-nic-rate", {"rate_gbps": 200.0}),
        ("compute-nic-mtu", {"mtu": 1500}),
        ("compute-nic-mtu", {"active_mtu": 1024}),
    ],
)
def test_a_rail_that_is_odd_on_every_node_is_named(kind, changes):
    nodes = [with_port(it, "mlx5_2", **changes) for it in fleet(3)]
    verdict = judge(nodes, fabric=fabric(mtu=None, rdma_mtu=None))
    assert {host for it, host in kinds(verdict) if it == kind} == set(ALL)
    assert any("mlx5_2" in text for it, text in found(verdict) if it == kind)


def test_a_single_node_is_compared_with_itself():
    assert ("compute-nic-firmware", "hgx-01") in kinds(judge([with_nic(fleet(1)[0], "mlx5_2", firmware="28.1.1")]))


def test_an_odd_host_is_told_once_and_not_again_by_its_own_parts():
    nodes = fleet(3)
    nodes[1] = with_port(nodes[1], "mlx5_2", rate_gbps=200.0)
    rates = [it for it in judge(nodes).findings if it.kind == "compute-nic-rate"]
    assert len(rates) == 1


def test_two_ports_with_one_address_are_named():
    first, second = reference().nics[:2]
    document = with_port(reference(), second.device, gids=first.ports[0].gids)
    verdict = judge([document], fabric=fabric(rail_subnets=None, subnets=["198.51.100.0/24"]))
    assert any("mlx5_0/1 and mlx5_1/1 have the same address" in it.message for it in verdict.findings)


def test_a_card_in_the_subnet_of_another_rail_blocks():
    document = with_port(reference(), "mlx5_0", gids=gids("fe80::1", "::ffff:198.51.100.40"))
    moved = {"rail0": ("198.51.100.40/27",)}
    interfaces = [replace(it, addresses=moved.get(it.name, it.addresses)) for it in document.interfaces]
    document = replace(document, interfaces=tuple(interfaces))
    findings = environment(document).findings
    assert [it.kind for it in findings] == ["rail-subnet"]
    assert "both in 198.51.100.32/27" in findings[0].message


def test_settings_of_one_card_that_could_not_be_read_are_unknown_and_no_contradiction():
    nodes = fleet(3)
    nodes[1] = with_nic(nodes[1], "mlx5_2", roce=None)
    assert kinds(judge(nodes)) == {("roce-unknown", "hgx-02")}
    nodes[1] = replace(nodes[1], nics=tuple(replace(nic, roce=None) for nic in nodes[1].nics))
    assert kinds(judge(nodes)) == {("roce-unknown", "hgx-02")}


@pytest.mark.parametrize("form", ["{domain}:{rest}", "{rest}", "0000{domain}:{rest}"])
@pytest.mark.parametrize("case", [str.upper, str.lower])
def test_an_override_may_write_addresses_as_other_tools_print_them(form, case):
    used = [nic.bdf.split(":", 1) for nic in reference().nics[3::-1]]
    use = [case(form.format(domain=domain, rest=rest)) for domain, rest in used]
    chosen = environment(reference(), fabric=fabric(nics={"use": use}))
    assert chosen.variables["NCCL_IB_HCA"].startswith("=mlx5_")
    assert chosen.variables["NCCL_IB_HCA"].count(",") == 3


def test_an_address_of_another_domain_is_not_taken_for_the_same_card():
    with pytest.raises(FabricError, match=r"names 0001:1c:00\.0"):
        environment(reference(), fabric=fabric(nics={"use": ["0001:1c:00.0"]}))


@pytest.mark.parametrize(
    ("name", "value"), [("NCCL_IB_TIMEOUT", "32"), ("NCCL_IB_TIMEOUT", "0"), ("NCCL_IB_RETRY_CNT", "9"),
                        ("NCCL_IB_TC", "300"), ("NCCL_IB_SL", "-1"), ("NCCL_IB_QPS_PER_CONNECTION", "x")]
)  # fmt: skip
def test_a_number_outside_its_range_is_told(name, value):
    findings = environment(reference(), fabric=fabric(variables={name: value})).findings
    assert any(it.kind == "harmful-variable" and f"{name}={value}: it must be" in it.message for it in findings)


def test_a_row_of_an_unknown_version_is_called_unknown():
    rows = (Gid(0, "fe80::1", None), Gid(1, "::ffff:198.51.100.1", None))
    findings = environment(with_port(reference(), "mlx5_0", gids=rows)).findings
    assert any("unknown RoCE version" in it.message for it in findings)


def test_cards_whose_identity_was_copied_with_their_firmware_stay_cards_of_their_own():
    cloned = tuple(replace(nic, sys_image_guid="0000:5eff:fe00:0001") for nic in reference().nics)
    rails = environment(replace(reference(), nics=cloned)).rails.rails
    assert [rail.gpus for rail in rails] == [(gpu,) for gpu in range(8)]
