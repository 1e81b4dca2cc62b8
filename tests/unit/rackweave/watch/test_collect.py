"""Reading what was collected on a node."""

from __future__ import annotations

from rackweave.watch.collect import BY_NAME, command, job_processes, rank_processes, stopped_processes, traffic

LISTING = """    PID    PPID STAT WCHAN                            ELAPSED   RSS COMMAND
      1       0 Ss   do_wait                              900  1000 /sbin/init
    100      99 Sl   futex_wait                           800 90000 python3 /usr/bin/torchrun --nnodes 2 -m trainer
    101     100 Rl   -                                    800 90000 /usr/bin/python3 -m trainer --attempt /x
    102     100 Tl   do_signal_stop                       800 90000 /usr/bin/python3 -m trainer --attempt /x
    103     100 Dl   nfs_wait                             800 90000 python3 -u pretrain_gpt.py
    200       1 S    -                                    800   900 grep trainer
"""


def test_ranks_are_the_python_processes_that_are_no_launcher() -> None:
    assert job_processes(LISTING) == [101, 102, 103]


def test_stopped_and_waiting_processes_are_told() -> None:
    assert stopped_processes(LISTING) == {102: "T", 103: "D"}


def test_a_command_keeps_one_word_per_argument() -> None:
    assert command(BY_NAME["kernel"], "12", "2026-08-02 07:00; rm -rf /")[-1] == "2026-08-02 07:00; rm -rf /"


def test_rdma_words_are_four_bytes_and_resets_count_as_nothing() -> None:
    before = {"mlx5_0:1/port_xmit_data": 0, "eth0/tx_bytes": 500, "mlx5_0:1/link_downed": 1}
    moved = traffic(before, {"mlx5_0:1/port_xmit_data": 10**9, "eth0/tx_bytes": 100, "mlx5_0:1/link_downed": 2}, 2.0)
    assert moved.rdma_bytes_per_second == 2e9
    assert (moved.netdev_bytes_per_second, moved.on_sockets) == (0.0, False)
    assert moved.errors == ("mlx5_0:1/link_downed +1",)


def test_traffic_through_a_network_device_without_rdma_is_on_sockets() -> None:
    assert traffic({"eth0/tx_bytes": 0}, {"eth0/tx_bytes": 10**9}, 1.0).on_sockets


def test_a_quiet_node_says_nothing() -> None:
    assert not traffic({"eth0/tx_bytes": 0}, {"eth0/tx_bytes": 1000}, 1.0).on_sockets


def test_ranks_are_found_by_their_environment_whatever_they_run() -> None:
    rank = {"RANK": "3", "SLURM_JOB_ID": "12"}
    environments = {
        10: {"SLURM_JOB_ID": "12"},  # torchrun
        11: rank,
        12: rank,  # a worker of the data loader, child of the rank
        13: {"RANK": "0", "SLURM_JOB_ID": "13"},  # another job's
        14: {"RANK": "1", "RACKWEAVE_ATTEMPT": "/mnt/shared/runs/a/attempts/12.1"},  # in a container without Slurm's
        15: {"RANK": "one", "SLURM_JOB_ID": "12"},
    }
    parents = {10: 1, 11: 10, 12: 11, 13: 1, 14: 1, 15: 10}
    assert rank_processes(environments, parents, "12") == [11, 14]
    assert rank_processes(environments, parents, "1") == []
