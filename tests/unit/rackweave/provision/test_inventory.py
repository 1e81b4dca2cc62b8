import pytest
from hypothesis import given
from hypothesis import strategies as st
from rackweave.errors import ProvisionError
from rackweave.provision import inventory


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gpu[01-03]", ["gpu01", "gpu02", "gpu03"]),
        ("gpu[1,3-4],login1", ["gpu1", "gpu3", "gpu4", "login1"]),
        ("a b\nc", ["a", "b", "c"]),
        ("r[1-2]n[08-10]", ["r1n08", "r1n09", "r1n10", "r2n08", "r2n09", "r2n10"]),
        ("gpu[099-101].example.org", ["gpu099.example.org", "gpu100.example.org", "gpu101.example.org"]),
        ("", []),
    ],
)
def test_host_lists_expand_with_their_padding(text, names):
    assert inventory.expand_hosts(text) == names


@pytest.mark.parametrize("text", ["gpu[01-03", "gpu01]", "gpu[3-1]", "gpu[a-b]", "gpu[]", "gpu_01;reboot", "-n1"])
def test_a_host_list_that_is_none_is_refused(text):
    with pytest.raises(ProvisionError):
        inventory.expand_hosts(text)


@pytest.mark.parametrize(
    "text", ["n[1-99999999]", "n[1-9999]r[1-9999]", ",".join(["n[1-60000]"] * 3), f"n[1-{'9' * 5000}]"]
)
def test_a_slip_of_a_finger_does_not_fill_the_memory(text):
    with pytest.raises(ProvisionError, match=r"more than 65536 hosts|9 digits"):
        inventory.expand_hosts(text)


def test_all_hosts_of_the_largest_cluster_are_told_apart():
    hosts = inventory.hosts_named(inventory.expand_hosts("n[1-65536]"))
    assert len(inventory.inventory(hosts, inventory.Host("ctl"))["all"]["children"]["gpu_nodes"]["hosts"]) == 65536


@given(st.text(max_size=30))
def test_no_text_makes_more_than_a_sentence_of_trouble(text):
    try:
        names = inventory.expand_hosts(text)
    except ProvisionError:
        return
    assert all(names)


SLURM = (
    "NodeName=gpu01 Arch=x86_64 Gres=gpu:h100:8 NodeAddr=10.0.0.11 NodeHostName=gpu01 State=IDLE\n"
    "NodeName=gpu02 Arch=x86_64 Gres=(null) NodeAddr=gpu02 NodeHostName=gpu02 State=DOWN*\n"
)


def test_a_live_slurm_gives_names_addresses_and_gpus():
    assert inventory.parse_slurm_nodes(SLURM) == [
        inventory.Host("gpu01", "10.0.0.11", "gpu:h100:8"),
        inventory.Host("gpu02"),
    ]


def test_an_empty_answer_is_no_cluster():
    with pytest.raises(ProvisionError, match="slurmctld"):
        inventory.parse_slurm_nodes("Unable to contact slurm controller\n")


def test_the_controller_is_the_first_one_configured():
    assert (
        inventory.parse_slurm_controller("SlurmctldHost[0]        = ctl1(10.0.0.1)\nSlurmctldHost[1] = ctl2\n")
        == "ctl1"
    )
    with pytest.raises(ProvisionError, match="SlurmctldHost"):
        inventory.parse_slurm_controller("ClusterName = x\n")


def test_an_existing_slurm_is_left_alone():
    made = inventory.inventory(inventory.parse_slurm_nodes(SLURM), inventory.Host("ctl1"), slurm_manage=False)
    assert made["all"]["vars"]["slurm_manage"] is False
    assert made["all"]["children"]["gpu_nodes"]["hosts"]["gpu01"] == {"ansible_host": "10.0.0.11"}


def test_a_host_named_twice_is_refused():
    with pytest.raises(ProvisionError, match="gpu1"):
        inventory.inventory(inventory.hosts_named(["gpu1", "gpu1"]), inventory.Host("ctl"))


def nodes(**gres):
    return [inventory.Host(name, None, text) for name, text in gres.items()]


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        (None, ()),
        ("gpu:8", (("", 8),)),
        ("gpu:h100:8(S:0-1)", (("h100", 8),)),
        ("gpu:h100:8(S:0,1),nvme:2", (("h100", 8),)),
        ("nic:8,gpu:4090:4", (("4090", 4),)),
        ("gpu:h100:0", ()),
        ("gpu:tesla", (("tesla", 1),)),
        ("shard:64", ()),
        ("gpu:v100:2,gpu:a100:2", (("a100", 2), ("v100", 2))),
    ],
)
def test_gres_says_which_gpus_a_node_has(gres, gpus):
    assert inventory.gpus_of(inventory.Host("n", None, gres)) == gpus


def test_of_a_live_slurm_the_nodes_with_gpus_train():
    cluster = nodes(cpu01=None, gpu01="gpu:h100:8", gpu02="gpu:h100:8(S:0-1)")
    assert [host.name for host in inventory.training_nodes(cluster)] == ["gpu01", "gpu02"]


def test_a_live_slurm_without_gpus_is_refused_unless_nodes_are_named():
    cluster = nodes(n1=None, n2=None)
    with pytest.raises(ProvisionError, match=r"none of the 2 nodes .*init_hosts"):
        inventory.training_nodes(cluster)
    assert inventory.training_nodes(cluster, ["n2"]) == [inventory.Host("n2")]


def test_nodes_of_two_kinds_are_refused_until_one_is_chosen():
    cluster = nodes(a1="gpu:a100:4", h1="gpu:h100:8", h2="gpu:h100:8")
    with pytest.raises(ProvisionError, match=r"a1: 4 a100; h1 and 1 more: 8 h100.*init_hosts"):
        inventory.training_nodes(cluster)
    assert [host.name for host in inventory.training_nodes(cluster, ["h1", "h2"])] == ["h1", "h2"]


def test_a_node_that_slurm_does_not_know_cannot_be_chosen():
    with pytest.raises(ProvisionError, match="gpu9 of init_hosts"):
        inventory.training_nodes(nodes(gpu1="gpu:8"), ["gpu9"])


@pytest.mark.parametrize(
    ("gres", "declared"),
    [
        ("gpu:h100:8", {"gpu": "H100", "gpus_per_host": 8}),
        ("gpu:nvidia_h100_80gb_hbm3:4", {"gpu": "H100", "gpus_per_host": 4}),
        ("gpu:4", {"gpus_per_host": 4}),
        ("gpu:ours:2", {"gpus_per_host": 2}),
        ("gpu:v100:2,gpu:a100:2", {}),
        (None, {}),
    ],
)
def test_gres_declares_the_hardware_as_far_as_it_tells(gres, declared):
    assert inventory.declared_gpus(nodes(n1=gres)) == declared
