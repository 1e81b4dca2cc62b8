import pytest
from rackweave.errors import ProvisionError
from rackweave.provision import engine


def test_p041_containers_started_by_hand_get_unlimited_memlock_too():
    assert engine.docker_daemon({}, gpus=False)["default-ulimits"]["memlock"] == {
        "Name": "memlock",
        "Hard": -1,
        "Soft": -1,
    }


def test_lowering_memlock_is_refused():
    options = {"default-ulimits": {"memlock": {"Name": "memlock", "Hard": 65536, "Soft": 65536}}}
    with pytest.raises(ProvisionError, match="memlock"):
        engine.docker_daemon(options, gpus=False)


def test_options_are_merged_over_ours_and_leave_the_rest():
    document = engine.docker_daemon({"data-root": "/scratch/docker", "runtimes": {"crun": {"path": "crun"}}}, gpus=True)
    assert document["data-root"] == "/scratch/docker"
    assert set(document["runtimes"]) == {"nvidia", "crun"}


def test_enroot_paths_are_per_user_and_foreign_settings_are_refused():
    assert "ENROOT_RUNTIME_PATH /run/enroot/user-$(id -u)" in engine.enroot_lines({})
    with pytest.raises(ProvisionError, match="RUNTIME_PATH"):
        engine.enroot_lines({"RUNTIME_PATH": "/tmp"})


NODE = {
    "shm_bytes": str(2**35),
    "memlock_kb": "unlimited",
    "uverbs": "8",
    "gpus": "8",
    "gpu_peers": "56/56",
    "ipc": "ipc:[1]",
    "net": "net:[2]",
}


def findings(**inside):
    return engine.probe_findings({**NODE, **inside}, NODE)


def test_a_container_like_its_node_has_no_findings():
    assert findings() == []


@pytest.mark.parametrize(
    ("inside", "word"),
    [
        ({"shm_bytes": str(64 * 2**20)}, "64 MiB"),
        ({"memlock_kb": "8192"}, "8192 kB"),
        ({"uverbs": "0"}, "0 RDMA devices"),
        ({"gpus": "7"}, "7 GPUs"),
        ({"gpu_peers": "42/56"}, "42/56 pairs inside, 56/56 on the node"),
        ({"gpu_peers": "failed: Failed to initialize NVML"}, "Failed to initialize NVML"),
        ({"ipc": "ipc:[9]"}, "IPC namespace"),
        ({"net": "net:[9]"}, "network namespace"),
    ],
)
def test_each_thing_a_container_lacks_is_named(inside, word):
    (finding,) = findings(**inside)
    assert word in finding


@pytest.mark.parametrize(
    ("inside", "node"),
    [
        ("56/56", "56/56"),
        ("24/56", "24/56"),
        ("not possible here: no nvidia-smi", "56/56"),
        ("not possible here: 0 GPUs", "not possible here: 0 GPUs"),
        ("failed: x", "failed: x"),
    ],
)
def test_peer_access_is_compared_with_what_the_node_itself_shows(inside, node):
    assert engine.probe_findings({**NODE, "gpu_peers": inside}, {**NODE, "gpu_peers": node}) == []


def test_a_probe_that_died_half_way_is_no_good_probe():
    with pytest.raises(ProvisionError, match="gpus"):
        engine.parse_probe("shm_bytes=1\nmemlock_kb=2\nuverbs=0\nipc=a\nnet=b\n")


@pytest.mark.parametrize("limits", [None, [], "unlimited", {"memlock": -1}, {"nofile": 1048576}])
def test_limits_that_docker_could_not_start_with_are_refused(limits):
    with pytest.raises(ProvisionError, match="default-ulimits must be a mapping"):
        engine.docker_daemon({"default-ulimits": limits}, gpus=False)
