import pytest
from rackweave.errors import ProvisionError
from rackweave.provision import runtime

IMAGE = "nvcr.io/nvidia/pytorch:24.08-py3"


def docker(**options):
    return runtime.job_runtime({"kind": "docker", "image": IMAGE, "shared": "/mnt/shared_pfs", **options})


def command(**options):
    settings = {"job_id": "42", "user": "2000:2000", "environment": ["NCCL_IB_HCA"], "command": ["torchrun", "x.py"]}
    return runtime.docker_command(docker(), **{**settings, **options})


def test_the_docker_command_has_the_flags_of_the_reference_deployment():
    line = " ".join(command())
    assert line.startswith("docker run ")
    for words in ("--gpus all", "--ipc=host", "--network=host", "--ulimit memlock=-1", "-v /mnt/shared_pfs:/workspace"):
        assert f" {words} " in line
    assert line.endswith(f"{IMAGE} torchrun x.py")


def test_the_container_is_named_and_labelled_by_job():
    words = command(job_id="4711")
    assert words[words.index("--name") + 1] == "rackweave-4711"
    assert "rackweave.job=4711" in words


def test_the_environment_is_passed_by_name_so_that_no_value_shows_in_a_process_list():
    words = command(environment=["NCCL_IB_HCA", "MASTER_ADDR"])
    assert words[words.index("--env") : words.index("--env") + 4] == ("--env", "MASTER_ADDR", "--env", "NCCL_IB_HCA")
    assert not any("=" in words[index + 1] for index, word in enumerate(words) if word == "--env")


def test_p043_memlock_stays_unlimited_whatever_this_machine_allows():
    options = runtime.docker_options(docker(gpus=False, rdma=False))
    assert options[options.index("--ulimit") + 1] == "memlock=-1"


def test_p049_rdma_devices_are_handed_in():
    assert "/dev/infiniband" in runtime.docker_options(docker())
    assert "/dev/infiniband" not in runtime.docker_options(docker(rdma=False))
    pyxis = runtime.job_runtime({"kind": "pyxis", "image": IMAGE, "shared": "/mnt/shared"})
    assert "/dev/infiniband:/dev/infiniband" in runtime.pyxis_options(pyxis)[1]


def test_p083_shared_memory_is_the_nodes():
    assert "--ipc=host" in runtime.docker_options(docker())


def test_the_shared_directory_is_seen_under_both_names_because_run_files_hold_absolute_paths():
    targets = [mount.target for mount in docker().all_mounts]
    assert targets == ["/workspace", "/mnt/shared_pfs"]
    assert [mount.target for mount in docker(shared="/workspace").all_mounts] == ["/workspace"]


@pytest.mark.parametrize("user", ["root", "", "2000", "hpc:hpc"])
def test_a_job_without_a_numeric_user_is_refused(user):
    with pytest.raises(ProvisionError, match="uid:gid"):
        command(user=user)


@pytest.mark.parametrize("job_id", ["", "x", "42;rm", "42 43"])
def test_a_name_that_is_no_job_is_refused(job_id):
    with pytest.raises(ProvisionError, match="job id"):
        command(job_id=job_id)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"kind": "podman"}, "none of venv, docker, pyxis"),
        ({"kind": "docker", "shared": "/s"}, "image reference"),
        ({"kind": "docker", "image": "--privileged", "shared": "/s"}, "image reference"),
        ({"kind": "docker", "image": IMAGE, "shared": "shared"}, "absolute path"),
        ({"kind": "docker", "image": IMAGE, "shared": "/s", "mounts": [{"source": "/a:b", "target": "/c"}]}, "colon"),
        ({"kind": "docker", "image": IMAGE, "shared": "/s", "mounts": [{"source": "/a"}]}, "target"),
        ({"kind": "venv", "imgae": IMAGE}, "unknown key imgae"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, complaint):
    with pytest.raises(ProvisionError, match=complaint):
        runtime.job_runtime(settings)


@pytest.mark.parametrize(
    ("image", "reference"),
    [
        (IMAGE, "nvcr.io#nvidia/pytorch:24.08-py3"),
        ("localhost:5000/train:1", "localhost:5000#train:1"),
        ("nvidia/cuda:12.6.0-base", "nvidia/cuda:12.6.0-base"),
        ("ubuntu", "ubuntu"),
        ("/images/train.sqsh", "/images/train.sqsh"),
    ],
)
def test_image_references_take_the_form_of_pyxis(image, reference):
    assert runtime.enroot_reference(image) == reference


def test_the_settings_file_quotes_what_a_shell_would_split(tmp_path):
    import subprocess

    spec = docker(extra_options=["--label", "a b'c"])
    path = tmp_path / "runtime.conf"
    path.write_text(runtime.runtime_conf(spec))
    script = f'. {path}; printf "%s\\n" "${{RACKWEAVE_RUNTIME_OPTIONS[@]}}"'
    read = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout.splitlines()
    assert tuple(read) == runtime.docker_options(spec)


def test_a_virtual_environment_has_no_container_options():
    text = runtime.runtime_conf(runtime.job_runtime({"kind": "venv"}))
    assert "RACKWEAVE_RUNTIME=venv" in text
    assert "RACKWEAVE_RUNTIME_OPTIONS=()" in text
    with pytest.raises(ProvisionError):
        runtime.pyxis_options(runtime.job_runtime({"kind": "venv"}))
