"""The docker form of a job runs here: podman's docker-compatible command line trains two ranks in a local image."""

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from rackweave.provision.runtime import job_runtime, runtime_conf

from tests.support.attempts import losses, make_attempt, sizes, write_text

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]
ROOT = Path(__file__).resolve().parents[2]
PODMAN = "/run/rackweave-lab/podman"
EPILOG = ROOT / "roles/container_runtime/files/remove-job-containers"
JOB = "990042"


def podman(*arguments, **options):
    return subprocess.run([PODMAN, *arguments], capture_output=True, text=True, check=True, **options).stdout


def containers():
    return podman("ps", "--all", "--quiet", "--filter", f"name=rackweave-{JOB}").split()


@pytest.fixture(scope="module")
def image(lab):
    """An image of one's own, made from the node image: what a site would build from its training image."""
    base = podman("inspect", "rackweave-ctl", "--format", "{{.ImageName}}").strip()
    podman(
        "build", "--tag", "localhost/rackweave-job:1", "-", input=f"FROM {base}\nENV PATH=/mnt/shared/venv/bin:$PATH\n"
    )
    yield "localhost/rackweave-job:1"
    podman("rmi", "--force", "localhost/rackweave-job:1")


@pytest.fixture(scope="module")
def shared():
    directory = ROOT / ".state/lab/shared"
    work = directory / "docker-runtime"
    shutil.rmtree(work, ignore_errors=True)
    (work / "corpus").mkdir(parents=True)
    text = write_text(work / "text.txt")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'plugins/module_utils'}"}
    command = [ROOT / ".venv/bin/python", "-m", "trainer.data", "--input", text, "--output", work / "corpus"]
    subprocess.run(command, env=environment, check=True)
    yield directory
    shutil.rmtree(work, ignore_errors=True)


@pytest.fixture
def attempt(shared, image, request):
    where = make_attempt(
        shared / "docker-runtime" / request.node.name,
        shared / "docker-runtime/corpus",
        chosen=sizes(dp=2),
        host="trainer",
        steps=10 if "two_ranks" in request.node.name else 100000,
    )
    settings = {
        "kind": "docker",
        "image": image,
        "shared": str(shared),
        # The environment of the lab was made for this path; the checkout brings the trainer as it is now.
        "mounts": [
            {"source": str(shared), "target": "/mnt/shared"},
            {"source": str(ROOT), "target": str(ROOT), "read_only": True},
        ],
    }
    (where / "runtime.conf").write_text(runtime_conf(job_runtime(settings)))
    shutil.copy(ROOT / "roles/training_job/files/runtime.sh", where / "runtime.sh")
    (where / "nccl").mkdir()
    (where / "nccl/trainer.conf").write_text("GLOO_SOCKET_IFNAME=lo\n")
    return where


def start(attempt):
    torchrun = ["python3", "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "-m", "trainer"]
    script = f'. "{attempt}/runtime.sh"; runtime_exec "$@"'
    environment = {
        **os.environ,
        "RACKWEAVE_PODMAN": PODMAN,
        "RACKWEAVE_DOCKER": str(ROOT / "molecule/resources/docker_on_podman"),
        "RACKWEAVE_ATTEMPT": str(attempt),
        "RACKWEAVE_HOST": "trainer",
        "SLURMD_NODENAME": "trainer",
        "SLURM_JOB_ID": JOB,
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'plugins/module_utils'}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return subprocess.Popen(
        ["bash", "-c", script, "launch", *torchrun, "--attempt", str(attempt)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for_first_step(attempt, launcher, seconds=240):
    deadline = time.monotonic() + seconds
    while not ((attempt / "events.jsonl").exists() and '"step"' in (attempt / "events.jsonl").read_text()):
        assert launcher.poll() is None, launcher.communicate()[0][-3000:]
        assert time.monotonic() < deadline, "no step within the time"
        time.sleep(0.5)


def test_two_ranks_train_in_a_container_and_what_this_machine_lacks_is_said(attempt):
    launcher = start(attempt)
    output = launcher.communicate(timeout=600)[0]
    assert launcher.returncode == 0, output[-3000:]
    curve = losses(attempt)
    assert len(curve) == 10
    assert curve[-1] < curve[0] - 0.1
    assert "not possible here: --gpus all" in output
    placements = [json.loads(path.read_text()) for path in sorted((attempt / "placement").glob("*.json"))]
    assert [row["rank"] for row in placements] == [0, 1]
    assert "memlock=-1" in (attempt / "runtime.conf").read_text()
    assert containers() == []


def test_a_cancelled_job_leaves_no_container_and_no_rank(attempt):
    launcher = start(attempt)
    wait_for_first_step(attempt, launcher)
    launcher.terminate()
    launcher.wait(timeout=240)
    assert containers() == []
    processes = subprocess.run(
        ["pgrep", "-f", f"trainer --attempt {attempt}"], capture_output=True, text=True, check=False
    )
    assert processes.stdout == ""


def test_a_killed_launcher_leaves_a_container_that_the_epilog_removes(attempt):
    launcher = start(attempt)
    wait_for_first_step(attempt, launcher)
    launcher.kill()
    launcher.wait(timeout=120)
    assert len(containers()) == 1
    environment = {**os.environ, "RACKWEAVE_DOCKER": PODMAN, "SLURM_JOB_ID": JOB}
    subprocess.run([EPILOG], env=environment, check=True, timeout=120)
    assert containers() == []
