"""The action that measures nodes: what it asks of the cluster, and what it keeps. The cluster is stood in for."""

import json
from importlib import import_module

import pytest

from tests.support.acceptance import collective, document, node

HOSTS = ["trn01", "trn02"]
SETTINGS = {
    "backend": "nccl",
    "ranks": "0",
    "python": "/mnt/shared/venv/bin/python",
    "storage_path": "/mnt/shared/acceptance",
    "storage_bytes": "1048576",
    "message_bytes": [1024],
    "calls": "20",
    "partners": "2",
    "cpu_s": "1.0",
    "group_timeout_s": "60",
    "dcgm_level": "2",
    "dcgm_timeout_s": "60",
}


class Cluster:
    """Answers the modules; `busy` hosts have a job, `slow` hosts miss a bar as often as the number says."""

    def __init__(self):
        self.calls, self.busy, self.slow = [], set(), {}

    def answer(self, module_name, module_args, task_vars=None):
        name = module_name.rsplit(".", 1)[-1]
        self.calls.append((name, module_args))
        if name == "run_files":
            return {"changed": True}
        pending = {host: "a job holds the node" for host in module_args["hosts"] if host in self.busy}
        if module_args.get("states_only"):
            return {"pending": pending}
        return {"pending": pending, "observations": self.measure(module_args["hosts"])}

    def measure(self, hosts):
        nodes = []
        for host in hosts:
            steal = 0.5 if self.slow.get(host, 0) > 0 else 0.0
            self.slow[host] = self.slow.get(host, 0) - 1
            nodes.append(node(host, steal=steal))
        groups = [collective(host, [host], 470.0) for host in hosts]
        groups += [collective(host, hosts, 390.0) for host in hosts if len(hosts) == 2]
        return {"nodes": nodes, "collectives": groups, "rails": [], "pending": {}, "log": ""}

    def measurements(self):
        return [args for name, args in self.calls if name == "acceptance_run" and not args.get("states_only")]


@pytest.fixture
def cluster(monkeypatch):
    made = Cluster()
    module = import_module("ansible_collections.rackweave.cluster.plugins.action.acceptance")
    monkeypatch.setattr(
        module.ActionModule,
        "_execute_module",
        lambda self, module_name, **rest: made.answer(module_name, **rest),
        raising=True,
    )
    return made


@pytest.fixture
def accept(cluster, run_action, tmp_path):
    """Return a function that calls the action on the hosts of the cluster."""
    documents, scripts = tmp_path / "observed", tmp_path / "scripts"
    documents.mkdir()
    scripts.mkdir()
    (scripts / "job.sh").write_text("#!/bin/bash\n")
    for host in HOSTS:
        (documents / f"{host}.json").write_text(json.dumps(document(host, nics=[]).as_dict()))

    def call(**changed):
        arguments = {
            "hosts": HOSTS,
            "cluster": HOSTS,
            "documents_dir": str(documents),
            "scripts_dir": str(scripts),
            "runtime_script": str(scripts / "job.sh"),
            "runtime_conf": "RACKWEAVE_RUNTIME=venv\n",
            "directory": "/mnt/shared/acceptance",
            "dest": str(tmp_path / "verify.json"),
            "settings": SETTINGS,
            "fabric": {"kind": "ethernet"},
        }
        return run_action("acceptance", **{**arguments, **changed})

    call.dest = tmp_path / "verify.json"
    call.documents = documents
    return call


def test_a_measurement_runs_on_all_hosts_at_once_with_their_gpus(accept, cluster):
    result = accept(reservation="swap")
    asked = cluster.measurements()
    assert [(it["hosts"], it["reservation"]) for it in asked] == [(HOSTS, "swap")]
    assert asked[0]["sbatch_options"] == ["--gres=gpu:8"]
    assert asked[0]["stages"] == ["self", "write", "read", "collective", "dcgm"]
    assert asked[0]["schedule"]["ranks"] == 8
    assert (result["report"]["verdict"], result["changed"]) == ("pass", True)


def test_what_passed_as_it_is_is_not_measured_again(accept, cluster):
    first = accept()
    second = accept()
    assert len(cluster.measurements()) == 1
    assert second["changed"] is False
    assert second["report"] == first["report"]


@pytest.mark.parametrize(
    "changed", [{"repeat": True}, {"bars": {"cpu-work": 1.0}}, {"settings": {**SETTINGS, "calls": "30"}}]
)
def test_other_bars_or_settings_or_the_wish_measure_again(accept, cluster, changed):
    accept()
    accept(**changed)
    assert len(cluster.measurements()) == 2


def test_a_node_whose_hardware_changed_is_measured_again_with_the_other_as_peer(accept, cluster):
    accept()
    (accept.documents / "trn02.json").write_text(
        json.dumps(document("trn02", nics=[], memory={"total_bytes": 1}).as_dict())
    )
    result = accept()
    assert cluster.measurements()[1]["hosts"] == ["trn02", "trn01"]
    assert result["measured"] == ["trn02"]


def test_a_figure_that_misses_its_bar_once_is_measured_a_second_time(accept, cluster):
    cluster.slow = {"trn02": 1}
    assert accept()["report"]["verdict"] == "pass"
    assert len(cluster.measurements()) == 2


def test_a_figure_that_misses_its_bar_twice_fails_the_host_but_not_the_task(accept, cluster):
    cluster.slow = {"trn02": 2}
    result = accept()
    assert not result.get("failed")
    assert {host: it["verdict"] for host, it in result["report"]["hosts"].items()} == {"trn01": "pass", "trn02": "fail"}


def test_a_host_with_a_job_is_pending_and_not_part_of_the_measurement(accept, cluster):
    cluster.busy = {"trn01"}
    result = accept()
    assert cluster.measurements()[0]["hosts"] == ["trn02"]
    assert result["report"]["hosts"]["trn01"]["reason"] == "a job holds the node"
    assert result["report"]["verdict"] == "pending"


def test_where_every_host_has_a_job_nothing_runs_and_the_second_time_nothing_changes(accept, cluster):
    cluster.busy = set(HOSTS)
    assert accept()["changed"] is True
    assert accept()["changed"] is False
    assert cluster.measurements() == []


def test_only_idle_neighbours_serve_as_peers(accept, cluster):
    accept(hosts=["trn01"], neighbours=["trn02"])
    cluster.busy = {"trn02"}
    accept(hosts=["trn01"], neighbours=["trn02"], repeat=True)
    assert [it["hosts"] for it in cluster.measurements()] == [["trn01", "trn02"], ["trn01"]]


def test_the_report_stands_beside_what_the_file_holds(accept):
    accept.dest.write_text(json.dumps({"schema": "rackweave.verify/1", "blocked": False}))
    accept()
    content = json.loads(accept.dest.read_text())
    assert content["blocked"] is False
    assert content["acceptance"]["schema"] == "rackweave.acceptance/1"


def test_check_mode_measures_nothing(accept, cluster):
    assert accept(check_mode=True)["table"] == ["not measured: trn01, trn02"]
    assert cluster.calls == []


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"settings": {"ranks": 1}}, "missing or unknown"),
        ({"settings": {**SETTINGS, "calls": "many"}}, "acceptance settings"),
        ({"settings": {**SETTINGS, "dcgm_level": "9"}}, "acceptance_dcgm_level=9"),
        ({"hosts": ["trn09"]}, "no node document of trn09"),
    ],
)
def test_what_cannot_be_measured_is_refused_with_one_sentence(accept, changed, sentence):
    result = accept(**changed)
    assert result["failed"]
    assert sentence in result["msg"]
