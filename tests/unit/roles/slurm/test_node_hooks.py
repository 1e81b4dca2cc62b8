"""The program that slurmd runs as prolog, epilog and health check: bounded in time, and careful with drains."""

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.programs import path_with

PROGRAM = Path(__file__).resolve().parents[4] / "roles/slurm/files/node_hooks.py"
NODE = "NodeName=gpu01 Arch=x86_64 State={state} ThreadsPerCore=1 {reason}OS=Linux"
SCONTROL = """#!/bin/sh
echo "$@" >> {log}
case "$*" in *show*) cat {node} ;; esac
"""


class Node:
    """A node of files: settings, hooks, GPUs, and recorded Slurm commands."""

    def __init__(self, root):
        self.root, self.log = root, root / "log"
        self.bin, self.hooks = root / "bin", root / "hooks"
        for directory in (
            self.bin,
            root / "dev",
            root / "metrics",
            *(self.hooks / f"{kind}.d" for kind in ("prolog", "epilog", "health")),
        ):
            directory.mkdir(parents=True)
        for name in ("slurm-prolog", "slurm-epilog", "slurm-health"):
            shutil.copy(PROGRAM, root / name)
        for index in range(2):
            (root / f"dev/nvidia{index}").touch()
        self.state()
        self.script(self.bin / "scontrol", SCONTROL.format(log=self.log, node=root / "node"))
        self.script(self.bin / "sinfo", f"#!/bin/sh\ncat {root}/sinfo\n")
        (root / "sinfo").write_text("gpu01|Unknown|none\n")
        self.settings()

    def settings(self, **changes):
        values = {
            "node": "gpu01", "gpu_files": [str(self.root / f"dev/nvidia{index}") for index in range(2)], "gpu_bdfs": [],
            "rdma_ports": {}, "modules": [], "memory_mib": 1, "driver": None, "drain_ok": True, "resume_ok": False,
            "directories": [str(self.root)], "skip": [], "metrics_file": str(self.root / "metrics/health.prom"),
        }  # fmt: skip
        (self.root / "settings.json").write_text(json.dumps({**values, **changes}))

    def state(self, state="IDLE", reason=""):
        (self.root / "node").write_text(NODE.format(state=state, reason=f"Reason={reason} [root@x] " if reason else ""))

    @staticmethod
    def script(path, text):
        path.write_text(text)
        path.chmod(0o755)

    def run(self, name, *arguments):
        environment = {
            "PATH": path_with(self.bin),
            "RACKWEAVE_NODE_SETTINGS": str(self.root / "settings.json"),
            "RACKWEAVE_HOOKS": str(self.hooks),
            "RACKWEAVE_HEALTH_STATUS": str(self.root / "health.json"),
            "RACKWEAVE_SYSFS": str(self.root / "sys"),
        }
        command = [sys.executable, str(self.root / name), *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
        assert not done.stderr, done.stderr
        return done.returncode

    @property
    def commands(self):
        return self.log.read_text().splitlines() if self.log.exists() else []

    @property
    def drains(self):
        return [line for line in self.commands if "state=drain" in line]

    @property
    def metrics(self):
        return (self.root / "metrics/health.prom").read_text().splitlines()

    @property
    def status(self):
        return json.loads((self.root / "health.json").read_text())

    def shorten(self, name="slurm-health", **limits):
        text = (self.root / name).read_text()
        for key, value in limits.items():
            text = text.replace("if __name__ ==", f"{key} = {value}\nif __name__ ==", 1)
        (self.root / name).write_text(text)


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


def test_a_sound_node_passes_every_check_and_asks_slurm_for_nothing(node):
    assert node.run("slurm-health") == 0
    assert {check["state"] for check in node.status["checks"].values()} == {"pass"}
    assert node.commands == []


def test_a_missing_gpu_drains_the_node_with_our_prefix(node):
    (node.root / "dev/nvidia1").unlink()
    assert node.run("slurm-health") == 1
    (drain,) = node.drains
    assert re.search(r"nodename=gpu01 state=drain reason=rackweave: health: gpus: .*nvidia1 is missing", drain)
    assert node.status["action"] == "drained"


def test_without_consent_it_is_reported_only(node):
    node.settings(drain_ok=False)
    (node.root / "dev/nvidia1").unlink()
    assert node.run("slurm-health") == 1
    assert node.commands == []
    assert "reported only" in node.status["action"]


@pytest.mark.parametrize(("state", "reason"), [("IDLE+DRAIN", "bad DIMM, do not use"), ("DOWN*", "Not responding")])
def test_the_reason_of_someone_else_is_never_replaced(node, state, reason):
    node.state(state, reason)
    (node.root / "dev/nvidia1").unlink()
    node.run("slurm-health")
    assert node.drains == []


@pytest.mark.parametrize(
    ("reason", "resume_ok", "resumed"),
    [
        ("rackweave: health: gpus: /dev/nvidia1 is missing", True, True),
        ("rackweave: health: gpus: /dev/nvidia1 is missing", False, False),
        ("rackweave: restart of slurmd", True, False),
        ("bad DIMM, do not use", True, False),
    ],
)
def test_only_an_own_drain_is_taken_back_and_only_with_consent(node, reason, resume_ok, resumed):
    node.state("IDLE+DRAIN", reason)
    node.settings(resume_ok=resume_ok)
    assert node.run("slurm-health") == 0
    assert any("state=resume" in line for line in node.commands) is resumed


@pytest.mark.parametrize(
    "reason",
    [
        "rackweave: health: driver: x",
        "rackweave: gpu.fallen_off_bus in attempt 12.0 of demo",
        "rackweave-rebuild: in work",
    ],
)
def test_a_fault_of_all_nodes_drains_one_and_no_more_whoever_drained_that_one(node, reason):
    now = time.strftime("%Y-%m-%dT%H:%M:%S")
    rows = [f"gpu{index:02d}|{now}|{reason}" for index in range(2, 3)]
    (node.root / "sinfo").write_text("\n".join(["gpu01|Unknown|none", *rows]) + "\n")
    (node.root / "dev/nvidia1").unlink()
    assert node.run("slurm-health") == 1
    assert node.drains == []
    assert "cap" in node.status["action"]
    assert "rackweave_node_drain_withheld 1" in node.metrics
    assert 'rackweave_node_check_failed{check="gpus"} 1' in node.metrics


def test_a_drain_that_was_made_or_not_due_is_none_that_was_withheld(node):
    assert node.run("slurm-health") == 0
    assert {"rackweave_node_drain_withheld 0", 'rackweave_node_check_failed{check="gpus"} 0'} <= set(node.metrics)
    (node.root / "dev/nvidia1").unlink()
    assert node.run("slurm-health") == 1
    assert node.status["action"] == "drained"
    assert {"rackweave_node_drain_withheld 0", 'rackweave_node_check_failed{check="gpus"} 1'} <= set(node.metrics)
    assert (node.root / "metrics/health.prom").stat().st_mode & 0o777 == 0o644
    shutil.rmtree(node.root / "metrics")
    assert node.run("slurm-health") == 1
    assert not (node.root / "metrics").exists()


def test_drains_of_yesterday_and_of_others_do_not_count(node):
    now = time.strftime("%Y-%m-%dT%H:%M:%S")
    rows = ["gpu02|2020-01-01T00:00:00|rackweave: health: x", f"gpu03|{now}|bad DIMM"]
    rows.append(f"gpu04|{now}|rackweave: restart of slurmd")
    (node.root / "sinfo").write_text("\n".join(["gpu01|Unknown|none", *rows]) + "\n")
    (node.root / "dev/nvidia1").unlink()
    node.run("slurm-health")
    assert len(node.drains) == 1


def test_a_check_of_the_site_fails_with_its_first_line_and_its_own_errors_never_drain(node):
    node.script(node.hooks / "health.d/disk", "#!/bin/sh\necho disk is full\nexit 1\n")
    node.script(node.hooks / "health.d/broken", "#!/bin/sh\nexit 3\n")
    node.run("slurm-health")
    assert "reason=rackweave: health: disk: disk is full" in node.drains[0]
    assert node.status["checks"]["broken"]["state"] == "error"
    node.log.unlink()
    (node.hooks / "health.d/disk").unlink()
    assert node.run("slurm-health") == 0
    assert node.drains == []


def test_a_check_that_hangs_is_left_behind_and_never_drains(node):
    # It ignores every signal it can, and a grandchild keeps its output open.
    node.script(node.hooks / "health.d/hangs", "#!/bin/sh\ntrap '' TERM\nsleep 240 & sleep 240\n")
    node.shorten(CHECK_LIMIT_S=2.0)
    start = time.monotonic()
    assert node.run("slurm-health") == 0
    assert time.monotonic() - start < 120
    assert node.status["checks"]["hangs"] == {"state": "error", "reason": "no answer within 2 s"}
    assert node.status["checks"]["gpus"]["state"] == "pass"


def test_a_slurm_that_does_not_answer_holds_nothing_up(node):
    node.script(node.bin / "scontrol", "#!/bin/sh\nsleep 240\n")
    node.shorten(CLIENT_LIMIT_S=1.0)
    (node.root / "dev/nvidia1").unlink()
    start = time.monotonic()
    assert node.run("slurm-health") == 1
    assert time.monotonic() - start < 120
    assert node.status["action"] == "Slurm does not answer; nothing was done"


def test_all_limits_together_stay_below_the_fifty_seconds_of_a_health_program():
    text = PROGRAM.read_text()
    checks, client, _ = map(float, re.search(r"^CHECK_LIMIT_S.* = ([\d.]+), ([\d.]+), ([\d.]+)$", text, re.M).groups())
    assert checks + 3 * client < 50


def smi(node, text, code=0):
    node.script(node.bin / "nvidia-smi", f"#!/bin/sh\ncat <<'E'\n{text}\nE\nexit {code}\n")
    node.settings(driver="550.54.15")


@pytest.mark.parametrize(
    ("text", "code", "state"),
    [
        ("00000000:18:00.0\n00000000:2A:00.0", 0, "pass"),
        ("00000000:18:00.0", 0, "fail"),
        ("Failed to initialize NVML: Driver/library version mismatch", 18, "fail"),
        ("No devices were found", 6, "fail"),
        ("nvidia-smi has failed because it couldn't communicate with something else", 9, "error"),
    ],
)
def test_what_nvidia_smi_says_of_the_gpus_counts_and_its_own_failure_does_not(node, text, code, state):
    smi(node, text, code)
    node.run("slurm-health")
    assert node.status["checks"]["driver"]["state"] == state
    assert bool(node.drains) is (state == "fail")


def test_gpus_rails_and_modules_of_measured_hardware_are_looked_for_on_the_bus(node):
    ports = node.root / "sys/bus/pci/devices/0000:19:00.0/infiniband/rocep25s0/ports/1"
    ports.mkdir(parents=True)
    (ports / "state").write_text("4: ACTIVE\n")
    node.settings(
        gpu_bdfs=["0000:18:00.0"], rdma_ports={"0000:19:00.0": [1], "0000:3b:00.0": [1]}, modules=["nvidia_peermem"]
    )
    node.run("slurm-health")
    reasons = {name: check["reason"] for name, check in node.status["checks"].items() if check["state"] == "fail"}
    assert reasons == {
        "gpus": "GPU 0000:18:00.0 is gone from the bus",
        "rdma": "RDMA 0000:3b:00.0 port 1 is not active",
        "modules": "kernel module nvidia_peermem is not loaded",
    }


def test_less_memory_than_slurm_was_told_fails_and_a_skipped_check_does_not(node):
    node.settings(memory_mib=10**9)
    assert node.run("slurm-health") == 1
    node.settings(memory_mib=10**9, skip=["memory"])
    assert node.run("slurm-health") == 0


def test_a_node_without_settings_is_not_judged(node):
    (node.root / "settings.json").write_text("{")
    assert node.run("slurm-health") == 0
    assert node.commands == []


@pytest.mark.parametrize("kind", ["prolog", "epilog"])
def test_every_executable_of_the_directory_runs_in_order_and_nothing_else(node, kind):
    directory = node.hooks / f"{kind}.d"
    for name in ("20-second", "10-first", "30-off", "40-backup~", ".hidden"):
        node.script(directory / name, f"#!/bin/sh\necho {name} $SLURM_JOB_ID >> {node.root}/ran\n")
    (directory / "30-off").chmod(0o644)
    assert node.run(f"slurm-{kind}") == 0
    assert (node.root / "ran").read_text().split() == ["10-first", "20-second"]
    assert node.commands == []


@pytest.mark.parametrize("kind", ["prolog", "epilog"])
def test_one_that_fails_fails_the_whole_and_one_that_hangs_does_not(node, kind):
    node.shorten(f"slurm-{kind}", HOOK_LIMIT_S=1.0)
    node.script(node.hooks / f"{kind}.d/10-hangs", "#!/bin/sh\nsleep 60\n")
    assert node.run(f"slurm-{kind}") == 0
    node.script(node.hooks / f"{kind}.d/05-fails", "#!/bin/sh\nexit 7\n")
    node.shorten(f"slurm-{kind}", HOOK_LIMIT_S=5.0)  # shared by both: enough for one to fail on a busy machine
    assert node.run(f"slurm-{kind}") == 1


def test_no_slurm_command_is_named_in_what_runs_as_prolog_or_epilog():
    text = PROGRAM.read_text()
    body = text[text.index("def hooks(") : text.index("def _texts(")]
    assert not re.search(r"client\(|scontrol|squeue|sinfo", body)


def test_the_start_of_slurmd_waits_for_the_gpus_but_not_for_ever(node):
    assert node.run("slurm-health", "wait", "5") == 0
    (node.root / "dev/nvidia1").unlink()
    start = time.monotonic()
    assert node.run("slurm-health", "wait", "1") == 1
    assert time.monotonic() - start < 60
