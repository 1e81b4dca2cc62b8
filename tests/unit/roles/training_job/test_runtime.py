"""runtime.sh with a recording stand-in for docker: a container is no child of its client, as with the real one."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from rackweave.provision import runtime

ROOT = Path(__file__).resolve().parents[4]
SCRIPT = ROOT / "roles/training_job/files/runtime.sh"
EPILOG = ROOT / "roles/container_runtime/files/remove-job-containers"
STAND_IN = r"""#!/bin/bash
# docker run|stop|rm|ps; each container is a process group of its own, named in $STATE/NAME.
printf '%s\n' "$*" >>"$STATE/log"
action=$1; shift
case "$action" in
  run)
    while [ $# -gt 0 ]; do
      case "$1" in
        --name) name=$2; shift 2 ;;
        --label|--gpus|--ulimit|--device|--cap-add|-v|--env|--user|--workdir) shift 2 ;;
        -*) shift ;;
        *) break ;;
      esac
    done
    shift
    # The name appears once the group is there, whole: whoever sees it may kill the container at once.
    setsid bash -c 'echo $$ >"$0/.part" && mv "$0/.part" "$0/$1" && shift && exec "$@"' "$STATE" "$name" "$@" &
    trap '' TERM
    wait $! ; code=$?
    while kill -0 $! 2>/dev/null; do wait $!; code=$?; done
    rm -f "$STATE/$name"
    exit $code ;;
  stop|rm)
    for word in "$@"; do name=$word; done
    [ -f "$STATE/$name" ] || exit 1
    kill -KILL -- "-$(cat "$STATE/$name")"; rm -f "$STATE/$name" ;;
  ps) ls "$STATE" | grep "^rackweave-" || true ;;
esac
"""


class Node:
    def __init__(self, directory, kind="docker", modules=()):
        self.attempt = directory / "attempt"
        self.state = directory / "state"
        for path in (self.attempt / "nccl", self.state):
            path.mkdir(parents=True)
        self.docker = directory / "docker"
        self.docker.write_text(STAND_IN)
        self.docker.chmod(0o755)
        (self.attempt / "runtime.sh").write_bytes(SCRIPT.read_bytes())
        spec = {"kind": kind, "image": "example.org/train:1", "shared": "/mnt/shared", "modules": list(modules)}
        (self.attempt / "runtime.conf").write_text(runtime.runtime_conf(runtime.job_runtime(spec)))
        (self.attempt / "nccl/gpu01.conf").write_text("NCCL_IB_HCA==mlx5_0:1\nUSER_CHOICE=a b\n")
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": "/root",
            "SECRET_TOKEN": "do not hand me in",
            "STATE": str(self.state),
            "RACKWEAVE_DOCKER": str(self.docker),
            "RACKWEAVE_ATTEMPT": str(self.attempt),
            "RACKWEAVE_HOST": "gpu01",
            "SLURM_JOB_ID": "42",
            "NCCL_IB_HCA": "=mlx5_0:1",
            "USER_CHOICE": "a b",
            "MASTER_ADDR": "gpu01",
        }

    def start(self, *command):
        script = f'. "{self.attempt}/runtime.sh"; runtime_exec "$@"'
        return subprocess.Popen(
            ["bash", "-c", script, "launch", *command],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def call(self, *arguments):
        command = ["bash", self.attempt / "runtime.sh", *arguments]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)

    @property
    def containers(self):
        return sorted(path.name for path in self.state.glob("rackweave-*"))

    @property
    def log(self):
        return (self.state / "log").read_text().splitlines()

    def run_line(self):
        return next(line for line in self.log if line.startswith("run "))


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


def wait_until(condition, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "condition did not become true"
        time.sleep(0.05)


def test_the_container_gets_the_planned_flags_the_jobs_name_and_the_numeric_user(node):
    assert node.start("true").wait(timeout=120) == 0
    line = node.run_line()
    assert "--name rackweave-42 --label rackweave.job=42" in line
    assert f"--user {os.getuid()}:{os.getgid()}" in line
    for words in ("--gpus all", "--ipc=host", "--network=host", "--ulimit memlock=-1", "-v /mnt/shared:/workspace"):
        assert words in line


def test_variables_of_the_job_go_in_by_name_and_others_stay_outside(node):
    node.start("true").wait(timeout=120)
    line = node.run_line()
    for name in ("NCCL_IB_HCA", "USER_CHOICE", "MASTER_ADDR", "SLURM_JOB_ID"):
        assert f"--env {name} " in line
    assert "SECRET_TOKEN" not in line
    assert "=mlx5_0:1" not in line
    assert "a b" not in line


@pytest.mark.parametrize("code", [0, 64, 75, 77])
def test_the_exit_status_of_the_job_comes_through(node, code):
    assert node.start("bash", "-c", f"exit {code}").wait(timeout=120) == code


def test_a_cancelled_job_leaves_no_container(node):
    launcher = node.start("sleep", "600")
    wait_until(lambda: node.containers == ["rackweave-42"])
    launcher.send_signal(signal.SIGTERM)
    launcher.wait(timeout=120)
    assert node.containers == []


def test_a_launcher_that_was_killed_outright_is_cleaned_up_by_the_epilog(node):
    launcher = node.start("sleep", "600")
    wait_until(lambda: node.containers == ["rackweave-42"])
    launcher.kill()
    launcher.wait(timeout=120)
    assert node.containers == ["rackweave-42"]
    subprocess.run([EPILOG], env=node.environment, check=True)
    assert node.containers == []


def test_the_epilog_never_fails_where_there_is_no_docker(node):
    environment = {**node.environment, "RACKWEAVE_DOCKER": "/nonexistent/docker"}
    assert subprocess.run([EPILOG], env=environment, check=False).returncode == 0


def test_the_sweep_removes_what_an_earlier_start_left(node):
    launcher = node.start("sleep", "600")
    wait_until(lambda: node.containers == ["rackweave-42"])
    launcher.kill()
    launcher.wait(timeout=120)
    assert node.call("sweep").returncode == 0
    assert node.containers == []


@pytest.mark.parametrize("what", ["ipc", "net"])
def test_a_namespace_that_was_not_inherited_is_refused_with_its_name(node, what):
    assert node.call("record").returncode == 0
    note = node.attempt / "runtime/gpu01.host"
    lines = [f"{what} {what}:[1]" if line.startswith(what) else line for line in note.read_text().splitlines()]
    note.write_text("\n".join(lines) + "\n")
    done = node.call("inside", "true")
    assert done.returncode == 64
    assert f"has {what} " in done.stderr


def test_p041_a_memlock_lower_than_the_nodes_is_refused_inside(node):
    node.call("record")
    note = node.attempt / "runtime/gpu01.host"
    note.write_text(note.read_text().replace("memlock", "memlock unlimited-but-not-here #", 1))
    done = node.call("inside", "true")
    assert "memlock" in done.stderr


def test_inside_what_was_inherited_the_command_runs(node):
    node.call("record")
    done = node.call("inside", "echo", "running")
    assert (done.returncode, done.stdout) == (0, "running\n")


def test_a_node_without_a_record_is_refused(node):
    assert node.call("inside", "true").returncode == 64


def test_pyxis_options_are_given_to_srun_one_a_line(tmp_path):
    options = Node(tmp_path, kind="pyxis").call("srun-options").stdout.splitlines()
    assert options[0] == "--container-image=example.org#train:1"


def test_a_virtual_environment_runs_the_command_itself(tmp_path):
    node = Node(tmp_path, kind="venv")
    assert node.start("bash", "-c", "exit 75").wait(timeout=120) == 75
    assert not (node.state / "log").exists()


@pytest.mark.parametrize("kind", ["docker", "pyxis"])
def test_an_image_that_lacks_a_module_is_refused_before_the_program_starts(tmp_path, kind):
    node = Node(tmp_path, kind, modules=["json", "no_such_module", "no_such_parent.core"])
    assert node.call("record").returncode == 0
    started = node.start("touch", str(tmp_path / "started"))
    _, errors = started.communicate(timeout=120)
    assert started.returncode == 64
    assert errors.splitlines()[-1].startswith(
        "rackweave: the image example.org/train:1 lacks no_such_module, no_such_parent.core: build"
    )
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize("kind", ["docker", "pyxis"])
def test_an_image_that_holds_all_modules_starts_the_program(tmp_path, kind):
    node = Node(tmp_path, kind, modules=["json", "xml.etree"])
    assert node.call("record").returncode == 0
    started = node.start("touch", str(tmp_path / "started"))
    _, errors = started.communicate(timeout=120)
    assert started.returncode == 0, errors
    assert (tmp_path / "started").exists()
