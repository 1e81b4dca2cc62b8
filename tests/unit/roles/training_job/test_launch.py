"""job.sbatch and the launch scripts, run as shipped under stand-ins for Slurm and torchrun."""

import json
import os
import signal
import time

import pytest
from rackweave.run.attempt import parse_attempt, parse_end, parse_exit

pytestmark = pytest.mark.multiprocess

# A rank that stays until its supervisor has said what it found of it.
UNTIL_TOLD = 'until grep -qs "rank $RANK has" $RACKWEAVE_ATTEMPT/logs/$RACKWEAVE_HOST/launch.log; do sleep 0.2; done'


def test_a_good_run_ends_with_zero_and_leaves_a_readable_attempt(job):
    code, output = job.run()
    assert code == 0, output
    assert parse_attempt((job.attempt / "attempt.json").read_text())["hosts"] == ["node-a", "node-b"]
    assert parse_end((job.attempt / "end.json").read_text())["code"] == 0
    assert parse_exit((job.attempt / "logs" / "node-a" / "exit.json").read_text())["node_rank"] == 1
    assert (job.attempt / "plan.json").read_text() == (job.run_dir / "plan" / "plan.json").read_text()


def test_node_ranks_and_master_follow_the_plan_and_not_the_alphabet(job):
    job.run()
    launched = {item["host"]: item for item in map(json.loads, job.stub_lines("torchrun"))}
    assert launched["node-b"]["node_rank"] == 0
    assert launched["node-a"]["node_rank"] == 1
    assert {item["master_addr"] for item in launched.values()} == {"node-b"}
    assert len({item["master_port"] for item in launched.values()}) == 1
    assert 20000 <= launched["node-a"]["master_port"] < 32000


def test_each_rank_sees_the_pairs_of_its_own_host_exactly_as_written(job):
    job.run()
    seen = {}
    for host, rank in (("node-b", 0), ("node-a", 2)):
        text = (job.attempt / "logs" / host / str(rank) / "stdout.log").read_text()
        seen[host] = json.loads(text.split("variables ", 1)[1])
    assert seen["node-a"]["NCCL_IB_HCA"] == "=mlx5_0:1,mlx5_1:1"
    assert seen["node-a"]["GLOO_SOCKET_IFNAME"] == "eth7"
    assert seen["node-b"]["GLOO_SOCKET_IFNAME"] == "bond0"
    assert seen["node-b"]["NCCL_NOTE"] == "two words; $HOME `id`"


def test_ranks_of_two_nodes_get_the_different_values_of_their_own_files(job):
    job.run()
    found = {}
    for host, rank in (("node-b", 1), ("node-a", 3)):
        text = (job.attempt / "logs" / host / str(rank) / "stdout.log").read_text()
        found[host] = json.loads(text.split("variables ", 1)[1])
    assert found["node-a"]["GLOO_SOCKET_IFNAME"] != found["node-b"]["GLOO_SOCKET_IFNAME"]
    assert "NCCL_IB_HCA" not in found["node-b"]


def test_a_value_of_the_job_environment_that_the_hosts_file_replaces_is_said(job):
    job.env["GLOO_SOCKET_IFNAME"], job.env["NCCL_NVLS_ENABLE"] = "docker0", "0"
    code, output = job.run()
    assert code == 0, output
    assert "GLOO_SOCKET_IFNAME=docker0 of the job environment is replaced by this host's file" in output
    assert "NCCL_NVLS_ENABLE=0 comes from the job environment; nothing was planned for it" in output
    kept = job.json("logs/node-a/environment.json")
    assert kept["job environment"]["GLOO_SOCKET_IFNAME"] == "docker0"


def test_a_planned_value_that_does_not_reach_a_rank_is_named_with_the_origin_of_the_one_that_did(job):
    job.env["GLOO_SOCKET_IFNAME"] = "docker0"
    wrapper = "GLOO_SOCKET_IFNAME=docker0 NCCL_P2P_DISABLE=1 exec env -u NCCL_IB_HCA bash"
    job.settings["command"] = ("bash", "-c", f"{wrapper} -c '{UNTIL_TOLD}'")
    code, output = job.run()
    assert code == 0, output
    assert "rank 2 has GLOO_SOCKET_IFNAME=docker0 from the job environment where its host's file says eth7" in output
    assert "rank 2 lacks NCCL_IB_HCA==mlx5_0:1,mlx5_1:1 of its host's file" in output
    assert "rank 2 has NCCL_P2P_DISABLE=1 from the program, its image or a wrapper; nothing was planned" in output
    assert "TEMP_FILE" not in output


def test_a_value_that_the_program_itself_changed_is_told_from_its_placement(job):
    record = {"environment": {"GLOO_SOCKET_IFNAME": {"value": "lo", "origin": "overridden", "planned": "eth7"}}}
    script = f"echo '{json.dumps(record)}' > $RACKWEAVE_ATTEMPT/placement/$RANK.json; {UNTIL_TOLD}"
    job.settings["command"] = ("bash", "-c", script)
    code, output = job.run()
    assert code == 0, output
    assert "rank 3 has GLOO_SOCKET_IFNAME=lo from the program" in output


def test_other_hosts_than_planned_are_refused_with_a_sentence(job):
    job.env["SLURM_JOB_NODELIST"] = "node-a,node-c"
    code, output = job.run()
    assert code == 64
    assert "Slurm allocated node-a, node-c, but the plan is for node-a, node-b" in output
    assert "node-c" in job.json("end.json")["reason"]
    assert not job.stub_lines("torchrun")


def test_a_host_without_environment_file_is_refused(job):
    (job.run_dir / "plan" / "nccl" / "node-a.conf").unlink()
    code, output = job.run()
    assert code == 64
    assert "no environment for this host" in output


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ({"1": "stop", "2": "retry"}, 64),
        ({"1": "retry", "3": "retry_elsewhere"}, 76),
        ({"0": "retry"}, 75),
        ({"0": "saved", "1": "saved", "2": "saved", "3": "saved"}, 77),
    ],
)
def test_the_worst_result_of_all_ranks_becomes_the_exit_status(job, words, code):
    job.env["STUB_RANKS"] = json.dumps(words)
    assert job.run()[0] == code
    assert job.json("end.json")["code"] == code


def test_a_killed_rank_is_named_and_its_hanging_peers_are_ended(job):
    job.env |= {"STUB_RANKS": json.dumps({"0": "hang", "1": "kill", "2": "hang", "3": "hang"})}
    code, output = job.run()
    assert code == 75
    assert "node-b: rank 1 ended without a result (exit code -9), then rank(s) 0" in job.json("end.json")["reason"]
    assert "rank 1 (pid" in output
    assert "ended without a result: it was killed" in output
    assert job.lasting_survivors() == []


def test_orphans_of_a_finished_rank_do_not_survive(job):
    job.env["STUB_RANKS"] = json.dumps({"0": "orphan", "3": "orphan"})
    code, output = job.run()
    assert code == 0
    assert "ended 1 process(es) of this attempt that torchrun had left" in output
    assert job.lasting_survivors() == []


def test_a_stopped_rank_is_reported_and_killed_with_the_rest(job):
    job.env |= {"STUB_RANKS": json.dumps({"2": "pause", "3": "hang", "0": "hang", "1": "hang"})}
    job.settings["stall_s"] = 5
    code, output = job.run()
    assert code == 75
    assert "rank 2" in output
    assert "is stopped (process state T)" in output
    assert "no rank of this host has made progress for" in output
    assert job.lasting_survivors() == []


def test_every_node_gives_signs_of_life_for_as_long_as_its_launcher_runs(job):
    job.env |= {"STUB_RANKS": json.dumps({"2": "pause", "3": "hang", "0": "hang", "1": "hang"})}
    # Several times the 3 s between signs, so that a busy machine too gives two of them after the rank was stopped.
    job.settings["stall_s"] = 15
    job.run()
    for host in ("node-a", "node-b"):
        sign = job.json(f"alive/{host}.json")
        assert (sign["schema"], sign["host"], sign["every_s"]) == ("rackweave.alive/1", host, 3.0)
        assert sign["count"] >= 2
        assert sign["stopped"] == ([2] if host == "node-a" else [])


def test_a_torchrun_that_outlives_its_ranks_is_given_up(job):
    job.env |= {"STUB_LINGER_S": "500"}
    supervise = job.run_dir / "plan" / "supervise.py"
    supervise.write_text(supervise.read_text().replace("LONELY_S = 60.0", "LONELY_S = 2.0"))
    code, output = job.run()
    assert code == 75
    assert "torchrun did not end in 2 s after its last rank" in output


def test_a_foreign_program_needs_no_results(job):
    job.env["STUB_DEFAULT"] = "nothing"
    assert job.run()[0] == 0


@pytest.mark.parametrize(("word", "code"), [("raise", 64), ("kill", 75)])
def test_a_foreign_program_that_fails_is_judged_by_torchruns_own_table(job, word, code):
    job.env |= {"STUB_DEFAULT": "nothing", "STUB_RANKS": json.dumps({"3": word})}
    assert job.run()[0] == code


def test_the_time_limit_signal_asks_for_a_save_and_all_ranks_may_finish_it(job):
    job.env["STUB_DEFAULT"] = "wait-for-file"
    process = job.start()
    deadline = time.monotonic() + 120
    while not (job.attempt / "logs" / "node-a" / "3").exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGUSR1)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 77, output
    assert "asking the job to save and exit" in output


def test_the_switch_being_off_no_requeue_is_asked_for(job):
    job.env["STUB_RANKS"] = json.dumps({"1": "retry"})
    assert job.run()[0] == 75
    assert job.stub_lines("requeue") == []
    assert job.json("end.json")["requeued"] is False


def test_a_retryable_end_is_requeued_within_the_budget(job):
    job.settings["requeue_ok"] = True
    job.env |= {"STUB_RANKS": json.dumps({"1": "retry"}), "SLURM_RESTART_COUNT": "1"}
    code, output = job.run()
    assert job.stub_lines("requeue") == ["77"]
    assert job.json("end.json")["requeued"] is True
    assert code == 75
    assert "Slurm refused the requeue" in output


@pytest.mark.parametrize(("restart", "word"), [("2", "retry"), ("0", "stop"), ("0", "retry_elsewhere")])
def test_a_spent_budget_or_a_final_end_is_not_requeued(job, restart, word):
    job.settings["requeue_ok"] = True
    job.env |= {"STUB_RANKS": json.dumps({"1": word}), "SLURM_RESTART_COUNT": restart}
    job.run()
    assert job.stub_lines("requeue") == []


def test_a_start_beyond_the_budget_does_not_train(job):
    job.env["SLURM_RESTART_COUNT"] = "3"
    code, output = job.run()
    assert code == 75
    assert "exceeds the budget of 2" in output
    assert not job.stub_lines("torchrun")


def test_an_attempt_is_seen_with_its_plan_or_not_at_all(job, tmp_path):
    failing = tmp_path / "failing" / "cp"
    failing.parent.mkdir()
    failing.write_text("#!/bin/sh\nexit 1\n")
    failing.chmod(0o755)
    job.env["PATH"] = f"{failing.parent}:{os.environ['PATH']}"
    code, output = job.run()
    assert code == 64
    assert list(job.attempt.parent.iterdir()) == []
    assert "launch the run again" in output


def test_an_attempt_is_never_overwritten(job):
    job.run()
    before = (job.attempt / "end.json").read_text()
    code, output = job.run()
    assert code == 64
    assert "never overwritten" in output
    assert "another name" in output
    assert (job.attempt / "end.json").read_text() == before
