import dataclasses

import pytest
from rackweave.lab.host import HostMode, LabError
from rackweave.lab.nodes import LabNode, LabSite, container_name, lab_nodes, node_digest, run_arguments

HOSTS = {"ctl": "10.89.77.10", "gpu01": "10.89.77.21", "gpu02": "10.89.77.22"}
GPU_HOSTS = ["gpu01", "gpu02"]
SITE = LabSite("demo", "/srv/checkout", "demo", "localhost/node:1", ("/srv/shared:/mnt/shared",))
HYBRID = HostMode(True, False, 20000, 32768, True)


def nodes(**change):
    arguments = {
        "hosts": HOSTS,
        "gpu_hosts": GPU_HOSTS,
        "subnet": "10.89.77.0/24",
        "compute_count": 2,
        "gpus_per_node": 4,
    }
    return lab_nodes(**{**arguments, **change})


def test_the_inventory_names_are_started_and_only_gpu_hosts_get_gpus():
    assert [(node.name, node.simulated_gpus) for node in nodes()] == [("ctl", 0), ("gpu01", 4), ("gpu02", 4)]


def test_more_nodes_continue_name_padding_and_addresses():
    added = nodes(compute_count=12)[3:]
    assert [node.name for node in added[:2]] == ["gpu03", "gpu04"]
    assert (added[-1].name, added[-1].address) == ("gpu12", "10.89.77.32")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"compute_count": 1}, ("lab_node_compute_count=1", "2 GPU nodes")),
        ({"subnet": "10.89.77.0/33"}, ("10.89.77.0/33",)),
        ({"subnet": "10.0.0.0/24"}, ("ctl", "10.89.77.10", "10.0.0.0/24")),
        ({"hosts": {**HOSTS, "gpu02": "10.89.77.21"}}, ("gpu01", "gpu02", "10.89.77.21")),
        ({"hosts": {**HOSTS, "gpu02": "10.89.77.1"}}, ("10.89.77.1 ",)),
        ({"hosts": {**HOSTS, "gpu02": "gpu02.example"}}, ("gpu02.example",)),
        ({"hosts": {**HOSTS, "Bad_Name": "10.89.77.30"}}, ("Bad_Name",)),
        ({"hosts": {**HOSTS, "login": "10.89.77.23"}, "compute_count": 3}, ("gpu03", "10.89.77.23")),
        ({"gpus_per_node": 17}, ("17",)),
    ],
)
def test_a_lab_that_cannot_work_is_refused_with_its_quantities(change, words):
    with pytest.raises(LabError) as refusal:
        nodes(**change)
    assert all(word in str(refusal.value) for word in words)


def test_a_node_name_without_number_cannot_be_continued():
    with pytest.raises(LabError, match="must end in digits"):
        lab_nodes({"ctl": "10.0.0.2", "alpha": "10.0.0.3"}, ["alpha"], "10.0.0.0/24", 2, 1)


def test_a_node_is_started_with_its_address_and_one_device_for_each_gpu():
    arguments = run_arguments(SITE, LabNode("gpu01", "10.89.77.21", 2), HYBRID)
    assert arguments[arguments.index("--ip") + 1] == "10.89.77.21"
    assert [word for word in arguments if word.startswith("/dev/null:")] == [
        "/dev/null:/dev/nvidia0",
        "/dev/null:/dev/nvidia1",
    ]
    assert "--restart=always" in arguments
    assert arguments[-1] == SITE.image


def test_memlock_is_raised_only_where_the_host_may():
    node = LabNode("gpu01", "10.89.77.21", 0)
    assert "memlock=-1:-1" not in run_arguments(SITE, node, HYBRID)
    assert "memlock=-1:-1" in run_arguments(SITE, node, dataclasses.replace(HYBRID, raise_limits=True))


def test_a_node_is_privileged_only_where_that_is_asked_for():
    node = LabNode("gpu01", "10.89.77.21", 0)
    assert "--privileged" not in run_arguments(SITE, node, HYBRID)
    assert "--privileged" in run_arguments(dataclasses.replace(SITE, privileged=True), node, HYBRID)


@pytest.mark.parametrize(
    "other",
    [
        (dataclasses.replace(SITE, image="localhost/node:2"), LabNode("gpu01", "10.89.77.21", 2), HYBRID),
        (dataclasses.replace(SITE, privileged=True), LabNode("gpu01", "10.89.77.21", 2), HYBRID),
        (SITE, LabNode("gpu01", "10.89.77.21", 3), HYBRID),
        (SITE, LabNode("gpu01", "10.89.77.23", 2), HYBRID),
        (SITE, LabNode("gpu01", "10.89.77.21", 2), dataclasses.replace(HYBRID, nofile=1024)),
    ],
)
def test_another_shape_has_another_digest(other):
    assert node_digest(*other) != node_digest(SITE, LabNode("gpu01", "10.89.77.21", 2), HYBRID)


def test_two_labs_have_different_container_names():
    node = LabNode("gpu01", "10.89.77.21", 2)
    assert container_name(SITE, node) != container_name(dataclasses.replace(SITE, name="other"), node)
