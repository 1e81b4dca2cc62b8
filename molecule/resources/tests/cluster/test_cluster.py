"""Slurm of a controller and two nodes, seen from each of them."""


def test_no_unit_has_failed(host):
    assert host.check_output("systemctl --failed --plain --no-legend") == ""


def test_only_munge_reads_its_key(host):
    assert host.file("/etc/munge/munge.key").mode == 0o400


def test_a_step_gets_a_gpu_on_both_nodes(host):
    step = "srun --chdir=/tmp --immediate=60 --nodes=2 --ntasks-per-node=1 --gres=gpu:2"
    output = host.check_output(f"{step} bash -c 'echo $(hostname) $CUDA_VISIBLE_DEVICES'")
    assert sorted(output.splitlines()) == ["node01 0,1", "node02 0,1"]


def test_slurmd_may_lock_memory_without_limit(host):
    if host.check_output("hostname").startswith("node"):
        assert host.check_output("systemctl show slurmd --property LimitMEMLOCK") == "LimitMEMLOCK=infinity"
