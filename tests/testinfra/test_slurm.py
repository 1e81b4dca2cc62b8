"""Slurm from the submit host: what a job step sees on idle nodes; where jobs hold all of them nothing is asked."""

import re

import pytest


@pytest.fixture
def user(variables):
    return next(iter(variables.values()))["train_user"]


def run_step(controller, idle_nodes, user, nodes, words):
    """Return what a step prints on idle nodes; skips if another job took one of them meanwhile."""
    nodelist = f"--nodelist={','.join(nodes)} --nodes={len(nodes)}"
    done = controller.run(f"runuser -u {user} -- srun --chdir=/tmp --immediate=60 {nodelist} {words}")
    if done.rc != 0 and set(nodes) - set(idle_nodes()):
        pytest.skip(f"another job took a node of {', '.join(nodes)} meanwhile")
    assert done.rc == 0, done.stderr
    return done.stdout


def some_idle(idle_nodes):
    return idle_nodes() or pytest.skip("no node is idle, so no step of ours runs")


def test_a_step_runs_once_on_every_idle_node_as_the_training_user(controller, idle_nodes, user):
    nodes = some_idle(idle_nodes)
    words = """--ntasks-per-node=1 bash -c 'echo "$SLURMD_NODENAME $(id --user --name)"'"""
    output = run_step(controller, idle_nodes, user, nodes, words)
    assert sorted(output.splitlines()) == [f"{name} {user}" for name in nodes]


def test_a_step_is_handed_the_gpus_it_asked_for(controller, idle_nodes, user):
    name = some_idle(idle_nodes)[0]
    gres = re.search(
        r"\bGres=gpu:(?:[^:(\s]+:)?(\d+)", controller.check_output(f"scontrol --oneliner show node {name}")
    )
    if gres is None:
        pytest.skip(f"Slurm knows no GPU of {name}")
    wanted = min(2, int(gres[1]))
    words = f"--gres=gpu:{wanted} bash -c 'echo $CUDA_VISIBLE_DEVICES $SLURM_GPUS_ON_NODE'"
    devices, count = run_step(controller, idle_nodes, user, [name], words).split()
    assert len(set(devices.split(","))) == int(count) == wanted


def test_the_state_of_a_finished_job_stays_readable(controller, idle_nodes, user):
    some_idle(idle_nodes)
    job = controller.check_output(f"runuser -u {user} -- sbatch --chdir=/tmp --parsable --wrap 'exit 3'").split(";")[0]
    controller.run(
        f"for i in $(seq 240); do scontrol show job {job} | grep -q JobState=FAILED && break; sleep 0.5; done"
    )
    shown = controller.check_output(f"scontrol show job {job}")
    if "JobState=PENDING" in shown and not idle_nodes():
        controller.run(f"scancel {job}")
        pytest.skip("other jobs took all nodes meanwhile")
    assert "JobState=FAILED" in shown
    assert "ExitCode=3:0" in shown
