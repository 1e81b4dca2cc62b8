"""A checkpoint directory never shows anything but whole checkpoints, whatever happens while one is written."""

from __future__ import annotations

import errno
import json
import os
import pickle
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.saver import NAMES, Saver, save_steps, snapshot, value
from trainer.checkpoint import storage
from trainer.checkpoint.__main__ import main
from trainer.checkpoint.directory import CheckpointDirectory, Published
from trainer.checkpoint.publish import Publisher, Snapshot, Writers
from trainer.checkpoint.rectangles import Rectangle, Shards
from trainer.checkpoint.storage import HashingStream, RestrictedReader
from trainer.checkpoint.verify import Share, check_published, manifests, read_tensor, seal
from trainer.errors import RetryError, StopError

STEPS = ["begin", "write", "manifest", "check", "metadata", "rename", "validate", "validated", "latest", "retire"]


@pytest.fixture(scope="module")
def saver() -> Iterator[Saver]:
    """A process that saves and dies."""
    process = Saver()
    yield process
    process.close()


def newest_whole(where: Path) -> Published | None:
    """Return what a resuming job would choose."""
    for checkpoint in CheckpointDirectory(where, "torture").published():
        try:
            check_published(checkpoint.path)
        except StopError:
            continue
        return checkpoint
    return None


def assert_content(checkpoint: Published) -> None:
    metadata = RestrictedReader(checkpoint.path).read_metadata()
    for name in NAMES:
        stored: Any = metadata.state_dict_metadata[name]
        assert torch.equal(read_tensor(checkpoint.path, name, stored), value(name, checkpoint.step))


@pytest.mark.multiprocess
@pytest.mark.parametrize("at", STEPS)
def test_a_kill_at_any_step_leaves_the_newest_published_one_loadable(at: str, saver: Saver, tmp_path: Path) -> None:
    save_steps(tmp_path, range(1, 3), lambda name: None)
    saver.start(tmp_path, range(3, 4), die_at=at)
    assert saver.wait() == -signal.SIGKILL
    found = newest_whole(tmp_path)
    assert found is not None
    assert found.step == (3 if STEPS.index(at) > STEPS.index("rename") else 2)
    assert_content(found)
    pointer = CheckpointDirectory(tmp_path, "torture").latest()
    assert pointer is not None
    check_published(tmp_path / pointer)


def test_after_a_kill_the_next_job_cleans_up_and_saves_again(saver: Saver, tmp_path: Path) -> None:
    saver.start(tmp_path, range(1, 2), die_at="metadata")
    saver.wait()
    assert (tmp_path / "step_1.tmp").is_dir()
    save_steps(tmp_path, range(1, 3), lambda name: None)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["step_1", "step_2"]


@pytest.mark.multiprocess
@pytest.mark.parametrize("kills", [25, pytest.param(200, marks=pytest.mark.long)])
def test_random_kills_lose_nothing_that_was_published(kills: int, saver: Saver, tmp_path: Path) -> None:
    where, record = tmp_path / "checkpoints", tmp_path / "record"
    record.touch()
    chance = random.Random(11)
    began = time.monotonic()
    saver.start(where, range(1, 4), record=record)
    saver.wait()
    # As long as three steps take on this machine now, and what it learns, so that kills fall into every part of a save.
    longest = time.monotonic() - began
    for _ in range(kills):
        done = [int(line) for line in record.read_text().split()]
        first = (done[-1] if done else 0) + 1
        child = saver.start(where, range(first, first + 500), record=record)
        time.sleep(chance.uniform(0.0, longest))
        os.kill(child, signal.SIGKILL)
        assert saver.wait() == -signal.SIGKILL
        published = [int(line) for line in record.read_text().split()]
        longest *= 1.2 if len(published) == len(done) else 0.95
        if published:
            found = newest_whole(where)
            assert found is not None
            assert found.step >= published[-1]
            assert_content(found)
    assert len(published) > kills / 4


@pytest.mark.parametrize("damage", ["flip", "truncate", "delete", "metadata", "manifest", "state"])
def test_damage_is_found_and_the_one_before_is_chosen(damage: str, tmp_path: Path) -> None:
    save_steps(tmp_path, range(1, 3), lambda name: None)
    newest = tmp_path / "step_2"
    shard = newest / "__0_0.distcp"
    if damage == "flip":
        content = bytearray(shard.read_bytes())
        content[len(content) // 3] ^= 0x10
        shard.write_bytes(content)
    elif damage == "truncate":
        os.truncate(shard, shard.stat().st_size - 1)
    else:
        names = {"metadata": ".metadata", "manifest": "manifest/0.json", "state": "state.json"}
        (newest / names.get(damage, "__0_0.distcp")).unlink()
    with pytest.raises(StopError, match="step_2"):
        check_published(newest)
    found = newest_whole(tmp_path)
    assert found is not None
    assert found.step == 1


def test_a_byte_flipped_anywhere_is_found(tmp_path: Path) -> None:
    save_steps(tmp_path, range(1, 2), lambda name: None)
    newest, chance, missed = tmp_path / "step_1", random.Random(5), []
    for path in sorted(file for file in newest.rglob("*") if file.is_file() and file.name != "validated.json"):
        content = path.read_bytes()
        for place in {0, len(content) - 2, *(chance.randrange(len(content) - 1) for _ in range(12))}:
            damaged = bytearray(content)
            damaged[place] ^= 1 << chance.randrange(8)
            path.write_bytes(damaged)
            try:
                check_published(newest)
                missed.append((path.name, place))
            except StopError:
                pass
        path.write_bytes(content)
    check_published(newest)
    # Of the seal itself a few bytes mean nothing: its schema, and blanks.
    assert {name for name, _ in missed} <= {"seal.json"}
    assert len(missed) < 6


@pytest.mark.parametrize("content", [b"", b"abc", b"\x80\x04."])
def test_metadata_that_is_no_pickle_is_damage_like_any_other(content: bytes, tmp_path: Path) -> None:
    save_steps(tmp_path, range(1, 3), lambda name: None)
    (tmp_path / "step_2/seal.json").unlink()
    (tmp_path / "step_2/.metadata").write_bytes(content)
    with pytest.raises(StopError, match=r"step_2/\.metadata cannot be read"):
        check_published(tmp_path / "step_2")
    found = newest_whole(tmp_path)
    assert found is not None
    assert found.step == 1


def test_a_full_disk_fails_the_save_and_leaves_no_half_written_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_steps(tmp_path, range(1, 2), lambda name: None)

    def full(self: HashingStream, view: memoryview) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(HashingStream, "_write_whole", full)
    with pytest.raises(RetryError, match=r"checkpoint of step 2 was not written: .*No space left on device"):
        save_steps(tmp_path, range(2, 3), lambda name: None)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["step_1"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_what_a_writing_thread_could_not_write_fails_the_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "THREADS_FROM_BYTES", 0)
    write = HashingStream._write_whole

    def fill_up(self: HashingStream, view: memoryview) -> None:
        # DCP deals files out to threads; whichever gets the second one meets the end of the disk.
        if str(self._file.name).endswith("__0_1.distcp"):
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, view)

    save_steps(tmp_path, range(1, 2), lambda name: None)
    assert len(list((tmp_path / "step_1").glob("*.distcp"))) > 1
    monkeypatch.setattr(HashingStream, "_write_whole", fill_up)
    with pytest.raises(RetryError, match=r"checkpoint of step 2 was not written: .*No space left on device"):
        save_steps(tmp_path, range(2, 3), lambda name: None)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["step_1"]


def test_a_checkpoint_that_lacks_a_part_of_a_tensor_is_refused(tmp_path: Path) -> None:
    save_steps(tmp_path, range(1, 3), lambda name: None)
    path = tmp_path / "step_2"
    metadata = RestrictedReader(path).read_metadata()
    del metadata.storage_data[next(index for index in metadata.storage_data if index.fqn == NAMES[1])]
    (path / ".metadata").write_bytes(pickle.dumps(metadata))
    seal(path)
    with pytest.raises(StopError, match=rf"step_2 is incomplete: it lacks the part of {NAMES[1]} at \(0, 0\)"):
        check_published(path)
    found = newest_whole(tmp_path)
    assert found is not None
    assert found.step == 1


def test_a_disk_that_really_is_full_fails_the_save_and_keeps_the_one_before(tmp_path: Path) -> None:
    where = tmp_path / "small"
    where.mkdir()
    size = sum(facts["bytes"] for facts in _files_of_one_save(tmp_path / "measure").values())
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={2 * size // 4096 * 4096}", "tmpfs", str(where)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("only root can mount a small file system")
    try:
        save_steps(where, range(1, 2), lambda name: None)
        with pytest.raises(RetryError, match=r"checkpoint of step 2 was not written: .*No space left on device"):
            save_steps(where, range(2, 3), lambda name: None)
        assert sorted(path.name for path in where.iterdir() if path.is_dir()) == ["step_1"]
        assert CheckpointDirectory(where, "torture").latest() == "step_1"
        check_published(where / "step_1")
    finally:
        subprocess.run(["umount", "--lazy", str(where)], check=True)


def _files_of_one_save(where: Path) -> dict[str, Any]:
    save_steps(where, range(1, 2), lambda name: None)
    files: dict[str, Any] = manifests(where / "step_1")[0]["files"]
    return files


def test_shares_of_several_readers_cover_every_file_once() -> None:
    files = {f"__{rank}_0.distcp": {"bytes": 100 * rank} for rank in range(7)}
    dealt = [Share(index, 3).of(files) for index in range(3)]
    assert sorted(name for share in dealt for name in share) == sorted(files)
    assert max(map(len, dealt)) - min(map(len, dealt)) <= 1


def test_a_flipped_byte_between_write_and_read_back_keeps_the_pointer_on_the_one_before(tmp_path: Path) -> None:
    save_steps(tmp_path, range(1, 2), lambda name: None)

    def flip(name: str) -> None:
        if name == "validate":
            shard = tmp_path / "step_2/__0_0.distcp"
            content = bytearray(shard.read_bytes())
            content[100] ^= 1
            shard.write_bytes(content)

    with pytest.raises(RetryError, match="sha256 differs"):
        save_steps(tmp_path, range(2, 3), flip)
    assert CheckpointDirectory(tmp_path, "torture").latest() == "step_1"


def test_retention_keeps_the_last_validated_ones_the_pointer_and_the_start(tmp_path: Path) -> None:
    directory = CheckpointDirectory(tmp_path, "torture")
    directory.claim()
    publisher = Publisher(directory, Writers(), 2, lambda name: None, lambda *_, **__: None)
    publisher.publish(snapshot(1))
    publisher.started_from = frozenset({1})
    for step in (2, 3, 4, 5):
        publisher.publish(snapshot(step))
    assert [checkpoint.step for checkpoint in directory.published()] == [5, 4, 1]


def test_retention_leaves_links_and_what_another_run_wrote(tmp_path: Path) -> None:
    where, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    save_steps(where, range(3, 6), lambda name: None, keep=5)
    for step in (1, 2):
        shutil.copytree(where / "step_3", elsewhere / f"step_{step}")
    (where / "step_1").symlink_to(elsewhere / "step_1")
    shutil.copytree(elsewhere / "step_2", where / "step_2")
    state = json.loads((where / "step_2/state.json").read_text())
    (where / "step_2/state.json").write_text(json.dumps({**state, "run": "somebody else's"}))
    (where / "step_9.tmp").symlink_to(elsewhere)
    directory = CheckpointDirectory(where, "torture")
    assert directory.retire(keep=2, started_from=frozenset()) == ["step_3"]
    assert directory.remove_leftovers() == []
    assert sorted(path.name for path in where.glob("step_*")) == ["step_1", "step_2", "step_4", "step_5", "step_9.tmp"]
    assert (elsewhere / "step_1/state.json").is_file()


def test_a_kill_while_a_step_is_saved_again_leaves_the_first_one(saver: Saver, tmp_path: Path) -> None:
    save_steps(tmp_path, range(1, 4), lambda name: None)
    saver.start(tmp_path, range(3, 4), die_at="replaced")
    assert saver.wait() == -signal.SIGKILL
    assert not (tmp_path / "step_3").exists()
    directory = CheckpointDirectory(tmp_path, "torture")
    assert directory.remove_leftovers() == ["step_3.tmp"]
    assert directory.latest() == "step_3"
    found = newest_whole(tmp_path)
    assert found is not None
    assert found.step == 3
    assert_content(found)


def test_a_directory_that_cannot_be_written_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    with pytest.raises(
        StopError, match=r"the checkpoint directory .*file/checkpoints cannot be used: .*Not a directory"
    ):
        CheckpointDirectory(tmp_path / "file/checkpoints", "torture").claim()


def test_retention_counts_only_validated_checkpoints(tmp_path: Path) -> None:
    save_steps(tmp_path, range(1, 4), lambda name: None, keep=5)
    for step in (2, 3):
        (tmp_path / f"step_{step}/validated.json").unlink()
    assert CheckpointDirectory(tmp_path, "torture").retire(keep=2, started_from=frozenset()) == []


def test_somebody_elses_directory_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("do not delete")
    with pytest.raises(StopError, match=r"holds 'thesis\.tex' but no owner\.json"):
        CheckpointDirectory(tmp_path, "torture").claim()
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_directory_of_another_run_is_refused(tmp_path: Path) -> None:
    save_steps(tmp_path, range(1, 2), lambda name: None)
    with pytest.raises(StopError, match="belongs to the run 'torture', not to 'other'"):
        CheckpointDirectory(tmp_path, "other").claim()


def test_a_second_writer_is_refused_while_the_first_lives(tmp_path: Path) -> None:
    first = CheckpointDirectory(tmp_path, "torture")
    first.claim()
    with pytest.raises(StopError, match="is in use by another job"):
        CheckpointDirectory(tmp_path, "torture").claim()
    first.release()
    CheckpointDirectory(tmp_path, "torture").claim()


def test_a_directory_that_another_run_took_before_the_lock_was_free_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = CheckpointDirectory._take_lock

    def wait_and_take(self: CheckpointDirectory) -> None:
        monkeypatch.setattr(CheckpointDirectory, "_take_lock", take)
        save_steps(tmp_path, range(1, 2), lambda name: None)
        take(self)

    monkeypatch.setattr(CheckpointDirectory, "_take_lock", wait_and_take)
    with pytest.raises(StopError, match="belongs to the run 'torture', not to 'other'"):
        CheckpointDirectory(tmp_path, "other").claim()
    CheckpointDirectory(tmp_path, "torture").claim()


def test_metadata_that_wants_to_run_code_is_not_unpickled(tmp_path: Path) -> None:
    save_steps(tmp_path, range(1, 2), lambda name: None)
    (tmp_path / "step_1/seal.json").unlink()  # else the other bytes alone are refused
    (tmp_path / "step_1/.metadata").write_bytes(
        b"cos\nsystem\n(S'touch " + str(tmp_path / "owned").encode() + b"'\ntR."
    )
    with pytest.raises(StopError, match=r"wants (os|posix)\.system"):
        check_published(tmp_path / "step_1")
    assert not (tmp_path / "owned").exists()


def test_the_commands_list_verify_and_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_steps(tmp_path, range(1, 3), lambda name: None)
    assert main(["--json", "list", str(tmp_path)]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["step"], row["latest"], row["validated"]) for row in rows] == [(2, True, True), (1, False, True)]
    assert main(["verify", str(tmp_path)]) == 0
    assert main(["compare", str(tmp_path / "step_1"), str(tmp_path / "step_1")]) == 0
    assert main(["compare", str(tmp_path / "step_1"), str(tmp_path / "step_2")]) == 1
    os.truncate(tmp_path / "step_2/__0_0.distcp", 100)
    assert main(["verify", str(tmp_path)]) == 1
    assert "has 100 bytes" in capsys.readouterr().out
    assert main(["list", str(tmp_path / "nowhere")]) == 2


DAMAGED_SMALL_FILES = {
    "state": ("step_2/state.json", b'{"sizes": "x"}'),
    "nested": ("step_2/state.json", b"[" * 100_000),
    "files": ("step_2/manifest/0.json", b'{"world_size": 1, "rank": 0, "files": "abc"}'),
    "bytes": ("step_2/manifest/0.json", b'{"world_size": 1, "rank": 0, "files": {"a": {"bytes": "x"}}}'),
}


@pytest.mark.parametrize("damage", DAMAGED_SMALL_FILES)
def test_a_listing_says_which_checkpoint_is_damaged_and_goes_on(
    damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_steps(tmp_path, range(1, 3), lambda name: None)
    name, content = DAMAGED_SMALL_FILES[damage]
    (tmp_path / name).write_bytes(content)
    (tmp_path / "latest").write_bytes(b"\xff\xfe")
    assert main(["list", str(tmp_path)]) == 0
    newest, older = capsys.readouterr().out.splitlines()
    assert "damaged" in newest
    assert "MiB" in older
    assert main(["verify", str(tmp_path / "step_2")]) == 1


def test_a_comparison_is_of_bits_not_of_numbers(tmp_path: Path) -> None:
    strange = {"no-number": float("nan"), "zero": 0.0, "minus-zero": -0.0}
    paths = {}
    for name, number in strange.items():
        shards = Shards((4,))
        shards.rectangles.append(Rectangle((0,), torch.full((4,), number)))
        directory = CheckpointDirectory(tmp_path / name, "torture")
        directory.claim()
        publisher = Publisher(directory, Writers(), 2, lambda step: None, lambda *_, **__: None)
        publisher.publish(Snapshot(1, {"master.a": shards}, {"step": 1, "run": "torture"}, {}, bytes=16))
        directory.release()
        paths[name] = str(tmp_path / name / "step_1")
    assert main(["compare", paths["no-number"], paths["no-number"]]) == 0
    assert main(["compare", paths["zero"], paths["minus-zero"]]) == 1
