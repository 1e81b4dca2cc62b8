"""Exit codes, and the copy of the table that runs on nodes."""

import importlib.util
from pathlib import Path

import pytest
from rackweave.run import exit_codes

LAUNCH = Path(__file__).parents[4] / "roles" / "training_job" / "files" / "launch.py"


@pytest.fixture
def launch():
    spec = importlib.util.spec_from_file_location("node_launch", LAUNCH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_launcher_on_the_node_knows_the_same_codes_in_the_same_order(launch):
    assert launch.SEVERITY == exit_codes.SEVERITY
    for codes in ([], [0, 77], [75, 64], [75, 76], [0, 139], [1], [77, 75]):
        assert launch.worst(codes) == exit_codes.worst(codes)


def test_an_application_error_explains_lost_connections():
    assert exit_codes.worst([75, 64, 76, 0]) == 64


def test_a_foreign_status_counts_as_a_retry():
    assert exit_codes.worst([0, 137]) == 75


@pytest.mark.parametrize(("code", "words"), [(137, "killed by signal 9"), (2, "none of ours"), (76, "other nodes")])
def test_each_status_has_words(code, words):
    assert words in exit_codes.meaning(code)


def test_ports_differ_between_restarts_and_stay_below_the_ephemeral_range(launch):
    ports = {launch.port(job, restart) for job in (1, 2, 1499, 123456) for restart in range(8)}
    assert len(ports) == 32
    assert min(ports) >= 20000
    assert max(ports) < 32000
