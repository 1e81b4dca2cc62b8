"""Faults of several families on real jobs: what must pass unnoticed, what is said while the job runs, what ends it.

The part of `make test-faults` that `make test` has time for; death and hang of a rank, and a watch that is killed and
attaches again, are in test_site.py.
"""

import json

import pytest

from tests.support.fault_run import FaultRun, Watch

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def run(lab):
    found = FaultRun(lab, "fault-families")
    found.prepare()
    yield found
    found.cancel()


@pytest.fixture
def watch(run):
    """A watch of a job that trains."""
    run.launch()
    found = Watch(run.name)
    try:
        found.wait_for("] step ", 240)
        yield found
    finally:
        found.stop()


def test_a_restart_of_slurmctld_passes_a_slow_rank_is_named_and_an_exception_ends_the_job(run, watch, tmp_path):
    run.inject("slurmctld restarted", 1, tmp_path / "restart.json")
    run.inject("slow rank", 1, tmp_path / "slow.json")
    _, line = watch.wait_for("perf.straggler: ", 300)
    rank = line.split("perf.straggler: rank ")[1].split()[0]
    assert "names " not in watch.output
    run.inject("exception in one rank", 1, tmp_path / "raise.json")
    assert watch.end(300) == 2, watch.output
    slow, raised = (json.loads((tmp_path / name).read_text()) for name in ("slow.json", "raise.json"))
    assert [f"rank:{rank}"] == slow["culprits"]
    verdict = run.verdict()
    assert [verdict["culprit"]] == raised["culprits"], verdict
    assert verdict["diagnosis_class"] == "app.exception", verdict
    assert set(verdict["collectors"]) == {"gpu01", "gpu02"}
    assert verdict["collectors"]["gpu01"]["processes"] == "ok"


def test_a_node_without_power_is_named_within_a_minute(run, watch, tmp_path):
    run.inject("power cut", 1, tmp_path / "record.json")
    record = json.loads((tmp_path / "record.json").read_text())
    try:
        when, line = watch.wait_for("] names ", 120)
        assert watch.end(300) == 2, watch.output
    finally:
        run.repair(record)
    assert f"names {record['culprits'][0]}: " in line
    # The limit is 30 s, which `make test-faults` measures; here other tests may hold up whoever looks.
    assert when - record["monotonic_s"] <= 60, watch.output
    assert run.verdict()["culprit"] == record["culprits"][0]
