"""What a rank finds inside its runtime, told by the launch scripts as shipped; runtimes are recording stand-ins."""

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest
from rackweave.provision.runtime import job_runtime, runtime_conf

pytestmark = pytest.mark.multiprocess

ROOT = Path(__file__).parents[4]
PACKAGE = str(ROOT / "plugins" / "module_utils")
SOCKETS = "NCCL_IB_DISABLE=1\nGLOO_SOCKET_IFNAME={}\n"
CONTAINER = {
    "image": "nvcr.io/nvidia/pytorch:24.08-py3",
    "shared": "/mnt/shared",
    "environment": {"WANDB_MODE": "x", "NCCL_ALGO": "Ring"},
}


@pytest.fixture
def ready(job):
    """A job whose runtime has the package, on nodes without RDMA and with different interfaces."""
    job.env["PYTHONPATH"] = PACKAGE
    for host, interface in (("node-a", "eth7"), ("node-b", "bond0")):
        (job.run_dir / "plan" / "nccl" / f"{host}.conf").write_text(SOCKETS.format(interface))
    return job


def inside(job, kind, **changes):
    settings = {"kind": kind, **CONTAINER, **changes}
    (job.run_dir / "plan" / "runtime.conf").write_text(runtime_conf(job_runtime(settings)))
    job.settings["environment"] = {"WANDB_MODE": "two words", "NCCL_ALGO": "Ring"}
    return job


def rank_log(job, host, rank):
    return (job.attempt / "logs" / host / str(rank) / "stdout.log").read_text()


def variables(job, host, rank):
    return json.loads(rank_log(job, host, rank).split("variables ", 1)[1].splitlines()[0])


def node_reasons(job):
    """Of the nodes that told how they ended: the first to fail ends the other, at times before that one has begun."""
    return [json.loads(path.read_text())["reason"] for path in job.attempt.glob("logs/*/exit.json")]


def docker_calls(job):
    return {call["host"]: call["words"] for call in map(json.loads, job.stub_lines("docker"))}


def test_what_the_job_brought_is_told_from_inside_a_rank_by_file_sentence_and_event(ready):
    ready.env |= {"NCCL_NVLS_ENABLE": "0", "GLOO_SOCKET_IFNAME": "docker0"}
    code, output = ready.run()
    assert code == 0, output
    told = "NCCL_NVLS_ENABLE=0 comes from job environment; nothing was planned for it"
    for host in ("node-a", "node-b"):
        report = ready.json(f"logs/{host}/inside.json")
        assert [it["message"] for it in report["findings"]] == [told]
    assert f"inside rank 0 on node-b: {told}" in rank_log(ready, "node-b", 0)
    assert f"inside rank 2 on node-a: {told}" in output
    (event,) = [json.loads(line) for line in (ready.attempt / "events.jsonl").read_text().splitlines()]
    assert (event["kind"], event["rank"], event["findings"]) == ("environment", 0, [told])
    values = {it["name"]: it for it in ready.json("logs/node-a/inside.json")["values"]}
    assert (values["GLOO_SOCKET_IFNAME"]["value"], values["GLOO_SOCKET_IFNAME"]["origin"]) == (
        "eth7",
        "the host's file",
    )


def test_where_all_arrived_only_the_ranks_own_log_says_so(ready):
    code, output = ready.run()
    assert code == 0
    assert "all 2 values of the host's file arrived" in rank_log(ready, "node-b", 0)
    assert "inside rank" not in output


def test_a_runtime_without_the_package_is_said_and_the_job_goes_on(ready):
    ready.env["PYTHONPATH"] = ""
    code, output = ready.run()
    assert code == 0
    assert "inside rank 0 on node-b: what arrived cannot be compared with the plan" in output
    assert ready.json("logs/node-a/inside.json")["possible"] is False


def test_a_fault_of_the_check_itself_does_not_keep_the_job_from_running(ready):
    (ready.run_dir / "plan" / "inside.py").write_text("raise OSError('disk full')\n")
    assert ready.run()[0] == 0
    assert "disk full" in (ready.attempt / "logs/node-b/0/stderr.log").read_text()


def test_planned_devices_that_are_not_there_end_the_job_unless_waived(ready):
    conf = ready.run_dir / "plan" / "nccl" / "node-a.conf"
    conf.write_text("NCCL_IB_HCA==mlx5_900:1\n")
    code, output = ready.run()
    assert code == 76, output
    assert "node-a: rank 2: 1 of 1 planned RDMA devices are not there: mlx5_900" in ready.json("end.json")["reason"]
    waiver = {"kind": "job-devices", "host": "node-a", "by": "A. Operator", "until": "2999-01-01", "reason": "test"}
    (ready.run_dir / "plan" / "waivers.json").write_text(json.dumps([waiver]))
    ready.env["SLURM_RESTART_COUNT"] = "1"
    assert ready.run()[0] == 0


def test_docker_gets_the_planned_words_on_every_node_and_ranks_their_own_hosts_values(ready):
    code, output = inside(ready, "docker").run()
    assert code == 0, output
    calls = docker_calls(ready)
    assert sorted(calls) == ["node-a", "node-b"]
    for words in calls.values():
        line = " ".join(words)
        assert line.startswith("--name rackweave-77 --label rackweave.job=77 --user ")
        for part in ("--gpus all", "--ipc=host", "--network=host", "--ulimit memlock=-1", "-v /mnt/shared:/workspace"):
            assert part in line
        assert "--env WANDB_MODE " in line
        assert "two words" not in line
        assert "SLURM_JOB_ID" in words
    assert variables(ready, "node-a", 2)["GLOO_SOCKET_IFNAME"] == "eth7"
    assert variables(ready, "node-b", 1)["GLOO_SOCKET_IFNAME"] == "bond0"


def test_no_program_of_the_systems_environment_is_in_a_containers_path(ready):
    venv = ready.run_dir / "venv" / "bin"
    venv.mkdir(parents=True)
    (venv / "torchrun").write_text("#!/bin/sh\nexit 99\n")
    (venv / "torchrun").chmod(0o755)
    assert inside(ready, "docker").run()[0] == 0


@pytest.mark.parametrize("kind", ["docker", "pyxis"])
def test_a_value_of_the_image_is_replaced_or_named_with_its_origin(ready, kind):
    image = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_NVLS_ENABLE": "0", "NCCL_ALGO": "Tree"}
    ready.env["STUB_IMAGE_ENV"] = json.dumps(image)
    code, output = inside(ready, kind).run()
    assert code == 0, output
    seen = variables(ready, "node-a", 3)
    assert (seen["GLOO_SOCKET_IFNAME"], seen["NCCL_NVLS_ENABLE"]) == ("eth7", "0")
    assert seen["NCCL_ALGO"] == "Ring"  # the job's own choice, handed in by name, wins over the image's
    messages = [it["message"] for it in ready.json("logs/node-a/inside.json")["findings"]]
    assert "NCCL_NVLS_ENABLE=0 comes from image; nothing was planned for it" in messages
    assert "NCCL_ALGO=Ring comes from job environment; nothing was planned for it" in messages
    assert "NCCL_NVLS_ENABLE=0 comes from the image" in output


@pytest.mark.parametrize("grace_s", ["20", "0"])
def test_a_cancelled_docker_job_leaves_no_container_and_no_rank(ready, grace_s):
    ready.env["RACKWEAVE_STOP_S"] = grace_s  # with none, the supervisor is gone before it wrote anything
    ready.env["STUB_RANKS"] = json.dumps({str(rank): "hang" for rank in range(4)})
    process = inside(ready, "docker").start()
    deadline = time.monotonic() + 120
    while len(list(ready.attempt.glob("phase/*.json"))) < 4:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    pids = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=True).stdout.split()
    assert list(ready.run_dir.glob("stub.log.*.containers/rackweave-77"))
    subprocess.run(["kill", f"-{signal.SIGTERM.value}", *pids], check=True)
    process.communicate(timeout=240)
    assert not list(ready.run_dir.glob("stub.log.*.containers/rackweave-77"))
    assert ready.lasting_survivors() == []
    ended = ready.json("logs/node-a/exit.json")
    assert ended["terminated"] is True, json.dumps(ended)


@pytest.mark.parametrize(("status", "code"), [("125", 76), ("127", 64), ("137", 75)])
def test_a_container_that_does_not_start_is_told_by_its_node(ready, status, code):
    ready.env["STUB_DOCKER_FAILS"] = status
    assert inside(ready, "docker").run()[0] == code
    told = f"ended with status {status} before its supervisor did: docker: no such image"
    assert any(told in reason for reason in node_reasons(ready))


def test_pyxis_options_go_to_the_one_srun_that_starts_the_launchers(ready):
    code, output = inside(ready, "pyxis").run()
    assert code == 0, output
    started = [json.loads(line) for line in ready.stub_lines("srun")]
    container = [words for words in started if any(word.startswith("--container-image") for word in words)]
    (words,) = container
    assert words[-1].endswith("/launch.sh")
    assert "--container-image=nvcr.io#nvidia/pytorch:24.08-py3" in words
    assert "--container-env=NCCL_ALGO,WANDB_MODE" in words
    assert started[0][-1] == "record"
    assert {path.name for path in (ready.attempt / "runtime").iterdir()} == {"node-a.host", "node-b.host"}


def test_a_pyxis_container_with_its_own_namespaces_is_refused_on_its_node(ready):
    script = ready.run_dir / "plan" / "runtime.sh"
    # Each node's record says another network namespace than the container shows.
    script.write_text(script.read_text().replace("runtime_record() {", "runtime_record() {\n  net=planted", 1).replace(
        '"$(readlink /proc/self/ns/net)"', '"${net:-$(readlink /proc/self/ns/net)}"', 1))  # fmt: skip
    code, output = inside(ready, "pyxis").run()
    assert code == 64, output
    assert "the pyxis container ended with status 64" in output
    assert any("it did not inherit the node's" in reason for reason in node_reasons(ready))
