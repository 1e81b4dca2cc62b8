"""A round of unattended operation as a real play, against recording stand-ins for Slurm's commands on PATH.

Rules: with the switches off no command that changes Slurm's state is issued, whatever broke; the cap on drains freezes
a storm.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from rackweave.run.batch import BatchSettings
from rackweave.run.files import compose_run_files

from tests.fixtures.slurm.stub import turn
from tests.support.programs import path_with

pytestmark = pytest.mark.multiprocess

ROOT = Path(__file__).parents[3]
CONTRACTS = ROOT / "tests" / "fixtures" / "contracts"
SCRIPTS = ROOT / "roles" / "training_job" / "files"
READING = {"squeue", "sacct", "sinfo"}
OOM = "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0. Some of the step tasks have been OOM Killed."
KILLED = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus."


def inventory(tmp_path, **switches):
    """Hosts that are all this machine, in a directory of their own."""
    variables = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "ansible_become": False,
        "rackweave_inventory": "stub",
        "rackweave_checkout": str(ROOT),
        "rackweave_state_dir": str(tmp_path / "state"),
        "training_job_run": "demo",
        "training_job_user": "nobody",
        "training_job_shared_dir": str(tmp_path / "shared"),
        "training_job_venv": "/venv",
        "training_job_submit_host": "ctl",
        "training_job_evidence_hosts": 0,
        "training_job_poll_interval_s": 0.1,
        **{f"training_job_{name}": False for name in ("stop_ok", "requeue_ok", "drain_ok")},
        **{f"training_job_{name}": value for name, value in switches.items()},
    }
    groups = {"slurm_controller": {"hosts": {"ctl": {}}}, "gpu_nodes": {"hosts": {"node-a": {}, "node-b": {}}}}
    path = tmp_path / "hosts.json"
    path.write_text(json.dumps({"all": {"vars": variables, "children": groups}}))
    return path


def failed_job(tmp_path, number, host, words=KILLED):
    """Leave what job `number` of the run left when a host failed it, and tell the stand-ins of it."""
    run = tmp_path / "shared" / "runs" / "demo"
    attempt = run / "attempts" / f"{number}.0"
    for name in (f"logs/{host}/0", "result", "phase"):
        (attempt / name).mkdir(parents=True)
    for name in ("plan.json", "train.json"):
        (attempt / name).write_text((CONTRACTS / name).read_text())
    started = json.loads((CONTRACTS / "attempt.json").read_text())
    (attempt / "attempt.json").write_text(json.dumps({**started, "started": f"2026-01-0{number}T10:00:00Z"}))
    (attempt / "logs" / host / "0" / "stderr.log").write_text(f"[2026-01-05 10:00:00] {host} kernel: {words}\n")
    end = {"schema": "rackweave.end/1", "code": 75, "reason": "x", "srun_code": 1, "requeued": False, "time": "t"}
    (attempt / "end.json").write_text(json.dumps(end))
    switches = {"stop_ok": False, "requeue_ok": False, "drain_ok": False}
    job = {"schema": "rackweave.job/1", "run": "demo", "job_id": str(number), "submitted": "t", "switches": switches}
    (run / "job.json").write_text(json.dumps(job))
    state = json.loads((tmp_path / "slurm.json").read_text()) if (tmp_path / "slurm.json").exists() else {}
    nodes = state.get("nodes") or {name: {"state": "IDLE", "reason": ""} for name in ("node-a", "node-b")}
    jobs = {str(number): {"name": "rackweave-demo", "state": "FAILED", "exit": "75:0"}}
    (tmp_path / "slurm.json").write_text(json.dumps({"jobs": jobs, "nodes": nodes, "calls": state.get("calls", [])}))


def play(tmp_path, hosts, *words, playbook="operate"):
    environment = {
        **os.environ,
        "STUB_SLURM": str(tmp_path / "slurm.json"),
        "PATH": path_with(ROOT / "tests/fixtures/slurm", Path(sys.executable).parent),
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_LOCAL_TEMP": str(tmp_path / "tmp"),
    }
    command = ["ansible-playbook", "-i", str(hosts), f"playbooks/{playbook}.yml", *words]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def changing(tmp_path):
    """Return the recorded commands that could change Slurm's state."""
    calls = json.loads((tmp_path / "slurm.json").read_text())["calls"]
    return [call for call in calls if call[0] not in READING and not (call[0] == "scontrol" and "show" in call)]


def journal(tmp_path):
    path = tmp_path / "state" / "recovery" / "journal.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("playbook", ["operate", "watch"])
def test_with_the_switches_off_no_command_that_changes_slurm_is_issued(tmp_path, playbook):
    failed_job(tmp_path, 1, "node-a")
    code, output = play(tmp_path, inventory(tmp_path), playbook=playbook)
    assert code == (0 if playbook == "operate" else 2), output
    assert changing(tmp_path) == []
    entry = journal(tmp_path)[0]
    assert (entry["action"], entry["wanted_drain"], entry["drain"]) == ("drain_and_requeue", ["node-a"], [])
    assert "not drained: node-a" in output


def test_a_storm_of_drains_is_frozen_by_the_cap(tmp_path):
    hosts = inventory(tmp_path, drain_ok=True, requeue_ok=True, stop_ok=True)
    failed_job(tmp_path, 1, "node-a")
    code, output = play(tmp_path, hosts)
    assert code == 0, output
    drained = ["scontrol", "update", "NodeName=node-a", "State=DRAIN"]
    assert [call[:4] for call in changing(tmp_path)] == [drained]
    assert changing(tmp_path)[0][4].startswith("Reason=rackweave: gpu.fallen_off_bus")
    failed_job(tmp_path, 2, "node-b")
    code, output = play(tmp_path, hosts)
    assert code == 0, output
    assert "FROZEN" in output
    assert len(changing(tmp_path)) == 1
    decisions = [entry for entry in journal(tmp_path) if entry["kind"] == "decision"]
    assert [entry["frozen"] for entry in decisions] == [False, True]


def test_a_drain_of_a_health_check_takes_the_room_under_the_watchers_cap(tmp_path):
    hosts = inventory(tmp_path, drain_ok=True, requeue_ok=True, stop_ok=True)
    failed_job(tmp_path, 1, "node-a")
    with turn(tmp_path / "slurm.json") as state:
        state["nodes"]["node-b"] = {"state": "IDLE+DRAIN", "reason": "rackweave: health: gpus: /dev/nvidia1 is missing"}
    code, output = play(tmp_path, hosts)
    assert code == 0, output
    assert "FROZEN" in output
    assert changing(tmp_path) == []


@pytest.fixture
def open_directory():
    """A directory that the user of jobs reaches too; pytest's own is the caller's alone."""
    path = Path(tempfile.mkdtemp(prefix="rackweave-operate-", dir="/tmp"))
    path.chmod(0o777)
    yield path
    shutil.rmtree(path)


def plan_of_demo(directory):
    """Leave the plan of the run on the controller, as plan.yml does."""
    scripts = {name: f"# {name}\n" for name in ("job_body.sh", *(path.name for path in SCRIPTS.glob("*.*")))}
    settings = BatchSettings("demo", str(directory / "shared/runs/demo"), "/venv", ("true",), 3600, 60, 60, True, 1, 2)
    layout, train = (json.loads((CONTRACTS / name).read_text()) for name in ("plan.json", "train.json"))
    plan = directory / "state" / "plan" / "demo"
    (plan / "nccl").mkdir(parents=True)
    for name, text in compose_run_files(layout, train, settings, scripts).items():
        (plan / name).write_text(text)
    for host in ("node-a", "node-b"):
        (plan / "nccl" / f"{host}.conf").write_text("GLOO_SOCKET_IFNAME=eth0\n")


def finish_job(directory, number):
    """Stand for a job that runs well to its end."""
    attempt = directory / "shared" / "runs" / "demo" / "attempts" / f"{number}.0"
    for name in ("logs", "result", "phase"):
        (attempt / name).mkdir(parents=True)
    (attempt / "train.json").write_text((CONTRACTS / "train.json").read_text())
    step = {"time": "2026-01-09T10:00:00+00:00", "kind": "step", "rank": 0, "step": 200, "loss": 2.0}
    (attempt / "events.jsonl").write_text(json.dumps(step) + "\n")
    end = {"schema": "rackweave.end/1", "code": 0, "reason": "", "srun_code": 0, "requeued": False, "time": "t"}
    (attempt / "end.json").write_text(json.dumps(end))
    with turn(directory / "slurm.json") as state:
        state["jobs"][str(number)]["state"] = "COMPLETED"


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="becomes the user of jobs")
def test_the_command_submits_a_failed_run_again_and_sees_it_end(open_directory):
    """Real command, runner and plays; Slurm and the job are stand-ins."""
    hosts = inventory(open_directory, drain_ok=False, requeue_ok=True, stop_ok=True)
    document = json.loads(hosts.read_text())
    del document["all"]["vars"]["ansible_become"]
    # The user of jobs may be unable to read this checkout: it gets the system's Python and copies of the stand-ins.
    document["all"]["vars"].update(ansible_become_method="su", ansible_become_flags="-s /bin/sh")
    document["all"]["vars"]["ansible_python_interpreter"] = "/usr/bin/python3"
    shutil.copytree(ROOT / "tests/fixtures/slurm", open_directory / "bin")
    hosts.write_text(json.dumps(document))
    failed_job(open_directory, 1, "node-a", OOM)
    plan_of_demo(open_directory)
    subprocess.run(["chmod", "-R", "a+rwX", str(open_directory)], check=True)
    environment = {
        **os.environ,
        "STUB_SLURM": str(open_directory / "slurm.json"),
        "PATH": f"{open_directory / 'bin'}:{os.environ['PATH']}",
        "ANSIBLE_PIPELINING": "1",
    }
    command = [sys.executable, "-m", "rackweave", "operate", "demo", "--inventory", str(hosts), "--verbose"]
    operation = subprocess.Popen(
        command, cwd=ROOT, env={**environment, "PYTHONPATH": str(ROOT / "plugins/module_utils")},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        wait_for_submission(open_directory, operation)
        finish_job(open_directory, 2)
        subprocess.run(["chmod", "-R", "a+rwX", str(open_directory / "shared")], check=False)
        output, _ = operation.communicate(timeout=300)
    finally:
        operation.kill()
    assert operation.returncode == 0, output
    kinds = [(entry["kind"], entry.get("action")) for entry in journal(open_directory) if entry["kind"] != "notify"]
    assert kinds == [("decision", "retry"), ("submit", None), ("end", None)]


def wait_for_submission(directory, operation):
    deadline = time.monotonic() + 240
    while "2" not in json.loads((directory / "slurm.json").read_text())["jobs"]:
        assert operation.poll() is None, operation.stdout.read()
        assert time.monotonic() < deadline, "nothing was submitted"
        time.sleep(0.5)
