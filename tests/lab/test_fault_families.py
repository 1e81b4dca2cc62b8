"""Faults of further families on one running job: what must pass unnoticed, what is said while it runs, what ends it.

Part of `make test-faults`; death and hang of a rank, in test_site.py, are part of `make test`.
"""

import json

import pytest

from tests.support.fault_run import FaultRun, Watch

pytestmark = [pytest.mark.lab, pytest.mark.faults, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def run(lab):
    found = FaultRun(lab, "fault-families")
    found.prepare()
    found.launch()
    yield found
    found.cancel()


def test_a_restart_of_slurmctld_passes_a_slow_rank_is_named_and_an_exception_ends_the_job(run, tmp_path):
    watch = Watch(run.name)
    try:
        watch.wait_for("] step ", 90)
        run.inject("slurmctld restarted", 1, tmp_path / "restart.json")
        run.inject("slow rank", 1, tmp_path / "slow.json")
        _, line = watch.wait_for("perf.straggler: ", 180)
        rank = line.split("perf.straggler: rank ")[1].split()[0]
        assert "names " not in watch.output
        run.inject("exception in one rank", 1, tmp_path / "raise.json")
        assert watch.end(180) == 2, watch.output
    finally:
        watch.stop()
    slow, raised = (json.loads((tmp_path / name).read_text()) for name in ("slow.json", "raise.json"))
    assert [f"rank:{rank}"] == slow["culprits"]
    verdict = run.verdict()
    assert [verdict["culprit"]] == raised["culprits"], verdict
    assert verdict["diagnosis_class"] == "app.exception", verdict
    assert set(verdict["collectors"]) == {"gpu01", "gpu02"}
    assert verdict["collectors"]["gpu01"]["processes"] == "ok"
