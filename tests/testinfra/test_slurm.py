"""Slurm from the submit host: what a job step sees."""


def gpu_nodes(variables, controller):
    return sorted(set(variables) - {controller.check_output("hostname --short")})


def test_a_step_runs_once_on_every_node_as_the_training_user(controller, variables):
    names = gpu_nodes(variables, controller)
    user = next(iter(variables.values()))["train_user"]
    script = '"$(hostname --short) $(id --user --name)"'
    step = f"srun --chdir=/tmp --immediate=60 --nodes={len(names)} --ntasks-per-node=1 bash -c 'echo {script}'"
    output = controller.check_output(f"runuser -u {user} -- {step}")
    assert sorted(output.splitlines()) == [f"{name} {user}" for name in names]


def test_a_step_is_handed_the_gpus_it_asked_for(controller, variables):
    user = next(iter(variables.values()))["train_user"]
    script = "echo $CUDA_VISIBLE_DEVICES $SLURM_GPUS_ON_NODE"
    step = f"srun --chdir=/tmp --immediate=60 --nodes=1 --gres=gpu:2 bash -c '{script}'"
    devices, count = controller.check_output(f"runuser -u {user} -- {step}").split()
    assert len(set(devices.split(","))) == int(count) == 2


def test_the_state_of_a_finished_job_stays_readable(controller, variables):
    user = next(iter(variables.values()))["train_user"]
    job = controller.check_output(f"runuser -u {user} -- sbatch --chdir=/tmp --parsable --wrap 'exit 3'").split(";")[0]
    controller.run(
        f"for i in $(seq 240); do scontrol show job {job} | grep -q JobState=FAILED && break; sleep 0.5; done"
    )
    shown = controller.check_output(f"scontrol show job {job}")
    assert "JobState=FAILED" in shown
    assert "ExitCode=3:0" in shown
