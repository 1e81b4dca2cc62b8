"""PCIe distance from paths: switches are counted, not bridges; domains and unknown NUMA nodes are kept apart."""

import pytest
from rackweave.fabric.distance import pcie_distance

from tests.support.machines import path

GPU = path("0000:15", "15:01.0", "16:00.0", "17:01.0", "1b:00.0")


@pytest.mark.parametrize(
    ("other", "distance"),
    [
        pytest.param(path("0000:15", "15:01.0", "16:00.0", "17:00.0", "18:00.0"), "PIX", id="ports of one switch"),
        pytest.param((*GPU[:-1], "0000:1b:00.1"), "PIX", id="functions of one card"),
        pytest.param(
            path("0000:15", "15:01.0", "16:00.0", "17:02.0", "19:00.0", "1a:00.0", "1c:00.0"),
            "PXB",
            id="one more switch",
        ),
        pytest.param(path("0000:15", "15:03.0", "1d:00.0"), "PHB", id="another root port"),
        pytest.param(path("0000:26", "26:01.0", "27:00.0"), "NODE", id="another host bridge of the NUMA node"),
        pytest.param(path("0001:15", "15:01.0", "16:00.0", "17:00.0", "18:00.0"), "NODE", id="another domain"),
    ],
)
def test_the_distance_is_this(other, distance):
    assert pcie_distance(GPU, other, (0, 0), 2) == distance
    assert pcie_distance(other, GPU, (0, 0), 2) == distance


def test_other_numa_nodes_are_across_the_system():
    assert pcie_distance(GPU, path("0000:97", "97:01.0", "9a:00.0"), (0, 1), 2) == "SYS"


def test_an_unknown_numa_node_is_not_node_0():
    other = path("0000:97", "97:01.0", "9a:00.0")

    assert pcie_distance(GPU, other, (0, None), 2) == "SYS"
    assert pcie_distance(GPU, other, (None, None), 1) == "NODE"


def test_a_device_without_a_path_has_no_distance():
    assert pcie_distance(GPU, (), (0, 0), 2) is None
