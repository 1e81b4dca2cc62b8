"""The chain from NCCL's traffic class to a lossless queue: every broken link is named, with the port it is on."""

import pytest
from rackweave.fabric.rails import plan_rails
from rackweave.fabric.roce import DEFAULT_DSCP_TO_PRIORITY
from rackweave.fabric.roce_consistency import check_roce

from tests.support.documents import fabric, reference, with_nic, with_port, with_roce

MOVED = tuple(5 if dscp == 26 else priority for dscp, priority in enumerate(DEFAULT_DSCP_TO_PRIORITY))


def check(document, traffic_class=106, **changes):
    block = fabric(**changes)
    return check_roce(document, plan_rails(document, block), block, traffic_class)


def test_the_reference_node_is_consistent():
    assert check(reference()) == ()


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"trust": "pcp"}, "roce-trust", "trusts pcp, not dscp"),
        ({"pfc_priorities": (4,)}, "roce-pfc", "PFC is 0,0,0,0,1,0,0,0, the fabric has 0,0,0,1,0,0,0,0"),
        ({"pfc_priorities": ()}, "roce-traffic-class", "rides on priority 3, but PFC is on for none"),
        ({"pfc_priorities": (3, 4)}, "roce-pfc", "PFC is 0,0,0,1,1,0,0,0"),
        ({"dscp_to_priority": MOVED}, "roce-dscp-map", "DSCP 26: priority 5, not 3"),
        ({"dscp_to_priority": MOVED}, "roce-traffic-class", "rides on priority 5"),
        ({"ecn_priorities": (0,)}, "roce-ecn", "not for 3"),
        ({"cnp_dscp": 26}, "roce-cnp", "DSCP 26, not 48"),
        ({"cma_tos": 0}, "roce-tos", "rdma_cm marks with ToS 0, NCCL with 106"),
        ({"traffic_class": 96}, "roce-traffic-class", "forces traffic class 96"),
        ({"trust": None}, "roce-unknown", "trust mode could not be read"),
        ({"pfc_priorities": None}, "roce-unknown", "PFC could not be read"),
    ],
)
def test_a_broken_link_is_named_with_its_port(change, kind, words):
    findings = check(with_roce(reference(), "mlx5_3", **change))

    assert any(it.kind == kind and words in it.message for it in findings)
    assert all("mlx5_3/1 (0000:4c:00.0, rail3)" in it.message for it in findings)


def test_a_traffic_class_off_the_lossless_priority_lists_those_that_fit():
    document = reference()
    for number in range(8):
        document = with_roce(document, f"mlx5_{number}", pfc_priorities=(5,))

    findings = [it for it in check(document) if it.kind == "roce-traffic-class"]

    assert len(findings) == 1, "one sentence for the node, not one for each of its ports"
    assert all(f"mlx5_{number}/1" in findings[0].message for number in range(8))
    assert "traffic classes that would fit: 160-191" in findings[0].message


def test_unmarked_traffic_is_named():
    assert any("unmarked" in it.message for it in check(reference(), traffic_class=None))


def test_settings_that_could_not_be_read_prove_nothing():
    (finding,) = check(with_nic(reference(), "mlx5_3", roce=None))

    assert finding.kind == "roce-unknown"


@pytest.mark.parametrize(
    ("change", "words"),
    [({"mtu": 1500}, "MTU is 1500, the fabric has 9000"), ({"active_mtu": 1024}, "active RDMA MTU is 1024, not 4096")],
)
def test_a_small_mtu_is_named(change, words):
    (finding,) = check(with_port(reference(), "mlx5_3", **change))

    assert finding.kind == "compute-nic-mtu"
    assert words in finding.message


def test_without_a_design_the_node_may_still_not_contradict_itself():
    bare = {"dscp": None, "ecn": None, "lossless_priority": None, "cnp_dscp": None, "cnp_priority": None}
    document = with_roce(reference(), "mlx5_0", pfc_priorities=(5,))

    findings = check(document, traffic_class=106, **bare)

    assert [it.kind for it in findings] == ["roce-traffic-class"]


def test_infiniband_has_no_such_chain():
    assert check(reference(), kind="infiniband", rail_subnets=None) == ()
