"""Which files of a unit are in force, and which wait on disk."""

import subprocess

import pytest

from tests.testinfra import unit_files


@pytest.fixture
def paths(tmp_path):
    """Return two directories of a search path, the first before the second, with a unit in the second."""
    high, low = tmp_path / "etc", tmp_path / "lib"
    for directory in (high, low):
        directory.mkdir()
    (low / "munge.service").write_text("[Service]\n")
    return [str(high), str(low)]


@pytest.fixture
def systemd(monkeypatch, paths):
    """Return a function that says what systemd has in force."""

    def has(drop_ins="", names="munge.service"):
        text = f"Id=munge.service\nNames={names}\nFragmentPath={paths[1]}/munge.service\nDropInPaths={drop_ins}\n"
        monkeypatch.setattr(unit_files.subprocess, "run", lambda *a, **k: subprocess.CompletedProcess(a, 0, text, ""))

    return has


def write(*parts, text="[Service]\n"):
    path = unit_files.Path(*parts)
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return str(path)


def only_on_disk(paths):
    return unit_files.differences("munge.service", paths)["only on disk"]


def test_a_unit_as_it_was_read_differs_in_nothing(systemd, paths):
    systemd(drop_ins=write(paths[0], "munge.service.d", "site.conf"))
    assert unit_files.differences("munge.service", paths) == {"only in force": [], "only on disk": []}


@pytest.mark.parametrize("directory", ["munge.service.d", "service.d"])
def test_a_drop_in_of_a_new_directory_is_found(systemd, paths, directory):
    systemd()
    planted = write(paths[0], directory, "x.conf")
    assert only_on_disk(paths) == [planted]


def test_a_drop_in_of_another_name_of_the_unit_is_found(systemd, paths):
    systemd(names="munge.service munged.service")
    planted = write(paths[0], "munged.service.d", "x.conf")
    assert only_on_disk(paths) == [planted]


def test_a_drop_in_that_was_removed_is_found(systemd, paths):
    systemd(drop_ins=f"{paths[0]}/munge.service.d/gone.conf")
    assert unit_files.differences("munge.service", paths)["only in force"]


def test_a_unit_that_hides_the_one_in_force_is_found(systemd, paths):
    systemd()
    planted = write(paths[0], "munge.service")
    assert only_on_disk(paths) == [planted]


def test_of_two_drop_ins_with_one_name_the_first_directory_counts(systemd, paths):
    first = write(paths[0], "munge.service.d", "x.conf")
    write(paths[1], "munge.service.d", "x.conf")
    systemd(drop_ins=first)
    assert only_on_disk(paths) == []


def test_a_drop_in_that_was_masked_is_not_expected(systemd, paths):
    write(paths[1], "munge.service.d", "x.conf")
    unit_files.Path(paths[0], "munge.service.d").mkdir()
    unit_files.Path(paths[0], "munge.service.d", "x.conf").symlink_to("/dev/null")
    systemd()
    assert only_on_disk(paths) == []


def test_a_unit_with_dashes_takes_the_drop_ins_of_its_prefixes():
    assert unit_files.drop_in_directories("a-b-c.service") == [
        "a-b-c.service.d", "a-b-.service.d", "a-.service.d", "service.d",
    ]  # fmt: skip
    assert unit_files.drop_in_directories("getty@tty1.service") == [
        "getty@tty1.service.d", "getty@.service.d", "service.d",
    ]  # fmt: skip
