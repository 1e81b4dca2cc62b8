"""How jobs end that do not run to their planned end."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.attempts import MODEL, events, losses, make_attempt, sizes
from tests.support.launch import ForkServer, Running
from tests.support.verdicts import verdict_of

pytestmark = pytest.mark.multiprocess
STEP_PHASES = ("forward", "backward", "optimizer_step")


def result(attempt: Path, rank: int) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((attempt / f"result/{rank}.json").read_text())
    return content


def wait_for_step(attempt: Path, step: int, running: Running) -> None:
    """Wait until a step is done."""
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        if (attempt / "events.jsonl").exists() and len(losses(attempt)) >= step:
            return
        time.sleep(0.02)
    pytest.fail(f"step {step} was not reached: {running.wait(1, 0).logs[0][-2000:]}")


def wait_until(condition: Callable[[], object], look_every_s: float = 0.05) -> None:
    deadline = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(look_every_s)


def phase(attempt: Path, rank: int) -> str:
    return str(json.loads((attempt / f"phase/{rank}.json").read_text())["phase"])


def publishers_of(rank_pid: int) -> list[int]:
    """Return the processes that a rank has started for publishing."""
    found = []
    for pid in Path(f"/proc/{rank_pid}/task/{rank_pid}/children").read_text().split():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(int(pid))
    return found


def test_a_killed_rank_makes_its_peers_end_for_a_retry_with_their_collectives_dumped(
    launcher: ForkServer, corpus: Path, tmp_path: Path
) -> None:
    attempt = make_attempt(tmp_path / "attempt", corpus, MODEL, sizes(dp=2), steps=5000)
    running = launcher.start(attempt, 2)
    wait_for_step(attempt, 2, running)
    running.signal(1, signal.SIGKILL)
    assert running.wait().codes == [75, -9]
    assert result(attempt, 0)["exit"] == "retry"
    assert not (attempt / "result/1.json").exists()
    assert (attempt / "flight/0.pickle").stat().st_size > 0


def test_a_hung_rank_is_given_up_after_the_one_time_out_by_every_group(
    launcher: ForkServer, corpus: Path, tmp_path: Path
) -> None:
    attempt = make_attempt(
        tmp_path / "attempt", corpus, MODEL, sizes(2, 2, 1), steps=5000, timeouts={"collective_s": 10}
    )
    running = launcher.start(attempt, 4)
    wait_for_step(attempt, 2, running)
    wait_until(lambda: phase(attempt, 3) in STEP_PHASES)  # written twice a second: it may still tell of the start
    running.signal(3, signal.SIGSTOP)
    began = time.monotonic()
    ended = running.wait(lost=[3])
    assert ended.codes == [75, 75, 75, -9]
    assert time.monotonic() - began < 90  # the time-out where the job says none
    assert {result(attempt, rank)["exit"] for rank in range(3)} == {"retry"}
    assert phase(attempt, 3) in STEP_PHASES


def test_sigterm_ends_a_rank_at_once_also_inside_a_collective(
    launcher: ForkServer, corpus: Path, tmp_path: Path
) -> None:
    attempt = make_attempt(tmp_path / "attempt", corpus, MODEL, sizes(dp=2), steps=5000)
    running = launcher.start(attempt, 2)
    wait_for_step(attempt, 2, running)
    running.signal(1, signal.SIGSTOP)
    time.sleep(0.5)
    began = time.monotonic()
    running.signal(0, signal.SIGTERM)
    assert running.wait(lost=[1]).codes == [75, -9]
    assert time.monotonic() - began < 60  # a collective would wait for 90
    assert "ended by SIGTERM in phase" in result(attempt, 0)["reason"]


@pytest.mark.parametrize("how", ["file", "signal"])
def test_a_request_to_save_and_exit_loses_no_step(how: str, launcher: ForkServer, corpus: Path, tmp_path: Path) -> None:
    attempt = make_attempt(tmp_path / "attempt1", corpus, MODEL, sizes(dp=2), steps=5000)
    running = launcher.start(attempt, 2)
    wait_for_step(attempt, 3, running)
    if how == "file":
        (attempt / "save-and-exit").touch()
    else:
        running.signal(1, signal.SIGUSR1)
    assert running.wait().codes == [77, 77]
    done = len(losses(attempt))
    assert done < 5000
    assert [result(attempt, rank)["step"] for rank in (0, 1)] == [done, done]
    resumed = make_attempt(tmp_path / "attempt2", corpus, MODEL, sizes(dp=2), steps=done + 2)
    launcher.run(resumed, 2).assert_done()
    assert [event["step"] for event in events(resumed, "step")] == [done + 1, done + 2]


def test_signals_during_the_save_that_was_asked_for_change_nothing(
    launcher: ForkServer, corpus: Path, tmp_path: Path
) -> None:
    attempt = make_attempt(tmp_path / "attempt", corpus, MODEL, sizes(dp=2), steps=5000)
    running = launcher.start(attempt, 2)
    wait_for_step(attempt, 2, running)
    running.signal(0, signal.SIGUSR1)
    wait_until(lambda: list((tmp_path / "checkpoints").glob("step_*")), look_every_s=0.002)
    for rank in (0, 1):
        running.signal(rank, signal.SIGUSR1)
    assert running.wait().codes == [77, 77]
    done = result(attempt, 0)["step"]
    assert (tmp_path / f"checkpoints/step_{done}/validated.json").exists()


def test_the_end_of_a_publishing_process_is_told_and_stops_the_job(
    launcher: ForkServer, corpus: Path, tmp_path: Path
) -> None:
    saving = {"interval": 2, "mode": "async_process"}
    attempt = make_attempt(tmp_path / "attempt", corpus, MODEL, sizes(dp=2), steps=5000, checkpoint=saving)
    running = launcher.start(attempt, 2)
    wait_for_step(attempt, 3, running)
    wait_until(lambda: publishers_of(running.pids[1]))
    (publisher,) = publishers_of(running.pids[1])
    os.kill(publisher, signal.SIGKILL)
    assert running.wait().codes == [64, 64]
    assert "the publishing process of rank" in result(attempt, 1)["reason"]


def test_a_rank_on_another_host_than_planned_stops_all_before_the_model_is_built(
    launcher: ForkServer, corpus: Path, tmp_path: Path
) -> None:
    attempt = make_attempt(tmp_path / "attempt", corpus, MODEL, sizes(dp=2), host="node-z")
    ended = launcher.run(attempt, 2)
    assert ended.codes == [64, 64]
    assert "runs on host node-a (SLURMD_NODENAME), the plan puts it on node-z" in result(attempt, 0)["reason"]
    assert "model_build" not in {event["phase"] for event in events(attempt, "phase")}
    assert "refused" in json.loads((attempt / "placement/1.json").read_text())["device_check"]


def test_a_device_that_slurm_gave_otherwise_than_planned_stops_the_job(
    launcher: ForkServer, corpus: Path, tmp_path: Path
) -> None:
    attempt = make_attempt(tmp_path / "attempt", corpus, MODEL, sizes(dp=2))
    assert launcher.run(attempt, 2, CUDA_VISIBLE_DEVICES="1,0").codes == [64, 64]
    assert "was given the device 1 by CUDA_VISIBLE_DEVICES=1,0" in result(attempt, 0)["reason"]


def test_two_jobs_in_one_checkpoint_directory_refuse_each_other(
    launcher: ForkServer, corpus: Path, tmp_path: Path
) -> None:
    other = ForkServer()
    try:
        first = make_attempt(tmp_path / "attempt1", corpus, MODEL, sizes(zero_stage=1), steps=5000)
        running = launcher.start(first, 1)
        wait_for_step(first, 1, running)
        second = make_attempt(tmp_path / "attempt2", corpus, MODEL, sizes(zero_stage=1))
        assert other.run(second, 1).codes == [64]
        assert "is in use by another job" in result(second, 0)["reason"]
        running.signal(0, signal.SIGTERM)
        running.wait()
    finally:
        other.close()


SMALL_SHM = "tests.support.ranks:train_with_small_shared_memory"


def guarded(
    launcher: ForkServer, corpus: Path, where: Path, policy: dict[str, Any], planted: dict[int, float], **changes: Any
) -> tuple[Path, list[int]]:
    attempt = make_attempt(where / "attempt", corpus, MODEL, sizes(dp=2), guard=policy, **changes)
    call = "tests.support.ranks:train_with_losses"
    return attempt, launcher.call(call, attempt, 2, attempt=str(attempt), planted=planted).codes


def test_a_loss_that_is_no_number_stops_the_job_by_default(launcher: ForkServer, corpus: Path, tmp_path: Path) -> None:
    attempt, codes = guarded(launcher, corpus, tmp_path, {"policy": "stop"}, {4: math.nan})
    assert codes == [64, 64]
    assert result(attempt, 0)["reason"] == "the loss of step 4 is nan"
    assert len(losses(attempt)) == 3


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a process another /dev/shm")
def test_a_full_shared_memory_ends_the_job_and_its_rank_is_named(
    launcher: ForkServer, corpus: Path, tmp_path: Path
) -> None:
    attempt = make_attempt(tmp_path / "attempt", corpus, MODEL, sizes(dp=2))
    ended = launcher.call(SMALL_SHM, attempt, 2, attempt=str(attempt), rank=1, at=3)
    assert ended.codes[1] == 64, ended.logs[1][-2000:]
    verdict = verdict_of(attempt, dict(enumerate(ended.logs)))
    assert (verdict["diagnosis_class"], verdict["culprit"]) == ("mem.shm_exhausted", "rank:1"), verdict


@pytest.mark.parametrize(("damaged", "named"), [([3], [3]), ([0, 1, 2], None)])
def test_the_rank_whose_weights_are_no_numbers_is_named_but_not_once_most_are(
    launcher: ForkServer, corpus: Path, tmp_path: Path, damaged: list[int], named: list[int] | None
) -> None:
    attempt = make_attempt(tmp_path / "attempt", corpus, MODEL, sizes(dp=2, pp=2))
    call = "tests.support.ranks:train_with_damage"
    ended = launcher.call(call, attempt, 4, attempt=str(attempt), ranks=damaged, at=3)
    assert ended.codes == [64] * 4
    assert [result(attempt, rank).get("blames") for rank in range(4)] == [named] * 4
    assert ("of all ranks only 3 held" in result(attempt, 0)["reason"]) == (named is not None)
    verdict = verdict_of(attempt, dict(enumerate(ended.logs)))
    assert (verdict["diagnosis_class"], verdict["culprit"]) == ("num.nan", "rank:3" if named else "none")


def test_the_policy_skip_drops_that_batch_only(launcher: ForkServer, corpus: Path, tmp_path: Path) -> None:
    attempt, codes = guarded(launcher, corpus, tmp_path, {"policy": "skip"}, {4: math.inf})
    assert codes == [0, 0]
    assert losses(attempt)[3] is None
    assert [event["action"] for event in events(attempt, "guard")] == ["skip"]
    assert losses(attempt)[9] < losses(attempt)[2]


def test_the_policy_rollback_returns_to_the_checkpoint_and_goes_around_the_data(
    launcher: ForkServer, corpus: Path, tmp_path: Path
) -> None:
    saving = {"directory": str(tmp_path / "checkpoints"), "interval": 3, "keep": 2, "mode": "sync"}
    attempt, codes = guarded(launcher, corpus, tmp_path, {"policy": "rollback"}, {5: math.nan}, checkpoint=saving)
    assert codes == [0, 0]
    assert [event["step"] for event in events(attempt, "step")] == [1, 2, 3, 4, 5, 4, 5, 6, 7, 8, 9, 10]
    assert losses(attempt)[5] != losses(attempt)[3]
    state = json.loads((tmp_path / "checkpoints/step_10/state.json").read_text())
    assert state["samples"] == (10 + 2) * 8


def test_a_spike_is_skipped_once_the_level_is_known(launcher: ForkServer, corpus: Path, tmp_path: Path) -> None:
    policy = {"policy": "skip", "spike_factor": 2.0}
    attempt, codes = guarded(launcher, corpus, tmp_path, policy, {2: 3.0, 12: 3.0}, steps=14)
    assert codes == [0, 0]
    assert [event["step"] for event in events(attempt, "guard")] == [12]


def test_a_disk_that_fills_up_ends_the_job_with_its_reason_and_the_last_checkpoint_whole(
    launcher: ForkServer, corpus: Path, tmp_path: Path
) -> None:
    bare = make_attempt(tmp_path / "bare" / "attempt", corpus, MODEL, sizes(dp=2), steps=1)
    launcher.run(bare, 2).assert_done()
    size = sum(path.stat().st_size for path in (tmp_path / "bare/checkpoints/step_1").rglob("*") if path.is_file())
    where = tmp_path / "small"
    where.mkdir()
    # Retention keeps two, so the third save has nowhere to go.
    options = f"size={int(2.6 * size) // 4096 * 4096}"
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(where)], check=False).returncode:
        pytest.skip("only root can mount a small file system")
    try:
        saving = {"directory": str(where), "interval": 3, "keep": 2, "mode": "async_thread"}
        attempt = make_attempt(tmp_path / "attempt", corpus, MODEL, sizes(dp=2), steps=60, checkpoint=saving)
        ended = launcher.run(attempt, 2)
        assert ended.codes == [64, 64]
        verdict = verdict_of(attempt, dict(enumerate(ended.logs)))
        assert (verdict["diagnosis_class"], verdict["culprit"]) == ("ckpt.write_failed", "none")
        assert "No space left on device" in result(attempt, 0)["reason"]
        states = [(event["step"], event["state"]) for event in events(attempt, "checkpoint")]
        assert (9, "failed") in states
        assert (where / "latest").read_text().strip() == "step_6"
        shutil.rmtree(where / "step_3")
        resumed = make_attempt(tmp_path / "again", corpus, MODEL, sizes(dp=2), steps=7, checkpoint=saving)
        launcher.run(resumed, 2).assert_done()
        assert [event["step"] for event in events(resumed, "step")] == [7]
    finally:
        subprocess.run(["umount", "--lazy", str(where)], check=True)


def test_a_log_of_events_that_cannot_be_written_stops_the_job_in_a_sentence(
    launcher: ForkServer, corpus: Path, tmp_path: Path
) -> None:
    attempt = make_attempt(tmp_path / "attempt", corpus, MODEL, sizes(zero_stage=1))
    (attempt / "events.jsonl").symlink_to("/dev/full")
    ended = launcher.run(attempt, 1)
    assert ended.codes == [64]
    assert "events.jsonl cannot be written: [Errno 28] No space left on device" in result(attempt, 0)["reason"]
    assert "Traceback" not in ended.logs[0]
