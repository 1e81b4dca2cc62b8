"""Units: running, started at boot, and in force as they are on disk."""

import base64
import json
from pathlib import Path

import pytest

UNIT_FILES = Path(__file__).with_name("unit_files.py").read_bytes()
# Those of ours and those that ours give settings to; who has no such unit is not asked about it.
FURTHER_UNITS = ("rackweave-rdma-qos", "rackweave-shm", "nvidia-fabricmanager", "nvidia-persistenced", "docker")


def journal(host, unit):
    return host.run(f"journalctl --no-pager --lines=30 --unit={unit}").stdout


def units_of(host, variables):
    """Return the units that a host of this kind needs."""
    wanted = ["munge"]
    entry, name = variables[host.inventory_name], host.inventory_name
    if entry["slurm_manage"]:
        wanted += ["slurmctld"] if name == entry["slurm_host"] else []
        wanted += ["slurmd"] if entry["slurm_node"] else []
    return wanted


def loaded(host, units):
    """Return the units that systemd of the host knows, of these."""
    states = {unit: host.check_output(f"systemctl show {unit} --value --property=LoadState") for unit in units}
    return [unit for unit, state in states.items() if state not in ("not-found", "masked")]


def test_no_unit_has_failed(any_node):
    failed = any_node.check_output("systemctl --failed --plain --no-legend | cut -d' ' -f1").split()
    told = "\n".join(f"{unit}:\n{journal(any_node, unit)}" for unit in failed)
    assert not failed, told


def test_the_units_of_the_cluster_run(any_node, variables):
    dead = [unit for unit in units_of(any_node, variables) if not any_node.service(unit).is_running]
    assert dead == [], "\n".join(journal(any_node, unit) for unit in dead)


def test_the_units_of_the_cluster_start_at_boot(any_node, variables):
    assert [unit for unit in units_of(any_node, variables) if not any_node.service(unit).is_enabled] == []


def test_slurmd_has_its_settings_file(node, entry):
    if not entry["slurm_manage"]:
        pytest.skip("this Slurm is not ours")
    text = node.file("/etc/systemd/system/slurmd.service.d/rackweave.conf").content_string
    assert "LimitMEMLOCK=infinity" in text
    assert f"--conf-server {entry['slurm_host']}" in text


def test_the_units_in_force_are_those_on_disk(any_node, variables):
    units = [*units_of(any_node, variables), *loaded(any_node, FURTHER_UNITS)]
    stale = [
        unit
        for unit in units
        if any_node.check_output(f"systemctl show {unit} --value --property=NeedDaemonReload") == "yes"
    ]
    code = f'import base64; exec(base64.b64decode("{base64.b64encode(UNIT_FILES).decode()}"))'
    files = json.loads(any_node.check_output(f"python3 -c '{code}' {' '.join(f'{unit}.service' for unit in units)}"))
    assert (stale, files) == ([], {})


def test_the_clock_is_kept_in_step(any_node, entry, in_container):
    if in_container or not entry["time_sync"]:
        pytest.skip("a container shares the clock of its host" if in_container else "not wanted by the inventory")
    shown = any_node.check_output("timedatectl show --value --property=NTPSynchronized")
    assert shown == "yes", journal(any_node, "chrony")


def reached_at(listen_address):
    """Return the address, as part of a URL, at which the host itself reaches what listens at an address."""
    here = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1", "[::]": "::1"}.get(listen_address, listen_address)
    return f"[{here}]" if ":" in here and not here.startswith("[") else here


def test_the_node_exporter_answers(node, entry):
    if not entry["exporter"]:
        pytest.skip("not wanted by the inventory")
    address = f"http://{reached_at(entry['exporter_address'])}:{entry['exporter_port']}/metrics"
    code = f"import urllib.request; print('node_load1' in urllib.request.urlopen('{address}').read().decode())"
    assert node.run(f'python3 -c "{code}"').stdout.strip() == "True", journal(node, "prometheus-node-exporter")
