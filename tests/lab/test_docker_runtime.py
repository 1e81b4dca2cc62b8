"""The docker form of a job runs here: podman's docker-compatible command line trains two ranks in a local image.

launch.sh is started as srun would start it on a node; Slurm itself is left out.
"""

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from rackweave.provision.runtime import job_runtime, runtime_conf
from rackweave.run.files import NODE_SCRIPTS

from tests.support.attempts import losses, make_attempt, sizes, write_text

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]
ROOT = Path(__file__).resolve().parents[2]
PODMAN = "/run/rackweave-lab/podman"
EPILOG = ROOT / "roles/container_runtime/files/remove-job-containers"
JOB, HOST = "990042", "localhost"


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
        host=HOST,
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
    for name in NODE_SCRIPTS:
        shutil.copy(ROOT / "roles/training_job/files" / name, where / name)
    for name in ("nccl", "logs", "result", "phase", "placement"):
        (where / name).mkdir(exist_ok=True)
    (where / f"nccl/{HOST}.conf").write_text("NCCL_IB_DISABLE=1\nGLOO_SOCKET_IFNAME=lo\n")
    return where


def start(attempt):
    """Start the launcher of one node with what job.sbatch hands it."""
    environment = {
        **os.environ,
        "RACKWEAVE_PODMAN": PODMAN,
        "RACKWEAVE_DOCKER": str(ROOT / "molecule/resources/docker_on_podman"),
        "RACKWEAVE_ATTEMPT": str(attempt),
        "RACKWEAVE_RUN_DIR": str(attempt.parent),
        "RACKWEAVE_VENV": "/nonexistent",
        "RACKWEAVE_COMMAND": "python -m trainer --attempt {attempt}",
        "RACKWEAVE_STALL_S": "600",
        "RACKWEAVE_RESTART": "0",
        "SLURMD_NODENAME": HOST,
        "SLURM_JOB_ID": JOB,
        "NCCL_NVLS_ENABLE": "0",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'plugins/module_utils'}",
    }
    return subprocess.Popen(
        ["bash", attempt / "launch.sh"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def log(attempt):
    return (attempt / f"logs/{HOST}/launch.log").read_text()


def wait_for_first_step(attempt, launcher, seconds=480):
    deadline = time.monotonic() + seconds
    while not ((attempt / "events.jsonl").exists() and '"step"' in (attempt / "events.jsonl").read_text()):
        assert launcher.poll() is None, launcher.communicate()[0][-1000:] + log(attempt)[-3000:]
        assert time.monotonic() < deadline, "no step within the time"
        time.sleep(0.5)


def test_two_ranks_train_in_a_container_and_what_this_machine_lacks_is_said(attempt):
    launcher = start(attempt)
    output = launcher.communicate(timeout=600)[0]
    assert launcher.returncode == 0, output[-1000:] + log(attempt)[-3000:]
    curve = losses(attempt)
    assert len(curve) == 10
    assert curve[-1] < curve[0] - 0.1
    assert "not possible here: --gpus all" in log(attempt)
    # The job's log hears from inside the container what reached the ranks there.
    assert "NCCL_NVLS_ENABLE=0 comes from job environment; nothing was planned for it" in output
    inside = json.loads((attempt / f"logs/{HOST}/inside.json").read_text())
    assert {it["name"]: it["value"] for it in inside["values"]}["GLOO_SOCKET_IFNAME"] == "lo"
    assert json.loads((attempt / f"logs/{HOST}/exit.json").read_text())["code"] == 0
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
    assert json.loads((attempt / f"logs/{HOST}/exit.json").read_text())["terminated"] is True
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
