"""Files that commands read and write: whole or not at all, and one sentence that names the file."""

import os
import resource
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest
from rackweave.cli.json_files import append_lines, read_json, read_text, replace_file, write_files
from rackweave.errors import DocumentError


@contextmanager
def full_disk(size_bytes):
    """Let this process write no file beyond a size, which fails as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_what_cannot_be_written_leaves_the_old_text_and_nothing_else(tmp_path):
    path = tmp_path / "page.html"
    path.write_text("old")
    with full_disk(1000), pytest.raises(DocumentError, match=r"page\.html cannot be written: "):
        replace_file(path, "x" * 5000)
    assert path.read_text() == "old"
    assert [item.name for item in tmp_path.iterdir()] == ["page.html"]


def killed_while_writing(path):
    """Leave what a writer leaves that is killed before its file stands in its place."""
    words = (
        "import os, signal, sys; from rackweave.cli.json_files import replace_file; "
        "os.fsync = lambda number: os.kill(os.getpid(), signal.SIGKILL); replace_file(sys.argv[1], 'half')"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    assert (
        subprocess.run([sys.executable, "-c", words, path], env=environment, check=False).returncode == -signal.SIGKILL
    )


def parts(directory):
    return [path.name for path in directory.iterdir() if path.name.endswith(".rackweave-part")]


def test_the_next_writer_removes_what_one_left_that_was_killed(tmp_path):
    (tmp_path / "a.json").write_text("old")
    killed_while_writing(tmp_path / "a.json")
    assert (tmp_path / "a.json").read_text() == "old"
    assert len(parts(tmp_path)) == 1
    assert parts(tmp_path)[0].startswith(".")  # nobody takes it for a document
    write_files(str(tmp_path), {"b.json": "new"})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "b.json"]


def test_a_writer_leaves_alone_what_another_one_is_writing(tmp_path, monkeypatch):
    killed_while_writing(tmp_path / "a.json")
    waits, may_go_on, to_disk = threading.Event(), threading.Event(), os.fsync

    def slow(number):
        waits.set()
        assert may_go_on.wait(120)
        to_disk(number)

    monkeypatch.setattr(os, "fsync", slow)
    first = threading.Thread(target=replace_file, args=(tmp_path / "a.json", "first"))
    first.start()
    assert waits.wait(120)
    monkeypatch.setattr(os, "fsync", to_disk)
    assert len(parts(tmp_path)) == 1  # that of the killed one is gone
    replace_file(tmp_path / "a.json", "second")
    replace_file(tmp_path / "b.json", "second")
    assert len(parts(tmp_path)) == 1
    may_go_on.set()
    first.join()
    assert (tmp_path / "a.json").read_text() == "first"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "b.json"]


def test_a_file_behind_a_link_is_replaced_and_the_link_stays(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    assert replace_file(tmp_path / "link", "new") is True
    assert replace_file(tmp_path / "link", "new") is False
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_a_device_is_written_to_and_its_error_is_a_sentence():
    assert replace_file("/dev/null", "text") is True
    with pytest.raises(DocumentError, match="/dev/full cannot be written: No space left"):
        replace_file("/dev/full", "text")


def test_a_pipe_behind_the_standard_output_is_written_to():
    words = "import sys; from rackweave.cli.json_files import replace_file; replace_file('/dev/stdout', 'text')"
    path = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": path}
    found = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, env=environment, check=False)
    assert (found.returncode, found.stdout, found.stderr) == (0, "text", "")


@pytest.mark.parametrize("rights", [0o600, 0o664])
def test_a_file_that_is_replaced_keeps_its_rights(tmp_path, rights):
    path = tmp_path / "page.html"
    path.write_text("old")
    path.chmod(rights)
    replace_file(path, "new")
    assert (path.read_text(), path.stat().st_mode & 0o7777) == ("new", rights)


def test_half_of_a_surrogate_pair_is_written_as_json_spells_it(tmp_path):
    replace_file(tmp_path / "page", '"\ud800"')
    assert read_json(tmp_path / "page") == "\ud800"


def test_a_file_in_the_place_of_a_directory_is_named(tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(DocumentError, match="out cannot be made: File exists"):
        write_files(str(tmp_path / "out"), {"a": "b"})


def test_lines_are_appended_whole_or_not_at_all(tmp_path):
    path = tmp_path / "journal.jsonl"
    append_lines(path, "one\n")
    with full_disk(1000), pytest.raises(DocumentError, match=r"journal\.jsonl cannot be written: "):
        append_lines(path, "x" * 5000 + "\n")
    append_lines(path, "two\n")
    assert path.read_text() == "one\ntwo\n"


@pytest.mark.parametrize("torn", ['{"half', "x" * 10_000])
@pytest.mark.parametrize("before", ["", "one\n", "one\n" + "y" * 9_000 + "\n"])
def test_a_torn_last_line_is_taken_away_before_more_is_appended(tmp_path, before, torn):
    path = tmp_path / "journal.jsonl"
    path.write_text(before + torn)
    append_lines(path, "two\n")
    assert path.read_text() == before + "two\n"


def test_a_whole_last_line_that_an_editor_left_without_an_end_is_kept(tmp_path):
    path = tmp_path / "journal.jsonl"
    path.write_text('{"a": 1}\n{"b": 2}')
    append_lines(path, '{"c": 3}\n')
    assert path.read_text() == '{"a": 1}\n{"b": 2}\n{"c": 3}\n'


def test_several_writers_lose_no_line(tmp_path):
    path = tmp_path / "journal.jsonl"
    writers = [
        threading.Thread(target=lambda name=name: [append_lines(path, f"{name} {n}\n") for n in range(20)])
        for name in range(4)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert sorted(path.read_text().splitlines()) == sorted(f"{name} {n}" for name in range(4) for n in range(20))


@pytest.mark.parametrize(
    ("content", "words"), [(b"\xff", "no UTF-8 text"), (b"{", "is not JSON"), (b"[" * 100_000, "is not JSON")]
)
def test_a_file_that_is_no_json_is_named(tmp_path, content, words):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(DocumentError, match=rf"a\.json.*{words}"):
        read_json(tmp_path / "a.json")


def test_a_directory_and_a_link_to_itself_are_named(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(DocumentError, match="loop: Too many levels"):
        read_text(tmp_path / "loop")
    with pytest.raises(DocumentError, match="Is a directory"):
        read_text(tmp_path)
