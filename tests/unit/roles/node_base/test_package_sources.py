"""The way to packages where no such machine is at hand: files of dnf, and hosts of two package managers in one play."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[4]
PLAYBOOK = Path(sys.executable).parent / "ansible-playbook"
OWN = "[main]\n{}gpgcheck=1\n[extra]\nname=extra\n"
PROXY = "http://[2001:db8::1]:3128"


def play(tmp_path, entries, *words, **variables):
    (tmp_path / "play.yml").write_text(yaml.safe_dump(entries))
    command = [PLAYBOOK, *words, "-c", "local", tmp_path / "play.yml", "-e", json.dumps(variables)]
    environment = {**os.environ, "ANSIBLE_NOCOLOR": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def dnf_after(tmp_path, before, *proxies):
    """Return, for each proxy that node_base sets in turn, whether something changed, and dnf's file.

    A proxy is an address, empty for none, and whether the tasks only look.
    """
    (tmp_path / "dnf.conf").write_text(before)
    tasks = []
    for address, check in proxies:
        include = {"name": "rackweave.cluster.node_base", "tasks_from": "proxy_dnf", "apply": {"check_mode": check}}
        proxy = {"http": address} if address else {}
        shown = f"{{{{ lookup('ansible.builtin.file', '{tmp_path}/dnf.conf', rstrip=false) }}}}"
        tasks += [
            {"ansible.builtin.include_role": include, "vars": {"node_base_proxy": proxy}},
            {"ansible.builtin.debug": {"msg": shown}},
        ]
    done = play(
        tmp_path,
        [{"hosts": "all", "gather_facts": False, "tasks": tasks}],
        "-i", "box,",
        ansible_become=False, ansible_pipelining=True, ansible_python_interpreter=sys.executable,
        __node_base_dnf_file=str(tmp_path / "dnf.conf"), __node_base_dnf_proxy_note=str(tmp_path / "note"),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    parts = re.split(r'"msg": (".*")\n', done.stdout)
    return [("changed: [" in part, json.loads(text)) for part, text in zip(parts[::2], parts[1::2])]


def test_the_proxy_of_dnf_comes_and_goes_check_mode_foresees_it_and_one_of_the_site_itself_stays(tmp_path):
    own, ours, none = (OWN.format(line) for line in ("proxy = http://own.example.org:8080\n", f"proxy={PROXY}\n", ""))
    turns = (("", False), (PROXY, True), (PROXY, False), (PROXY, False), ("", False))
    assert dnf_after(tmp_path, own, *turns) == [
        (False, own),
        (True, own),
        (True, ours),
        (False, ours),
        (True, none),
    ]


@pytest.mark.parametrize("first", ["a", "b"])
def test_repositories_are_judged_by_the_package_manager_of_each_host_whichever_comes_first(tmp_path, first):
    include = {"name": "rackweave.cluster.node_base", "tasks_from": "validate"}
    tasks = [{"ansible.builtin.include_role": include}]
    # dnf takes the entry, apt needs a suite: only the host of apt is refused.
    entry = {"name": "site", "uris": "https://mirror.example.org/el9", "gpgkey": "https://mirror.example.org/key"}
    hosts = {"a": {"__node_base_manager": "dnf"}, "b": {"__node_base_manager": "apt"}}
    inventory = {name: hosts[name] for name in (first, *sorted(hosts.keys() - {first}))}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": inventory}}, sort_keys=False))
    done = play(
        tmp_path,
        [{"hosts": "all", "gather_facts": False, "tasks": tasks}],
        "-i", str(tmp_path / "hosts.yml"),
        node_base_repositories=[entry], ansible_facts={"service_mgr": "systemd"},
    )  # fmt: skip
    assert "node_base_repositories: entry 1 (site) needs suites" in done.stdout, done.stdout + done.stderr
    assert ("fatal: [a]" in done.stdout, "fatal: [b]" in done.stdout) == (False, True)


def test_a_repository_in_two_lists_is_one_text_for_dnf_whichever_role_writes_it():
    written = []
    for path in sorted((ROOT / "roles").glob("*/tasks/*.yml")):
        for task in yaml.safe_load(path.read_text()):
            if "ansible.builtin.yum_repository" in task:
                written.append(task["ansible.builtin.yum_repository"])
    assert len(written) == 5
    assert all(text == written[0] for text in written)
