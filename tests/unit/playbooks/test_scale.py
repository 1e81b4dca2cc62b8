"""What 100 and 500 hosts cost on the controller: cost per host is constant, and small."""

import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.multiprocess

ROOT = Path(__file__).resolve().parents[3]
BIN = Path(sys.executable).parent
RESULT = re.compile(r"^(?:ok|changed|skipping): \[", re.MULTILINE)
SIZES = (100, 500)
SECONDS_OF_CPU = 60.0
RATIO = 5.5


def inventory(directory, hosts):
    """Write the reference inventory with another number of nodes; the batch grows with them."""
    target = directory / f"inventory/s{hosts}"
    shutil.copytree(ROOT / "inventory/prod/group_vars", target / "group_vars")
    (target / "group_vars/all/scale.yml").write_text(f"training_job_global_batch_size: {hosts * 2}\n")
    (target / "hosts.yml").write_text(
        "all:\n  children:\n    slurm_controller: {hosts: {ctl01: }}\n"
        f"    gpu_nodes: {{hosts: {{'trn[001:{hosts:03d}]': }}}}\n"
    )
    return target


def run(target):
    """Run both playbooks; return CPU seconds and the number of task results that the controller had to handle."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    results = 0
    for playbook in ("validate", "plan"):
        command = [str(BIN / "ansible-playbook"), "-i", str(target), f"playbooks/{playbook}.yml", "--forks", "20"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
        results += len(RESULT.findall(done.stdout))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, results


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    directory = tmp_path_factory.mktemp("scale")
    return {hosts: run(inventory(directory, hosts)) for hosts in SIZES}


def test_at_most_two_tasks_run_once_per_host(measured):
    small, large = (measured[hosts][1] for hosts in SIZES)
    assert large - small <= 2 * (SIZES[1] - SIZES[0])


def test_cost_grows_no_faster_than_the_number_of_hosts(measured):
    small, large = (measured[hosts][0] for hosts in SIZES)
    assert large / small <= RATIO, f"{small:.1f} s of CPU with {SIZES[0]} hosts, {large:.1f} s with {SIZES[1]}"


def test_five_hundred_hosts_take_less_than_a_minute_of_cpu(measured):
    assert measured[SIZES[1]][0] < SECONDS_OF_CPU
