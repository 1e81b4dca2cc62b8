"""What Slurm prints about jobs. Samples follow the format of Slurm 22.05 and 24.11."""

import pytest
from rackweave.errors import ParseError
from rackweave.run.slurm import parse_sacct_job, parse_sbatch, parse_scontrol_job, parse_squeue

RUNNING = (
    "JobId=12 JobName=rackweave-demo UserId=hpc(2000) GroupId=hpc(2000) MCS_label=N/A Priority=4294901750 Nice=0 "
    "Account=(null) QOS=(null) JobState=RUNNING Reason=None Dependency=(null) Requeue=1 Restarts=2 BatchFlag=1 "
    "ExitCode=0:0 RunTime=00:00:07 TimeLimit=01:00:00 NodeList=gpu[01-02] BatchHost=gpu01 NumNodes=2 "
    "Command=/mnt/shared/runs/demo/plan/job.sbatch WorkDir=/mnt/shared/runs/demo TresPerNode=gres:gpu:4"
)


def test_a_running_job_is_read():
    job = parse_scontrol_job(RUNNING)
    assert (job.job_id, job.state, job.restarts, job.nodes, job.reason) == ("12", "RUNNING", 2, "gpu[01-02]", "")
    assert job.live
    assert not job.ended


@pytest.mark.parametrize(
    ("state", "live", "ended"),
    [
        ("PENDING", True, False),
        ("REQUEUE_HOLD", True, False),
        ("COMPLETING", False, False),
        ("COMPLETED", False, True),
        ("FAILED", False, True),
        ("NODE_FAIL", False, True),
        ("CANCELLED", False, True),
    ],
)
def test_states_are_live_or_ended_or_neither(state, live, ended):
    job = parse_scontrol_job(RUNNING.replace("RUNNING", state))
    assert (job.live, job.ended) == (live, ended)


def test_exit_code_and_signal_are_told_apart():
    job = parse_scontrol_job(RUNNING.replace("ExitCode=0:0", "ExitCode=75:9"))
    assert (job.exit_code, job.signal) == (75, 9)


def test_a_reason_with_blanks_does_not_swallow_the_next_key():
    job = parse_scontrol_job(RUNNING.replace("Reason=None", "Reason=Nodes required for job are DOWN, DRAINED"))
    assert job.reason == "Nodes required for job are DOWN, DRAINED"
    assert job.restarts == 2


def test_an_answer_without_a_job_is_refused():
    with pytest.raises(ParseError, match="names no JobId"):
        parse_scontrol_job("slurm_load_jobs error: Invalid job id specified")


def test_the_last_completion_record_counts():
    job = parse_sacct_job("12|demo|NODE_FAIL|0:0|gpu[01-02]\n12|demo|CANCELLED by 2000|0:15|gpu[01-02]\n")
    assert (job.state, job.signal, job.restarts) == ("CANCELLED", 15, 1)


def test_no_record_is_no_job():
    assert parse_sacct_job("") is None


def test_squeue_rows_are_pairs():
    assert parse_squeue("12|RUNNING\n13|PENDING\n\n") == (("12", "RUNNING"), ("13", "PENDING"))


@pytest.mark.parametrize(("text", "job_id"), [("17\n", "17"), ("17;cluster\n", "17"), ("warning: x\n18\n", "18")])
def test_the_submitted_job_id_is_read(text, job_id):
    assert parse_sbatch(text) == job_id


def test_a_submission_without_an_id_is_refused():
    with pytest.raises(ParseError, match="printed no job id"):
        parse_sbatch("sbatch: error\n")
