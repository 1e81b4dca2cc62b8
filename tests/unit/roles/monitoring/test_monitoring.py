"""Metrics: what Slurm says, what Prometheus scrapes, what it alerts on, what the dashboard asks for."""

import json
import re
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import jinja2
import pytest
import yaml
from rackweave.provision.scrape import out_of_reach, scrape_targets
from rackweave.slurm.nodes import parse_sinfo, usable
from rackweave.watch.policy import DRAIN, RULES
from rackweave.watch.scanner import Source
from rackweave.watch.verdict import diagnose

from tests.support.launch import free_port
from tests.support.programs import load_program
from trainer.exporters import STEP_KEYS, Prometheus

ROOT = Path(__file__).parents[4]
ROLE = ROOT / "roles" / "monitoring"
FIXTURES = ROOT / "tests" / "fixtures" / "monitoring"
UNPACKED = ROOT / ".cache" / "prometheus" / "usr" / "bin" / "promtool"
PROMTOOL = shutil.which("promtool") or (str(UNPACKED) if UNPACKED.exists() else None)
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="needs promtool (scripts/system-packages test)")
WORDS = (
    "sum avg max min count rate increase changes floor clamp_min time by "
    "on and quantile_over_time max_over_time label_values or unless offset"
)
FUNCTIONS = set(WORDS.split())
NOW = 1700000000.5


def since(seconds):
    """How sinfo writes a moment so many seconds before `NOW`, in local time."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(NOW - seconds))


SINFO = f"""gpu01|idle|Unknown|none
gpu02|drained|{since(60)}|rackweave: gpu.fallen_off_bus in attempt 12.0 of demo
gpu03|down*|{since(60)}|Not responding
gpu04|mixed|Unknown|none
gpu04|mixed|Unknown|none
gpu05|draining|{since(60)}|bad "cable"
gpu06|planned|Unknown|none
gpu07|reserved|Unknown|none
gpu08|drained|{since(7200)}|rackweave: health: gpus: x | y
gpu09|drained|{since(600)}|rackweave-rebuild: in work
gpu10|drained|{since(1)}|rackweave: restart of slurmd
"""
SQUEUE = "rackweave-demo|RUNNING\nother|job|PENDING\nthird|PENDING\n"


def collector():
    return load_program(ROLE / "files" / "slurm_metrics.py")


def rules():
    groups = yaml.safe_load((ROLE / "files" / "rackweave.rules.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"] if "alert" in rule]


def recorded():
    groups = yaml.safe_load((ROLE / "files" / "rackweave.rules.yml").read_text())["groups"]
    return {rule["record"]: rule["expr"] for group in groups for rule in group["rules"] if "record" in rule}


def dashboard():
    return json.loads((ROLE / "files" / "grafana_dashboard.json").read_text())


def names_in(expression):
    """Return the metric names of a PromQL expression: words outside of braces, brackets and quotes."""
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\"[^\"]*\"|by \([^)]*\)|on\([^)]*\)|,\s*run\)|\b\d+[smhd]\b", " ", expression)
    return set(re.findall(r"[a-zA-Z_][a-zA-Z0-9_:]*", bare)) - FUNCTIONS


def exported():
    """Return every metric that something exports: what Slurm's collector and the trainer write, others as recorded."""
    text = collector().render(SINFO, SQUEUE, 1.0)
    ours = set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))
    trainer = set(
        re.findall(r"^(rackweave_\w+)\{", trainer_says([good_step(), {**good_step(), "loss": None}]), re.MULTILINE)
    )
    lines = [line for path in FIXTURES.glob("*.txt") for line in path.read_text().splitlines()]
    hooks = load_program(ROOT / "roles" / "slurm" / "files" / "node_hooks.py").metrics(
        {"gpus": ("pass", "")}, False, 1.0
    )
    ours |= set(re.findall(r"^# TYPE (\S+)", hooks, re.MULTILINE))
    return ours | trainer | {line for line in lines if line and not line.startswith("#")} | {"up"}


def good_step():
    """The record of a step, as the training loop hands it to exporters."""
    return {"step": 7, "step_time_s": 1.5, **dict.fromkeys(STEP_KEYS, 2.0)}


def trainer_says(records, validation_loss=2.5):
    """Return the page that the trainer's own exporter serves after these steps."""
    port = free_port()
    exporter = Prometheus(port, "demo", "127.0.0.1")
    try:
        for record in records:
            exporter.step(record)
        exporter.evaluation(7, validation_loss)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            return answer.read().decode()
    finally:
        exporter.close()


def value_of(page, name):
    return re.search(rf'^{name}\{{run="demo"\}} (\S+)$', page, re.MULTILINE).group(1)


@needs_promtool
def test_a_loss_that_is_no_number_raises_the_alert_through_the_trainers_exporter(tmp_path):
    """What the exporter serves before and after such a step, and after good ones again, is what the rule is given."""
    bad = {**good_step(), "loss": None, "grad_norm": None}
    pages = [
        trainer_says([good_step()]),
        trainer_says([good_step(), bad]),
        trainer_says([good_step(), bad, good_step()]),
    ]
    assert [value_of(page, "rackweave_loss") for page in pages] == ["2.0", "NaN", "2.0"]
    assert value_of(pages[1], "rackweave_grad_norm") == "NaN"
    (rule,) = [rule for rule in rules() if rule["alert"] == "LossNotFinite"]
    (name,) = names_in(rule["expr"])
    values = [float(value_of(page, name)) for page in pages]
    alert = {"exp_labels": {"severity": "critical", "run": "demo"}, "exp_annotations": {}}
    alert["exp_annotations"]["summary"] = rule["annotations"]["summary"].replace("{{ $labels.run }}", "demo")
    case = {
        "interval": "5s",
        "input_series": [{"series": f'{name}{{run="demo"}}', "values": f"{values[0]}x9 {values[1]} {values[2]}x9"}],
        "alert_rule_test": [
            {"eval_time": "40s", "alertname": "LossNotFinite"},
            {"eval_time": "80s", "alertname": "LossNotFinite", "exp_alerts": [alert]},
        ],
    }
    (tmp_path / "case.yml").write_text(
        json.dumps({"rule_files": ["rackweave.rules.yml"], "evaluation_interval": "5s", "tests": [case]})
    )
    run_rules(tmp_path, "case.yml")


def run_rules(directory, *cases):
    """Run promtool on the role's rules and cases in a directory."""
    shutil.copy(ROLE / "files" / "rackweave.rules.yml", directory)
    done = subprocess.run(
        [PROMTOOL, "test", "rules", *cases], cwd=directory, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_figure_that_nobody_knows_is_not_exported():
    assert "rackweave_mfu{" not in trainer_says([{**good_step(), "mfu": None}])


def test_slurms_answers_become_metrics():
    text = collector().render(SINFO, SQUEUE, NOW)
    for line in (
        'rackweave_slurm_nodes{state="idle"} 1',
        'rackweave_slurm_nodes{state="mixed"} 1',
        'rackweave_slurm_nodes{state="fail"} 0',
        'rackweave_slurm_node_usable{node="gpu01"} 1',
        'rackweave_slurm_node_usable{node="gpu03"} 0',
        'rackweave_slurm_node_drained_by_us{node="gpu02"} 1',
        'rackweave_slurm_node_drained_by_us{node="gpu05"} 0',
        'rackweave_slurm_node_drained_by_us{node="gpu08"} 1',
        'rackweave_slurm_node_drained_by_us{node="gpu09"} 1',
        'rackweave_slurm_node_drained_by_us{node="gpu10"} 0',
        "rackweave_slurm_drains_last_hour 2",
        'rackweave_slurm_jobs{state="PENDING"} 2',
        "rackweave_slurm_answer_time_seconds 1700000000.5",
    ):
        assert line in text.splitlines()


def test_a_node_counts_as_usable_exactly_where_a_plan_would_use_it():
    """A node that the scheduler keeps for a larger job, or that a reservation has, is not out of use."""
    text = collector().render(SINFO, SQUEUE, NOW)
    shown = dict(re.findall(r'^rackweave_slurm_node_usable\{node="(\w+)"\} (\d)$', text, re.MULTILINE))
    assert shown == {name: str(int(usable(state))) for name, state in parse_sinfo(SINFO).items()}
    assert {name for name, value in shown.items() if value == "1"} == {"gpu01", "gpu04", "gpu06", "gpu07"}


def test_the_collector_keeps_the_last_answer_when_slurm_is_silent(tmp_path, monkeypatch):
    module, path = collector(), tmp_path / "slurm.prom"
    monkeypatch.setattr("sys.argv", ["slurm_metrics", str(path)])
    monkeypatch.setattr(module, "ask", lambda words: SINFO if words[0] == "sinfo" else SQUEUE)
    assert module.main() == 0
    before = path.read_text()

    def silent(words):
        raise subprocess.TimeoutExpired(words, 20)

    monkeypatch.setattr(module, "ask", silent)
    assert module.main() == 1
    assert path.read_text() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["slurm.prom"]


@needs_promtool
def test_every_alert_fires_where_it_must_and_only_there(tmp_path):
    shutil.copy(Path(__file__).with_name("rules_test.yml"), tmp_path)
    run_rules(tmp_path, "rules_test.yml")


def test_every_alert_is_tested_both_ways():
    cases = yaml.safe_load(Path(__file__).with_name("rules_test.yml").read_text())["tests"]
    seen = [(case["alertname"], bool(case.get("exp_alerts"))) for group in cases for case in group["alert_rule_test"]]
    names = {rule["alert"] for rule in rules()}
    assert {name for name, fires in seen if fires} == names
    # These two hold another series that must not fire, within the same case.
    assert names - {name for name, fires in seen if not fires} == {"MemoryAlmostGone", "FileSystemAlmostFull"}


def test_rules_and_dashboard_ask_only_for_what_is_exported():
    known = exported()
    for name, expression in recorded().items():
        assert names_in(expression) <= known, name
        known.add(name)
    for rule in rules():
        assert names_in(rule["expr"]) <= known, rule["alert"]
    for panel in dashboard()["panels"]:
        for target in panel["targets"]:
            assert names_in(target["expr"]) <= known, panel["title"]
    queries = [item["query"]["query"] for item in dashboard()["templating"]["list"] if item["type"] == "query"]
    assert all(names_in(query) <= known for query in queries)


def test_an_xid_is_critical_exactly_where_the_diagnosis_drains_for_it():
    expression = recorded()["rackweave:gpu_xid:hardware"]
    critical = {int(number) for number in re.findall(r"== (\d+)", expression)}
    ((low, high),) = re.findall(r">= (\d+) < (\d+)", expression)
    critical |= set(range(int(low), int(high)))
    line = "2026-01-05T10:00:00 gpu01 kernel: NVRM: Xid (PCI:0000:3b:00): {}, pid=1, name=python, x\n"
    found = {number: diagnose([Source("kernel.log", line.format(number), "gpu01")]) for number in range(1, 200)}
    drains = {number for number, verdict in found.items() if RULES[verdict.diagnosis_class].action == DRAIN}
    assert critical == drains
    assert not critical & {13, 31, 43}


def test_the_dashboards_panels_have_data_source_unit_and_a_place_of_their_own():
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(places) == len(panels)
    for panel in panels:
        assert panel["datasource"]["uid"] == "${datasource}"
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
        assert [target["refId"] for target in panel["targets"]] == ["A", "B"][: len(panel["targets"])]


@pytest.fixture
def configuration(tmp_path):
    """Prometheus' configuration as the template makes it."""

    def render(**changes):
        environment = jinja2.Environment(trim_blocks=True, undefined=jinja2.StrictUndefined)
        environment.filters.update(comment=lambda text: f"# {text}", to_json=json.dumps)
        environment.filters["rackweave.cluster.scrape_targets"] = scrape_targets
        template = environment.from_string((ROLE / "templates" / "prometheus.yml.j2").read_text())
        values = {
            "ansible_managed": "managed",
            "monitoring_prometheus_scrape_interval_s": 15,
            "monitoring_prometheus_targets": ["ctl", "gpu01"],
            "monitoring_node_exporter_port": 9100,
            "monitoring_dcgm_exporter_enabled": True,
            "monitoring_dcgm_exporter_port": 9400,
            "monitoring_prometheus_trainer_port": 9500,
            "monitoring_listen_address": "0.0.0.0",
            "inventory_hostname": "ctl",
            "hostvars": {"ctl": {}, "gpu01": {"ansible_host": "192.0.2.1"}},
        }
        text = template.render({**values, **changes})
        path = tmp_path / "prometheus.yml"
        path.write_text(text.replace("/etc/prometheus/", f"{ROLE / 'files'}/"))
        return SimpleNamespace(path=path, jobs={job["job_name"]: job for job in yaml.safe_load(text)["scrape_configs"]})

    return render


def test_nodes_gpus_slurm_and_trainer_are_scraped_at_their_addresses(configuration):
    jobs = configuration().jobs
    assert [row["targets"] for row in jobs["node"]["static_configs"]] == [["ctl:9100"], ["192.0.2.1:9100"]]
    assert jobs["dcgm"]["static_configs"][1] == {"targets": ["192.0.2.1:9400"], "labels": {"instance": "gpu01"}}
    assert set(jobs) == {"node", "dcgm", "trainer"}
    bare = configuration(monitoring_dcgm_exporter_enabled=False, monitoring_prometheus_trainer_port=0)
    assert set(bare.jobs) == {"node"}


SYSTEMS = sorted(path for path in (ROLE / "vars").glob("*.yml") if path.stem != "main")


@pytest.mark.parametrize("path", SYSTEMS, ids=lambda path: path.stem)
def test_prometheus_is_what_the_system_has(path):
    """Package, unit, settings file, its variable and the directory of samples are data of the system."""
    common = yaml.safe_load((ROLE / "vars" / "main.yml").read_text())
    assert path.stem in common["__monitoring_supported"]
    data = yaml.safe_load(path.read_text())
    tasks = (ROLE / "tasks" / "prometheus.yml").read_text() + (ROLE / "handlers" / "main.yml").read_text()
    for name in ("service", "file"):
        assert f"__monitoring_prometheus_{name} }}}}" in tasks
        assert str(data[f"__monitoring_prometheus_{name}"]) not in tasks
    assert data["__monitoring_prometheus_default"]
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined)
    environment.filters["comment"] = lambda text: f"# {text}"
    values = {"ansible_managed": "managed", "monitoring_prometheus_listen_address": "127.0.0.1", **data}
    values |= {"monitoring_prometheus_port": 9090, "monitoring_prometheus_retention": "15d"}
    rows = common["__monitoring_prometheus_arguments"]
    values["__monitoring_prometheus_arguments"] = [environment.from_string(row).render(values) for row in rows]
    template = (ROLE / "templates" / "prometheus.default.j2").read_text()
    line = environment.from_string(template).render(values).splitlines()[1]
    assert line.startswith(f'{data["__monitoring_prometheus_variable"]}="--web.listen-address=127.0.0.1:9090 ')
    assert f"--storage.tsdb.path={data['__monitoring_prometheus_storage']}" in line


def targets(job):
    return {row["labels"]["instance"]: row["targets"] for row in job["static_configs"]}


def test_whether_and_where_a_host_exports_is_its_own_matter(configuration):
    """Prometheus' host sets nothing: only the GPU nodes' inventory has the DCGM exporter, ports and addresses."""
    gpu = {"monitoring_dcgm_exporter_enabled": True, "monitoring_dcgm_exporter_port": 9401}
    gpu |= {"monitoring_node_exporter_port": 9101, "ansible_host": "192.0.2.1"}
    hosts = {
        "ctl": {},
        "gpu01": {**gpu, "monitoring_listen_address": "198.51.100.1"},
        "gpu02": {**gpu, "monitoring_listen_address": "2001:db8::2"},
        "gpu03": {**gpu, "monitoring_dcgm_exporter_enabled": False},
    }
    made = configuration(
        monitoring_dcgm_exporter_enabled=False, hostvars=hosts, monitoring_prometheus_targets=list(hosts)
    )
    assert targets(made.jobs["dcgm"]) == {"gpu01": ["198.51.100.1:9401"], "gpu02": ["[2001:db8::2]:9401"]}
    made = configuration(
        monitoring_listen_address="198.51.100.9", hostvars=hosts, monitoring_prometheus_targets=list(hosts)
    )
    nodes = {"ctl": ["198.51.100.9:9100"], "gpu01": ["198.51.100.1:9101"], "gpu02": ["[2001:db8::2]:9101"]}
    assert targets(made.jobs["node"]) == {**nodes, "gpu03": ["192.0.2.1:9101"]}


def test_the_trainer_is_scraped_where_it_listens(configuration):
    hosts = {
        "gpu01": {"monitoring_listen_address": "198.51.100.1"},
        "gpu02": {"monitoring_listen_address": "198.51.100.2", "training_job_prometheus_address": "203.0.113.2"},
        "gpu03": {"training_job_prometheus_address": "0.0.0.0", "ansible_host": "192.0.2.3"},
    }
    made = configuration(hostvars=hosts, monitoring_prometheus_targets=list(hosts))
    found = {"gpu01": ["198.51.100.1:9500"], "gpu02": ["203.0.113.2:9500"], "gpu03": ["192.0.2.3:9500"]}
    assert targets(made.jobs["trainer"]) == found


def test_a_host_that_exports_for_itself_alone_is_scraped_by_itself_alone(configuration):
    hosts = {"ctl": {"ansible_host": "192.0.2.9"}, "gpu01": {"monitoring_listen_address": "127.0.0.1"}}
    own = {"monitoring_listen_address": "127.0.0.1"}
    made = configuration(hostvars=hosts, monitoring_prometheus_targets=["ctl"], **own)
    assert targets(made.jobs["node"]) == {"ctl": ["127.0.0.1:9100"]}
    assert out_of_reach(["ctl"], hosts, own, "ctl") == []
    assert out_of_reach(["ctl", "gpu01"], hosts, {"monitoring_listen_address": "0.0.0.0"}, "ctl") == ["gpu01"]
    assert out_of_reach(["ctl", "gpu02"], hosts, own, "ctl") == ["gpu02"]


@needs_promtool
def test_prometheus_takes_the_configuration(configuration):
    done = subprocess.run(
        [PROMTOOL, "check", "config", str(configuration().path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
