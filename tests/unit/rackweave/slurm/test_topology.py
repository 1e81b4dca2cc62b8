import re
from dataclasses import replace

import pytest
import yaml
from rackweave.hardware.node import Interface, Nic, NodeDocument, Port
from rackweave.slurm.munge import SlurmError
from rackweave.slurm.topology import (
    rdma_networks,
    read_topology,
    topology_files,
    topology_from_networks,
    topology_plugin,
)

HOSTS = tuple(f"gpu{number:02d}" for number in range(1, 9))
TREE = {
    "leaf1": {"nodes": "gpu[01-04]"},
    "leaf2": {"nodes": ["gpu05", "gpu[06-08]"]},
    "spine": {"switches": ["leaf1", "leaf2"]},
}


def document(host, *networks):
    return NodeDocument(
        host,
        "measured",
        nics=tuple(Nic(f"mlx5_{index}", ports=(Port(1, netdev=f"rail{index}"),)) for index, _ in enumerate(networks)),
        interfaces=(
            *(Interface(f"rail{index}", addresses=(address,)) for index, address in enumerate(networks)),
            Interface("eno1", addresses=("192.0.2.7/24",)),
        ),
    )


@pytest.mark.parametrize("version", [(22, 5), (24, 11), None])
def test_before_25_05_and_where_it_is_unknown_the_tree_is_a_topology_conf(version):
    topology = read_topology(TREE, HOSTS)
    files = topology_files(topology, version)
    assert files["topology.conf"].splitlines() == [
        "SwitchName=leaf1 Nodes=gpu[01-04]",
        "SwitchName=leaf2 Nodes=gpu[05-08]",
        "SwitchName=spine Switches=leaf[1-2]",
    ]
    assert files["topology.yaml"] == ""
    assert topology_plugin(topology, version) == "topology/tree"


def test_from_25_05_on_the_tree_is_a_topology_yaml_and_no_topology_conf():
    topology = read_topology(TREE, HOSTS)
    files = topology_files(topology, (25, 5))
    (entry,) = yaml.safe_load(files["topology.yaml"])
    assert entry["cluster_default"] is True
    assert entry["tree"]["switches"] == [
        {"switch": "leaf1", "nodes": "gpu[01-04]"},
        {"switch": "leaf2", "nodes": "gpu[05-08]"},
        {"switch": "spine", "children": "leaf[1-2]"},
    ]
    assert files["topology.conf"] == ""
    assert topology_plugin(topology, (25, 5)) == ""


def test_blocks_have_sizes_and_need_23_11():
    blocks = {"b1": {"nodes": "gpu[01-04]"}, "b2": {"nodes": "gpu[05-08]"}}
    topology = read_topology(blocks, HOSTS, (4, 8))
    assert topology_files(topology, (23, 11))["topology.conf"].splitlines() == [
        "BlockName=b1 Nodes=gpu[01-04]",
        "BlockName=b2 Nodes=gpu[05-08]",
        "BlockSizes=4,8",
    ]
    (entry,) = yaml.safe_load(topology_files(topology, (25, 5))["topology.yaml"])
    assert entry["block"]["block_sizes"] == [4, 8]
    assert topology_plugin(topology, (23, 11)) == "topology/block"
    with pytest.raises(SlurmError, match=r"needs Slurm 23\.11; this is 22\.05"):
        topology_files(topology, (22, 5))


@pytest.mark.parametrize("sizes", [(4, 12), (4, 4, 6), (0,), (5,)])
def test_block_sizes_that_slurm_refuses_are_refused_here(sizes):
    with pytest.raises(SlurmError, match="block"):
        read_topology({"b1": {"nodes": "gpu[01-04]"}, "b2": {"nodes": "gpu[05-08]"}}, HOSTS, sizes)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"leaf2": {"nodes": "gpu[05-07]"}}, "leaves out gpu08"),
        ({"leaf2": {"nodes": "gpu[05-09]"}}, "names gpu09"),
        ({"leaf2": {"nodes": "gpu[04-08]"}}, "gpu04 hangs on more than one switch"),
        ({"spine": {"switches": ["leaf1", "leaf3"]}}, "leaf3 below a switch, but does not describe it"),
        ({"leaf2": {"nodes": "gpu[05-08]", "switches": "leaf1"}}, "either `nodes` or `switches`"),
        ({"leaf2": ["gpu05"]}, "either `nodes` or `switches`"),
        ({"leaf2": {"nodes": []}}, "must be a list of names"),
        ({"le af": {"nodes": "gpu08"}}, "cannot be a name"),
        ({"core": {"switches": ["leaf1"]}}, "below more than one switch"),
        ({"spine": {"switches": ["leaf1"]}}, "no switch above them"),
    ],
)
def test_what_would_keep_nodes_apart_or_end_slurmctld_is_named(change, said):
    with pytest.raises(SlurmError, match=re.escape(said)):
        read_topology({**TREE, **change}, HOSTS)


def test_switches_that_hang_in_a_circle_are_refused():
    circle = {"a": {"nodes": list(HOSTS)}, "b": {"switches": ["c"]}, "c": {"switches": ["b"]}}
    with pytest.raises(SlurmError, match="b, c hang in a circle"):
        read_topology(circle, HOSTS)


def test_nodes_in_the_same_rail_networks_hang_on_the_same_leafs():
    rails = {"gpu01": 0, "gpu02": 0, "gpu03": 4, "gpu04": 4}
    documents = [document(host, f"10.0.{base}.7/24", f"10.0.{base + 1}.7/24") for host, base in rails.items()]
    topology = topology_from_networks(tuple(rails), documents)
    assert topology_files(topology, (22, 5))["topology.conf"].splitlines() == [
        "SwitchName=net-10-0-0-0-24 Nodes=gpu[01-02]",
        "SwitchName=net-10-0-4-0-24 Nodes=gpu[03-04]",
        "SwitchName=fabric Switches=net-10-0-0-0-24,net-10-0-4-0-24",
    ]


def test_one_pod_has_nothing_to_tell_slurm():
    documents = [document(host, f"10.0.0.{number}/24") for number, host in enumerate(HOSTS, 1)]
    assert topology_from_networks(HOSTS, documents) is None


def test_overlapping_groups_and_nodes_without_a_fabric_are_not_guessed_at():
    mixed = [document("gpu01", "10.0.0.1/24", "10.0.1.1/24"), document("gpu02", "10.0.0.2/24", "10.0.2.2/24")]
    with pytest.raises(SlurmError, match="share some networks"):
        topology_from_networks(("gpu01", "gpu02"), mixed)
    with pytest.raises(SlurmError, match="gpu02 has no RDMA port"):
        topology_from_networks(("gpu01", "gpu02"), [mixed[0], replace(mixed[1], nics=())])


def test_management_and_link_local_addresses_are_no_rail():
    assert rdma_networks(document("gpu01", "169.254.3.4/16", "fe80::1/64", "10.1.0.9/16")) == ("10.1.0.0/16",)
