"""Prometheus on the lab's controller: it really scrapes the nodes and what Slurm says, and has loaded the rules."""

import json
import shutil
import time
from urllib.parse import quote

import pytest

from tests.support.lab import STATE, play

pytestmark = [pytest.mark.lab, pytest.mark.long, pytest.mark.timeout(900)]
# Beside the lab's own inventory: exporters on every host, Prometheus and Slurm's metrics on the controller.
MORE = {
    "all": {
        "vars": {
            "monitoring_node_exporter_enabled": True,
            "monitoring_listen_address": "0.0.0.0",
            "training_job_prometheus_port": 9500,
        },
        "children": {
            "slurm_controller": {
                "vars": {
                    "monitoring_slurm_enabled": True,
                    "monitoring_slurm_interval_s": 5,
                    "monitoring_prometheus_enabled": True,
                    "monitoring_prometheus_scrape_interval_s": 2,
                }
            }
        },
    }
}


def ask(lab, query):
    """Return the rows of an instant query to Prometheus, which listens on the controller alone."""
    url = f"http://127.0.0.1:9090/api/v1/query?query={quote(query)}"
    text = lab.ssh(
        "ctl", f"python3 -c 'import urllib.request; print(urllib.request.urlopen(\"{url}\").read().decode())'"
    )
    return json.loads(text)["data"]["result"]


@pytest.fixture(scope="module")
def more(tmp_path_factory):
    path = tmp_path_factory.mktemp("inventory") / "more.json"
    path.write_text(json.dumps(MORE))
    return path


@pytest.fixture(scope="module")
def monitored(lab, more):
    """The lab with exporters added as docs/upgrade.md says: an idle node waits, so both are drained for it."""
    deadline = time.monotonic() + 60
    while lab.ssh("ctl", "squeue --noheader").strip() and time.monotonic() < deadline:
        time.sleep(1)  # a job that another test cancelled ends in seconds
    nodes = "gpu01,gpu02"
    lab.ssh("ctl", f"scontrol update nodename={nodes} state=drain reason=exporters")
    began = time.monotonic()
    try:
        play("playbooks/provision.yml", "-i", str(more))
    finally:
        lab.ssh("ctl", f"scontrol update nodename={nodes} state=resume")
    print(f"provisioning with Prometheus took {time.monotonic() - began:.0f} s")  # noqa: T201
    yield lab
    # The inventory of other tests does not ask for them, and on two processors they would be felt.
    units = "prometheus-node-exporter prometheus rackweave-slurm-metrics.timer"
    for node in lab.addresses:
        lab.ssh(node, f"systemctl disable --quiet --now {units}", check=False)


def wait_for(lab, query, wanted, seconds=60):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = ask(lab, query)
        if wanted(found):
            return found
        time.sleep(1)
    raise AssertionError(f"{query}: {found}")


def test_every_node_is_scraped(monitored):
    nodes = {"ctl", "gpu01", "gpu02"}
    # Debian's own configuration, which the package starts Prometheus with, leaves a row for some minutes.
    assert wait_for(monitored, 'up{job="node"} == 1', lambda rows: {row["metric"]["instance"] for row in rows} >= nodes)


def test_what_slurm_says_arrives(monitored):
    def both_usable(rows):  # a timer writes it, so for some seconds it may still say that they were drained
        return {(row["metric"]["node"], row["value"][1]) for row in rows} == {("gpu01", "1"), ("gpu02", "1")}

    assert wait_for(monitored, "rackweave_slurm_node_usable", both_usable)


def test_a_job_is_scraped_while_it_trains(monitored, more):
    for path in (STATE / "shared" / "runs" / "monitored", STATE / "plan" / "monitored"):
        shutil.rmtree(path, ignore_errors=True)  # of an earlier lab, whose job numbers come again
    run = {"training_job_run": "monitored", "training_job_steps": 2000, "training_job_requeue_ok": False}
    for playbook in ("plan", "launch"):
        play(f"playbooks/{playbook}.yml", "-i", str(more), "-e", json.dumps(run))
    try:
        found = wait_for(monitored, 'rackweave_step{run="monitored"} > 2', lambda rows: len(rows) == 1, 180)
        assert found[0]["metric"]["instance"] in ("gpu01", "gpu02")
        loss = ask(monitored, 'rackweave_loss{run="monitored"}')
        assert 0 < float(loss[0]["value"][1]) < 10
        assert len(ask(monitored, 'up{job="trainer"} == 1')) == 1
    finally:
        monitored.ssh("ctl", "scancel --name=rackweave-monitored", check=False)


def test_a_second_run_changes_nothing(monitored, more):
    result = play("playbooks/provision.yml", "-i", str(more))
    assert [name for name in result.changed_tasks if "monitoring" in name] == []
