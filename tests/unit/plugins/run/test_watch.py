"""Watching: from the files of an attempt and Slurm's word to the task's result."""

import json
import time
from datetime import datetime, timezone
from pathlib import Path

import pytest

CONTRACTS = Path(__file__).parents[3] / "fixtures" / "contracts"
CODES = {"done": 0, "stop": 64, "retry": 75, "saved": 77}


@pytest.fixture
def attempt(shared, plan_dir, slurm):
    """A running attempt of job 1 on disk."""
    directory = shared / "runs" / "demo" / "attempts" / "1.0"
    for name in ("logs/node-a", "logs/node-b", "result", "phase"):
        (directory / name).mkdir(parents=True)
    for name in ("plan.json", "train.json"):
        (directory / name).write_text((plan_dir / name).read_text())
    (directory / "attempt.json").write_text((CONTRACTS / "attempt.json").read_text())
    (shared / "runs" / "demo" / "job.json").write_text(
        json.dumps(
            {
                "schema": "rackweave.job/1",
                "run": "demo",
                "job_id": "1",
                "submitted": "2026-01-05T10:00:00Z",
                "switches": {"stop_ok": True, "requeue_ok": False, "drain_ok": False},
            }
        )
    )
    slurm.write(jobs={"1": {"name": "rackweave-demo", "state": "RUNNING", "exit": "0:0"}})
    return directory


def now():
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


def event(kind, **fields):
    return json.dumps({"schema": "rackweave.event/1", "time": now(), "kind": kind, "rank": 0, **fields}) + "\n"


def step(number, loss):
    return event("step", step=number, loss=loss, tokens_per_second=900.0, mfu=None, step_time_s=1.0)


def write_result(attempt, rank, kind, reason="x"):
    host = "node-b" if rank < 2 else "node-a"
    document = {"schema": "rackweave.result/1", "rank": rank, "host": host, "exit": kind, "code": CODES[kind],
                "reason": reason, "phase": "forward", "step": 3}  # fmt: skip
    (attempt / "result" / f"{rank}.json").write_text(json.dumps(document))


def end_job(attempt, slurm, state, code, reason=""):
    document = {
        "schema": "rackweave.end/1",
        "code": code,
        "reason": reason,
        "srun_code": code,
        "requeued": False,
        "time": now(),
    }
    (attempt / "end.json").write_text(json.dumps(document))
    slurm.write(jobs={"1": {"name": "rackweave-demo", "state": state, "exit": f"{code}:0"}})


@pytest.fixture
def watch(run_action, on_submit_host, shared, tmp_path, monkeypatch):
    """Run the action; `during` is called at each pause between looks, in place of waiting."""
    from ansible.utils.display import Display

    lines = []
    monkeypatch.setattr(Display, "display", lambda self, text, *args, **kwargs: lines.append(text))

    def call(during=lambda pauses: None, **changes):
        pauses = []

        def pause(seconds):
            pauses.append(seconds)
            assert len(pauses) < 20, lines
            during(len(pauses))

        monkeypatch.setattr(time, "sleep", pause)
        arguments = {
            "run": "demo",
            "shared_dir": str(shared),
            "report_dir": str(tmp_path / "report"),
            "state_file": str(tmp_path / "runs" / "demo.json"),
            "stop_ok": True,
            "line_interval_s": 0,
            **changes,
        }
        return run_action("job_watch", **arguments), lines

    return call


def test_a_good_run_reports_progress_and_ends_ok(watch, attempt, slurm, shared, tmp_path):
    def during(pauses):
        if pauses > 3:
            return
        with (attempt / "events.jsonl").open("a") as stream:
            stream.write(step(pauses, 3.0 - pauses * 0.1))
            if pauses == 3:
                stream.write(event("evaluation", step=3, validation_loss=2.8))
                end_job(attempt, slurm, "COMPLETED", 0)

    result, lines = watch(during)
    assert result["failed"] is False
    assert (result["state"], result["first_step"], result["last_step"]) == ("COMPLETED", 1, 3)
    assert result["loss_mean_of_last_ten"] == 2.8
    assert any("step 2/200 | loss 2.8000 | 900 tokens/s" in line for line in lines)
    page = (tmp_path / "report" / "report.html").read_text()
    assert page == (shared / "runs" / "demo" / "report.html").read_text()
    assert json.loads((tmp_path / "runs" / "demo.json").read_text())["step"] == 3
    assert json.loads((attempt / "verdict.json").read_text())["diagnosis_class"] == "healthy"


def test_a_failed_job_fails_the_task_and_names_the_culprit(watch, attempt, slurm):
    (attempt / "events.jsonl").write_text(step(1, 3.0))
    for rank in (0, 2, 3):
        write_result(attempt, rank, "retry", "RuntimeError: gloo/transport Connection closed by peer")
    ranks = [
        {"rank": 1, "pid": 9, "gone": "10", "exit_code": -9, "state": "Z", "stopped": None, "result": False},
        {"rank": 0, "pid": 8, "gone": "11", "exit_code": 75, "state": "Z", "stopped": None, "result": True},
    ]
    document = {"schema": "rackweave.exit/1", "host": "node-b", "node_rank": 0, "code": 75, "reason": "r",
                "launcher_code": 1, "terminated": False, "time": now(), "ranks": ranks}  # fmt: skip
    (attempt / "logs" / "node-b" / "exit.json").write_text(json.dumps(document))
    end_job(attempt, slurm, "FAILED", 75, "node-b: rank 1 ended without a result")
    result, _ = watch()
    assert result["failed"] is True
    assert result["state"] == "FAILED"
    assert result["culprit"] == "rank:1"
    assert "FAILED" in result["msg"]
    assert "rank 1 on node-b was killed by SIGKILL" in result["msg"]


def test_a_script_tag_in_a_log_does_not_reach_the_page(watch, attempt, slurm, tmp_path):
    evil = "<script>alert(1)</script>"
    write_result(attempt, 0, "stop", f"ValueError: {evil}")
    (attempt / "logs" / "node-b" / "launch.log").write_text(f"ValueError: {evil}\n")
    end_job(attempt, slurm, "FAILED", 64, evil)
    result, _ = watch()
    page = (tmp_path / "report" / "report.html").read_text()
    assert evil in result["msg"]
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page


def test_a_save_on_request_is_no_failure(watch, attempt, slurm):
    for rank in range(4):
        write_result(attempt, rank, "saved")
    end_job(attempt, slurm, "FAILED", 77)
    result, _ = watch()
    assert result["failed"] is False
    assert "launch again to continue" in result["msg"]


def test_a_requeued_job_is_followed_into_its_next_attempt(watch, attempt, slurm, shared):
    def during(pauses):
        second = attempt.with_name("1.1")
        if pauses == 2:
            end_job(attempt, slurm, "PENDING", 75)
            second.mkdir()
            (second / "train.json").write_text((attempt / "train.json").read_text())
            (second / "events.jsonl").write_text(step(5, 2.0))
        if pauses == 4:
            end_job(second, slurm, "COMPLETED", 0)

    (attempt / "events.jsonl").write_text(step(1, 3.0))
    result, lines = watch(during)
    assert (result["attempt"], result["last_step"]) == ("1.1", 5)
    assert [(item["requeued"], item["document"]["attempt"]) for item in result["ended"]] == [
        (True, "1.0"),
        (False, "1.1"),
    ]
    assert [line for line in lines if "attempt 1." in line and "ended" not in line] == [
        "[demo] attempt 1.0",
        "[demo] attempt 1.1",
    ]


def test_a_hang_is_stopped_only_with_consent_and_evidence_comes_first(watch, attempt, slurm, on_submit_host):
    old = "2026-01-05T10:00:00.000+00:00"
    (attempt / "events.jsonl").write_text(step(1, 3.0).replace(now()[:16], old[:16]))
    for rank in range(4):
        phase = {"schema": "rackweave.phase/1", "rank": rank, "host": "h", "pid": 1, "phase": "forward",
                 "step": 2 if rank != 3 else 1, "micro_batch": 0, "time": old}  # fmt: skip
        (attempt / "phase" / f"{rank}.json").write_text(json.dumps(phase))
    result, lines = watch(hang_grace_s=0)
    assert result["failed"] is True
    assert result["state"] == "CANCELLED"
    assert result["culprit"] == "rank:3"
    names = [name for name, _ in on_submit_host]
    assert names.index("job_logs") < names.index("job_control")
    assert names.count("job_control") == 1
    assert any("hang.no_progress" in line for line in lines)


def test_evidence_is_asked_for_before_a_hung_job_is_stopped_and_only_once(watch, attempt, slurm, on_submit_host):
    old = "2026-01-05T10:00:00.000+00:00"
    (attempt / "events.jsonl").write_text(step(1, 3.0).replace(now()[:16], old[:16]))
    for rank in range(4):
        phase = {"schema": "rackweave.phase/1", "rank": rank, "host": "h", "pid": 1, "phase": "forward",
                 "step": 2 if rank != 3 else 1, "micro_batch": 0, "time": old}  # fmt: skip
        (attempt / "phase" / f"{rank}.json").write_text(json.dumps(phase))
    asked, _ = watch(hang_grace_s=0, collect_hosts=1)
    assert asked["wanted"]["hosts"] == ["node-a"]  # rank 3 is there
    assert asked["wanted"]["attempt"] == "1.0"
    assert "job_control" not in [name for name, _ in on_submit_host]
    evidence = attempt / "evidence" / "node-a"
    evidence.mkdir(parents=True)
    states = {"stacks": {"state": "timeout", "seconds": 8.0, "detail": "stopped after 8 s"}}
    (evidence / "collectors.json").write_text(json.dumps(states))
    result, _ = watch(hang_grace_s=0, collect_hosts=1, collected=["1.0"], silent_hosts={"node-b": "no route to host"})
    assert "wanted" not in result
    assert result["state"] == "CANCELLED"
    verdict = json.loads((attempt / "verdict.json").read_text())
    assert verdict["collectors"] == {
        "node-a": {"stacks": "timeout"},
        "node-b": {"connection": "failed: no route to host"},
    }


def test_a_dead_rank_is_named_before_the_job_is_over(watch, attempt, slurm):
    (attempt / "events.jsonl").write_text(step(1, 3.0))
    for host, first in (("node-b", 0), ("node-a", 2)):
        ranks = [{"rank": rank, "pid": rank, "gone": f"1{rank}", "exit_code": -9 if rank == 1 else 1, "state": "Z",
                  "stopped": None, "result": rank != 1} for rank in (first, first + 1)]  # fmt: skip
        document = {"schema": "rackweave.exit/1", "host": host, "node_rank": 0, "code": 75, "reason": "r",
                    "launcher_code": 1, "terminated": False, "time": now(), "ranks": ranks}  # fmt: skip
        (attempt / "logs" / host / "exit.json").write_text(json.dumps(document))
    result, lines = watch(collect_hosts=8)
    assert result["wanted"]["hosts"][0] == "node-b"
    assert any("names rank:1: rank 1 on node-b was killed by SIGKILL" in line for line in lines)


def test_a_node_that_gives_no_sign_of_life_is_named_while_the_job_still_runs(watch, attempt, slurm):
    (attempt / "events.jsonl").write_text(step(1, 3.0))
    (attempt / "alive").mkdir()

    def during(pauses):
        for host, count in (("node-a", pauses), ("node-b", min(pauses, 2))):
            (attempt / "alive" / f"{host}.json").write_text(json.dumps({"host": host, "count": count}))
        if pauses == 10:
            end_job(attempt, slurm, "NODE_FAIL", 75)

    # The limit is that of a node, the clock that of this machine: it need only be shorter than the looks take.
    _, lines = watch(during, silent_s=0.001)
    named = [line for line in lines if "names " in line]
    assert "names host:node-b: node-b fell silent: no sign of life" in named[0]
    assert not any("host:node-a" in line for line in named)


def test_a_save_that_failed_is_said_while_the_job_trains_on(watch, attempt, slurm):
    reason = "checkpoint of step 1 was not written: rank 0: [Errno 28] No space left on device"
    failed = event("checkpoint", step=1, path="/x", seconds=None, state="failed", reason=reason)
    (attempt / "events.jsonl").write_text(step(1, 3.0) + failed)

    def during(pauses):
        if pauses == 3:
            end_job(attempt, slurm, "FAILED", 64, reason)

    _, lines = watch(during)
    assert sum(f"ckpt.write_failed: {reason}" in line for line in lines) == 1


def test_without_consent_a_hung_job_is_left_as_it_is(watch, attempt, slurm):
    old = "2026-01-05T10:00:00.000+00:00"
    phase = {"schema": "rackweave.phase/1", "rank": 0, "host": "h", "pid": 1, "phase": "forward", "step": 2,
             "micro_batch": 0, "time": old}  # fmt: skip
    (attempt / "phase" / "0.json").write_text(json.dumps(phase))
    (attempt / "events.jsonl").write_text(step(1, 3.0).replace(now()[:16], old[:16]))

    def during(pauses):
        if pauses == 6:
            slurm.write(jobs={"1": {"name": "rackweave-demo", "state": "CANCELLED", "exit": "0:0"}})

    _, lines = watch(during, stop_ok=False, hang_grace_s=0)
    assert "scancel" not in slurm.commands()
    assert sum("switched off" in line for line in lines) == 1


def test_every_attempt_gets_a_verdict_and_a_watch_of_one_returns_while_the_job_lives_on(watch, attempt, slurm):
    (attempt / "events.jsonl").write_text(step(1, 3.0))
    write_result(attempt, 0, "stop", "ValueError: x")
    document = {"schema": "rackweave.end/1", "code": 75, "reason": "r", "srun_code": 1, "requeued": True, "time": now()}
    (attempt / "end.json").write_text(json.dumps(document))
    slurm.write(jobs={"1": {"name": "rackweave-demo", "state": "PENDING", "exit": "0:0"}})
    result, _ = watch(until="attempt")
    assert (result["failed"], result["job_live"]) == (False, True)
    assert [item["document"]["attempt"] for item in result["ended"]] == ["1.0"]
    kept = json.loads((attempt / "verdict.json").read_text())
    assert (kept["culprit"], kept["state"]) == ("rank:0", "REQUEUED")
    assert "starts again" in kept["sentence"]


def test_a_run_without_a_job_names_the_playbook(watch, shared):
    result, _ = watch()
    assert result["failed"]
    assert "run playbooks/launch.yml first" in result["msg"]


def test_a_controller_of_slurm_that_does_not_answer_is_waited_for(watch, attempt, slurm):
    job = slurm.read()["jobs"]

    def during(pauses):
        slurm.write(jobs={} if pauses < 4 else job)
        if pauses == 5:
            end_job(attempt, slurm, "COMPLETED", 0)

    result, _ = watch(during)
    assert result["failed"] is False


def test_events_are_read_from_an_offset_and_never_twice(run_module, slurm, attempt, shared):
    path = attempt / "events.jsonl"
    path.write_text(step(1, 3.0) + step(2, 2.9) + '{"half')
    arguments = {"run_dir": str(shared / "runs" / "demo")}
    first = run_module("run_state", **arguments)
    assert first["events"].count("\n") == 2
    with path.open("a") as stream:
        stream.write('": 1}\n')
    second = run_module("run_state", **arguments, offset=first["offset"])
    assert second["events"] == '{"half": 1}\n'


def test_all_runs_are_listed_with_what_is_known(run_module, slurm, attempt, shared):
    (attempt / "events.jsonl").write_text(step(7, 2.5))
    (shared / "runs" / "never").mkdir()
    table = run_module("run_list", runs_dir=str(shared / "runs"))["table"]
    assert table[0].split()[:4] == ["run", "job", "state", "step"]
    assert table[1].split()[:4] == ["demo", "1", "RUNNING", "7/200"]
    assert "not launched" in table[2]


MEGATRON = (
    " [2026-01-05 10:00:{second:02d}.000000] iteration {step:8d}/     200 | consumed samples: 8 | elapsed time per "
    "iteration (ms): 1500.0 | learning rate: 1.0E-04 | global batch size: 8 | lm loss: {loss:.6E} | loss scale: 1.0 | "
    "grad norm: 1.2 |\n"
)


@pytest.mark.parametrize("checked", [True, False])
def test_a_foreign_program_is_watched_from_its_logs_alone(watch, attempt, slurm, checked):
    """It writes no events, no phases and no results; torchrun's logs of its ranks are all there is.

    What the launcher's own check of the environment leaves among the events is not the program's.
    """
    if checked:
        (attempt / "events.jsonl").write_text(event("environment", host="node-b", sentence="all arrived", findings=[]))
    log = attempt / "logs" / "node-a" / "3" / "stdout.log"
    log.parent.mkdir(parents=True)
    (attempt / "logs" / "node-b" / "0").mkdir(parents=True)
    (attempt / "logs" / "node-b" / "0" / "stdout.log").write_text("building GPT model ...\n")

    def during(pauses):
        if pauses <= 4:
            with log.open("a") as stream:
                stream.write(MEGATRON.format(step=pauses * 2, loss=3.0 - pauses * 0.25, second=pauses * 3))
        if pauses == 6:
            end_job(attempt, slurm, "COMPLETED", 0)

    result, lines = watch(during)
    assert result["failed"] is False
    assert (result["first_step"], result["last_step"]) == (2, 8)
    assert any("step 4/200 | loss 2.5000" in line for line in lines)
    assert len([line for line in lines if "step 4/200" in line]) == 1
    page = Path(result["report"]).read_text()
    assert "step</span><b>8 of 200" in page


@pytest.fixture
def printing(attempt):
    """A foreign program that prints steps; returns what appends some with a loss to its log."""
    log = attempt / "logs" / "node-a" / "3" / "stdout.log"
    log.parent.mkdir(parents=True)
    log.touch()

    def prints(steps, loss):
        with log.open("a") as stream:
            stream.writelines(MEGATRON.format(step=step, loss=loss, second=step % 60) for step in steps)

    return prints


@pytest.mark.parametrize("stop_ok", [True, False])
def test_a_foreign_program_that_trains_on_without_a_loss_is_stopped_only_with_consent(
    watch, printing, slurm, on_submit_host, stop_ok
):
    nan = float("nan")

    def during(pauses):
        if pauses == 1:
            printing(range(1, 11), 2.5)
        if pauses == 2:
            printing(range(11, 31), nan)
        if pauses == 3:
            assert "scancel" not in slurm.commands()  # a loss that is lost for twenty steps may come back
            printing(range(31, 51), nan)
        if pauses == 6:
            slurm.write(jobs={"1": {"name": "rackweave-demo", "state": "CANCELLED", "exit": "0:0"}})

    result, lines = watch(during, stop_ok=stop_ok)
    words = "the loss is no number since step 11, for 40 steps"
    assert sum(words in line and "names" not in line and "msg" not in line for line in lines) == 1
    assert ("scancel" in slurm.commands()) is stop_ok
    if stop_ok:
        assert (result["state"], result["diagnosis_class"], result["culprit"]) == ("CANCELLED", "num.nan", "none")
        names = [name for name, _ in on_submit_host]
        assert names.index("job_logs") < names.index("job_control")
    else:
        assert any("switched off (training_job_stop_ok)" in line for line in lines)


def test_evidence_is_asked_for_before_a_job_without_a_loss_is_stopped(watch, printing, attempt, slurm, on_submit_host):
    printing(range(1, 11), 2.5)
    printing(range(11, 61), float("nan"))
    asked, _ = watch(collect_hosts=2)
    assert asked["wanted"]["hosts"] == ["node-b", "node-a"]
    assert "job_control" not in [name for name, _ in on_submit_host]
    evidence = attempt / "evidence" / "node-a"
    evidence.mkdir(parents=True)
    (evidence / "collectors.json").write_text("{}")
    result, _ = watch(collect_hosts=2, collected=["1.0"])
    assert (result["state"], result["diagnosis_class"]) == ("CANCELLED", "num.nan")


def test_a_foreign_program_is_listed_with_what_its_watcher_wrote_last(run_module, slurm, attempt, shared):
    kept = json.loads((CONTRACTS / "status.json").read_text())
    (shared / "runs" / "demo" / "status.json").write_text(json.dumps({**kept, "job_id": "1", "step": 8, "loss": 2.0}))
    row = run_module("run_list", runs_dir=str(shared / "runs"))["runs"][0]
    assert (row["state"], row["step"]) == ("RUNNING", 8)


def test_a_foreign_program_that_fails_is_diagnosed_from_its_logs(watch, attempt, slurm):
    log = attempt / "logs" / "node-a" / "3" / "stderr.log"
    log.parent.mkdir(parents=True)
    log.write_text("[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total "
                   "capacity of 79.11 GiB of which 1.00 GiB is free.\n")  # fmt: skip
    end_job(attempt, slurm, "FAILED", 64, "torchrun ended with status 1 and no rank wrote a result")
    result, _ = watch()
    assert (result["failed"], result["diagnosis_class"]) == (True, "mem.cuda_oom")
    assert "rank:3" in result["culprit"]
