"""The fabric block: what is derived from it, and contradictions named in one sentence."""

import json
from pathlib import Path

import pytest
import yaml
from rackweave.errors import FabricError
from rackweave.fabric.block import read_fabric

from tests.support.documents import FABRICS, ROCE, fabric

ROOT = Path(__file__).parents[4]


def test_everything_else_is_derived():
    expected = fabric().expectations()

    assert expected["traffic_class"] == expected["rdma_cm_tos"] == 106
    assert expected["pfc"] == "0,0,0,1,0,0,0,0"
    assert expected["ecn_priorities"] == [3]
    assert expected["switch_mtu"] == 9216


@pytest.mark.parametrize("name", ["roce", "infiniband", "ethernet"])
def test_the_committed_examples_can_be_read(name):
    assert read_fabric(json.loads((FABRICS / f"{name}.json").read_text())).kind == name


def test_the_reference_inventory_describes_the_reference_fabric():
    inventory = yaml.safe_load((ROOT / "inventory/prod/group_vars/all/fabric.yml").read_text())

    assert read_fabric(inventory["rackweave_fabric"]) == fabric()


def test_a_traffic_class_stands_for_dscp_and_ecn():
    block = read_fabric({"kind": "roce", "traffic_class": 106, "lossless_priority": 3})

    assert (block.dscp, block.ecn) == (26, True)


@pytest.mark.parametrize("traffic_class", [106, 104, 96, 41, 52, 84, 136, 160, 186, 0, 1])
def test_a_traffic_class_that_was_given_comes_out_as_it_is(traffic_class):
    block = read_fabric({"kind": "roce", "traffic_class": traffic_class})

    assert block.traffic_class == traffic_class


def test_control_messages_keep_the_ecn_codepoint_that_was_given():
    assert read_fabric({"kind": "roce", "traffic_class": 41, "fifo_dscp": 21}).fifo_traffic_class == 85


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lossless_priority": 5}, "dscp=26 is mapped to priority 3.*40, 41, 42, 43, 44, 45, 46, 47"),
        ({"cnp_priority": 3, "cnp_dscp": 24}, "cnp_priority=3 is the lossless priority"),
        ({"cnp_priority": 7}, "cnp_dscp=48 is mapped to priority 6"),
        ({"mtu": 4100}, "mtu=4100 is too small for rdma_mtu=4096"),
        ({"traffic_class": 104}, "traffic_class=104 means dscp=26 and ecn=False"),
        ({"traffic_class": 107}, "marks every packet as congestion experienced.*106 is the same DSCP with ECN"),
        ({"dscp": 64}, "dscp=64 must be from 0 to 63"),
        ({"timeout": 32}, "timeout=32 must be from 1 to 31"),
        ({"queue_pairs": 0}, "queue_pairs=0 must be from 1 to 128"),
        ({"rdma_mtu": 9000}, "rdma_mtu=9000 must be 256"),
        ({"kind": "omnipath"}, "kind='omnipath' must be one of roce"),
        ({"colour": "blue"}, r"unknown key\(s\) colour"),
        ({"rail_subnets": ["198.51.100.1/27"]}, "has host bits set"),
        ({"rail_subnets": ["10.0.0.0/16", "10.0.1.0/24"]}, "rail_subnets 0 .* and 1 .* overlap"),
        ({"storage_subnets": ["198.51.100.0/24"]}, "storage_subnets .* overlaps the compute subnet"),
        ({"nics": {"only": []}}, r"nics has unknown key\(s\) only"),
        ({"hosts": {"trn01": {"nic": {}}}}, r"hosts: trn01 has unknown key\(s\) nic"),
        ({"variables": {"NCCL_IB_HCA": "=a,=b"}}, "'=a,b'"),
        ({"variables": {"NCCL_DEBUG": 1}}, "NCCL_DEBUG=1 must be text"),
        ({"dscp_to_priority": [0] * 8}, "list of 64"),
        ({"schema": "rackweave.fabric/9"}, "rackweave.fabric/9"),
    ],
)
def test_a_contradiction_is_named(changes, message):
    with pytest.raises(FabricError, match=message):
        read_fabric({**ROCE, **changes})


@pytest.mark.parametrize("junk", [None, [], "roce", {}])
def test_anything_but_a_fabric_block_is_refused(junk):
    with pytest.raises(FabricError):
        read_fabric(junk)
