"""The module that runs the acceptance job, with stand-ins for Slurm's commands."""

import json
import stat

import pytest

NODES = """NodeName=gpu01 Arch=x86_64 CoresPerSocket=1 State=IDLE ThreadsPerCore=1
NodeName=gpu02 Arch=x86_64 CoresPerSocket=1 State=MIXED ThreadsPerCore=1
NodeName=gpu03 Arch=x86_64 CoresPerSocket=1 State=IDLE* ThreadsPerCore=1"""
# The job itself, in short: what its steps would leave.
SBATCH = """#!/bin/sh
printf '%s\\n' "$@" > {log}
cat > {directory}/results/node.self.gpu01.json <<X
{{"schema": "rackweave.acceptance_node/1", "host": "gpu01", "shm_bytes": 1, "errors": {{}}}}
X
cat > {directory}/results/node.write.gpu01.json <<X
{{"schema": "rackweave.acceptance_node/1", "host": "gpu01", "errors": {{"storage": "full"}}}}
X
echo '{{"host": "gpu01"}}' > {directory}/results/collective.0.gpu01.json
echo "stage self" > {directory}/job.log
echo 42
"""


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Return a function that writes a stand-in command."""
    commands = tmp_path / "bin"
    commands.mkdir()
    monkeypatch.setenv("PATH", f"{commands}:/usr/bin:/bin")

    def write(name, text):
        path = commands / name
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    write("scontrol", f"#!/bin/sh\ncat <<X\n{NODES}\nX\n")
    write("squeue", "#!/bin/sh\necho 'Invalid job id' >&2; exit 1\n")
    write("scancel", f'#!/bin/sh\necho "$@" > {tmp_path}/cancelled\n')
    (tmp_path / "job").mkdir()
    write("sbatch", SBATCH.format(log=tmp_path / "options", directory=tmp_path / "job"))
    return write


def measure(run_module, tmp_path, **changed):
    schedule = {"python": "/venv/bin/python", "storage": {"path": "/mnt/shared/acceptance"}}
    arguments = {"hosts": ["localhost"], "directory": str(tmp_path / "job"), "schedule": schedule, "stages": ["self"]}
    return run_module("acceptance_run", **{**arguments, **changed})


def test_nodes_with_a_job_silent_ones_and_unknown_ones_are_pending(run_module, slurm):
    found = run_module("acceptance_run", hosts=["gpu01", "gpu02", "gpu03", "gpu04"], states_only=True)["pending"]
    assert list(found) == ["gpu02", "gpu03", "gpu04"]
    assert "a job holds the node" in found["gpu02"]


def test_a_silent_controller_is_an_error(run_module, slurm):
    slurm("scontrol", "#!/bin/sh\necho 'Unable to contact slurm controller' >&2; exit 1\n")
    result = run_module("acceptance_run", hosts=["gpu01"], states_only=True)
    assert result["failed"]
    assert "Unable to contact slurm controller" in result["msg"]


def test_the_files_of_the_steps_become_one_entry_for_each_node(run_module, slurm, tmp_path):
    observations = measure(run_module, tmp_path)["observations"]
    assert [(it["host"], it["shm_bytes"], it["errors"]) for it in observations["nodes"]] == [
        ("gpu01", 1, {"storage": "full"})
    ]
    assert observations["collectives"] == [{"host": "gpu01"}]
    assert observations["log"] == "stage self\n"
    assert observations["pending"] == {}


def test_the_job_has_all_nodes_for_itself_and_ends_by_itself(run_module, slurm, tmp_path):
    measure(run_module, tmp_path, reservation="swap", sbatch_options=["--gres=gpu:8"], time_limit_s=90)
    options = (tmp_path / "options").read_text().split("\n")
    wanted = {"--exclusive", "--no-requeue", "--nodelist=localhost", "--time=2", "--reservation=swap", "--gres=gpu:8"}
    assert wanted <= set(options)
    assert options[-3:-1] == [str(tmp_path / "job/job.sh"), "self"]
    assert json.loads((tmp_path / "job/schedule.json").read_text())["echo"][1] > 0


def test_a_job_that_does_not_start_is_cancelled_and_its_hosts_are_pending(run_module, slurm, tmp_path):
    slurm("squeue", "#!/bin/sh\necho '42|PENDING'\n")
    result = measure(run_module, tmp_path, start_timeout_s=0)
    assert "did not start" in result["observations"]["pending"]["localhost"]
    assert (tmp_path / "cancelled").read_text().split()[-1] == "42"


def test_a_job_that_slurm_refuses_is_an_error_with_slurms_words(run_module, slurm, tmp_path):
    slurm("sbatch", "#!/bin/sh\necho 'sbatch: error: Invalid account' >&2; exit 1\n")
    result = measure(run_module, tmp_path)
    assert result["failed"]
    assert "Invalid account" in result["msg"]
