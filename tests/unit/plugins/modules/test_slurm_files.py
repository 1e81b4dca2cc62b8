"""The modules that write Slurm's files and keep the list of restarts, against a directory of files."""

from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
from ansible.module_utils.basic import AnsibleModule
from rackweave.slurm.config import SlurmSite, slurm_files

from tests.support.slurm_nodes import h100_node

COLLECTION = "ansible_collections.rackweave.cluster.plugins"
HOSTS = ("gpu01", "gpu02")
SITE = SlurmSite("prod", "ctl01", HOSTS, partitions={"training": {}}, version=(22, 5))
HOOKS = {"Prolog": "/usr/local/libexec/rackweave/slurm-prolog"}


def texts(**changes):
    return slurm_files(replace(SITE, **changes), [h100_node(host) for host in HOSTS])


@pytest.fixture
def slurm(monkeypatch):
    """What squeue and scontrol print."""
    printed = {"squeue": "", "scontrol": ""}
    monkeypatch.setattr(AnsibleModule, "run_command", lambda _module, words, **_: (0, printed[words[0]], ""))
    monkeypatch.setattr(AnsibleModule, "get_bin_path", lambda _module, name, **_: name)
    return printed


@pytest.fixture
def write(run_module, tmp_path, slurm):
    """Write files into a directory; return the result of the module."""

    def call(files, **more):
        paths = {"directory": str(tmp_path / "slurm"), "mark": str(tmp_path / "due")}
        return run_module("slurm_config", files=files, version="22.05.8", **paths, **more)

    call.directory, call.mark = tmp_path / "slurm", tmp_path / "due"
    return call


def test_a_second_run_writes_nothing_but_still_owes_what_the_first_left_undone(write):
    first = write(texts())
    assert (first["changed"], first["action"]) == (True, "restart")
    second = write(texts())
    assert (second["changed"], second["action"]) == (False, "restart")
    write.mark.unlink()
    assert write(texts())["action"] == "none"


def test_check_mode_says_what_it_would_do_and_does_nothing(write):
    result = write(texts(), check_mode=True)
    assert result["changed"]
    assert not write.directory.exists()
    assert not write.mark.exists()


REFUSAL = """scontrol: error: _parse_next_key: Parsing error at unrecognized key: SelecType
scontrol: fatal: Unable to process configuration file
"""


@pytest.mark.parametrize("check_mode", [True, False])
def test_a_file_that_this_slurm_cannot_read_is_refused_before_anything_is_written(write, monkeypatch, check_mode):
    """A daemon that is restarted with a mistyped key stays down, and every job of the cluster with it."""
    write(texts())
    before = (write.directory / "slurm.conf").read_text()
    write.mark.unlink()
    read = []

    def parsed(_module, words, environ_update=None, **_):
        if words[0] != "scontrol":
            return 0, "", ""
        read.append(Path(environ_update["SLURM_CONF"]).read_text())
        return (1, "", REFUSAL) if "SelecType" in read[-1] else (0, "none", "")

    monkeypatch.setattr(AnsibleModule, "run_command", parsed)
    refused = write(texts(parameters={"SelecType": "select/cons_tres"}), check_mode=check_mode)
    assert refused["failed"]
    assert "unrecognized key: SelecType" in refused["msg"]
    assert "slurm_parameters" in refused["msg"]
    assert (write.directory / "slurm.conf").read_text() == before
    assert not write.mark.exists()
    assert "failed" not in write(texts(parameters={"MaxJobCount": 5000}), check_mode=check_mode)
    assert len(read) == 2


def test_a_parser_that_never_answers_is_ended_and_nothing_is_written(run_module, tmp_path, monkeypatch):
    """Slurm's programs may wait for a file system or a name service that is gone."""
    hanging = tmp_path / "scontrol"
    hanging.write_text("#!/bin/sh\nexec sleep 3600\n")
    hanging.chmod(0o755)
    found = {"scontrol": str(hanging)}
    monkeypatch.setattr(AnsibleModule, "get_bin_path", lambda _module, name, **_: found.get(name))
    monkeypatch.setattr(import_module(f"{COLLECTION}.modules.slurm_config"), "PARSER_LIMIT_S", 0.3)
    paths = {"directory": str(tmp_path / "slurm"), "mark": str(tmp_path / "due")}
    refused = run_module("slurm_config", files=texts(), version="22.05.8", **paths)
    assert refused["failed"]
    assert "has not read the slurm.conf that would be written within 0.3 s, so nothing was" in refused["msg"]
    assert not (tmp_path / "slurm").exists()


def test_a_slurm_that_says_something_else_does_not_hold_the_files_up(write, monkeypatch):
    monkeypatch.setattr(AnsibleModule, "run_command", lambda *_args, **_: (1, "", "scontrol: something else"))
    assert write(texts())["changed"]


def test_any_foreign_file_is_left_alone_without_consent_and_kept_as_a_copy_with_it(write):
    write(texts())
    foreign = {"gres.conf": "Name=gpu File=/dev/nvidia0\n", "cgroup.conf": "ConstrainCores=no\n"}
    for name, text in foreign.items():
        (write.directory / name).write_text(text)
    refused = write(texts())
    assert refused["failed"]
    assert "cgroup.conf" in refused["msg"]
    assert "gres.conf" in refused["msg"]
    assert (write.directory / "gres.conf").read_text() == foreign["gres.conf"]
    adopted = write(texts(), adopt_ok=True)
    copies = {path.rsplit("/", 1)[1].split(".before")[0]: path for path in adopted["backups"]}
    assert set(copies) == set(foreign)
    assert {name: Path(copies[name]).read_text() for name in foreign} == foreign


def test_our_topology_goes_with_the_switches_and_a_foreign_one_stays(write):
    switches = {"leaf": {"nodes": "gpu[01-02]"}}
    write(texts(topology=switches))
    assert (write.directory / "topology.conf").exists()
    write(texts())
    assert not (write.directory / "topology.conf").exists()
    (write.directory / "topology.conf").write_text("SwitchName=s0 Nodes=gpu[01-02]\n")
    assert not write(texts())["changed"]
    assert (write.directory / "topology.conf").exists()


def test_a_topology_yaml_of_the_site_that_would_hide_ours_is_named(write):
    write(texts())
    (write.directory / "topology.yaml").write_text("- topology: site\n")
    switches = {"leaf": {"nodes": "gpu[01-02]"}}
    assert "topology.yaml" in write(texts(topology=switches))["msg"]
    adopted = write(texts(topology=switches), adopt_ok=True)
    assert not (write.directory / "topology.yaml").exists()
    assert len(adopted["backups"]) == 1


def test_programs_wait_where_a_node_is_not_reached(write):
    write(texts())
    result = write(texts(base=HOOKS), absent=["gpu01"])
    assert result["waiting"] == ["Prolog"]
    assert not result["changed"]
    assert write(texts(base=HOOKS))["keys_changed"] == ["Prolog"]
    assert write(texts(base=HOOKS), absent=["gpu01"])["waiting"] == []


def test_a_change_that_loses_jobs_is_refused_while_there_are_any(write, slurm):
    write(texts())
    slurm["squeue"] = "RUNNING\nPENDING\nCOMPLETED\n"
    changed = texts(parameters={"SelectType": "select/linear"})
    assert "Slurm has 2" in write(changed)["msg"]
    slurm["squeue"] = "COMPLETED\n"
    assert write(changed)["changed"]


def rows(**starts):
    return "".join(f"NodeName={node} State=IDLE SlurmdStartTime={start} X=1\n" for node, start in starts.items())


def test_nodes_owe_a_restart_until_their_slurmd_has_another_start(run_module, slurm, tmp_path):
    def call(**more):
        return run_module("slurm_restarts", directory=str(tmp_path / "notes"), nodes=list(HOSTS), **more)["due"]

    assert call() == []
    slurm["scontrol"] = rows(gpu01="T1", gpu02="T1")
    assert call(asked=True, check_mode=True) == list(HOSTS)
    assert not (tmp_path / "notes").exists()
    assert call(asked=True) == list(HOSTS)
    assert call() == list(HOSTS)
    slurm["scontrol"] = rows(gpu01="T2", gpu02="T1")
    assert call() == ["gpu02"]
    slurm["scontrol"] = rows(gpu01="T2", gpu02="None")
    assert call() == ["gpu02"]
    slurm["scontrol"] = rows(gpu01="T2", gpu02="T3")
    assert call() == []
    assert list((tmp_path / "notes").iterdir()) == []
