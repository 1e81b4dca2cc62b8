"""Provisioning on the shared lab: limited runs, reboots, what is refused. Second runs are in test_damage.py."""

import time

import pytest

from tests.support.lab import STATE, play

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]
SLURM_FILES = "cat /etc/slurm/slurm.conf /etc/slurm/gres.conf /etc/slurm/cgroup.conf"


def wait_until(condition, seconds=180):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.5)
    return False


@pytest.fixture
def without_gpu01(lab):
    lab.podman("stop", "--time", "5", lab.container("gpu01"))
    yield
    lab.podman("start", lab.container("gpu01"))
    assert wait_until(lambda: "idle" in lab.ssh("ctl", "sinfo --noheader --nodes gpu01 --format %T", check=False))


def test_a_limited_run_writes_the_same_files_whole_though_another_node_is_down(lab, without_gpu01):
    before = lab.ssh("ctl", SLURM_FILES)
    lab.ssh("ctl", "rm /etc/slurm/gres.conf && sed -i '/NodeName/d' /etc/slurm/slurm.conf")
    result = play("playbooks/provision.yml", "--limit", "gpu02")
    assert list(result.recap) == ["gpu02"]
    assert lab.ssh("ctl", SLURM_FILES) == before
    assert lab.ssh("ctl", "cat /run/rackweave-slurm-due", check=False) == ""


def test_a_host_without_document_is_named_instead_of_written_partially(lab):
    document = STATE / "observed/gpu01.json"
    before, files = document.read_text(), lab.ssh("ctl", SLURM_FILES)
    document.unlink()
    try:
        result = play("playbooks/provision.yml", "--limit", "gpu02", expect=2)
    finally:
        document.write_text(before)
    assert "no node document of gpu01" in result.output
    assert lab.ssh("ctl", SLURM_FILES) == files


@pytest.mark.long
def test_a_foreign_slurm_conf_is_not_overwritten_without_consent(lab):
    before = lab.ssh("ctl", "cat /etc/slurm/slurm.conf")
    lab.ssh("ctl", "sed -i 1d /etc/slurm/slurm.conf")
    foreign = lab.ssh("ctl", "cat /etc/slurm/slurm.conf")
    try:
        result = play("playbooks/provision.yml", expect=2)
        assert "slurm_adopt_ok" in result.output
        assert lab.ssh("ctl", "cat /etc/slurm/slurm.conf") == foreign
        play("playbooks/provision.yml", "-e", "slurm_adopt_ok=true")
        assert lab.ssh("ctl", "cat /etc/slurm/slurm.conf") == before
        assert foreign in lab.ssh("ctl", "cat /etc/slurm/slurm.conf.before-rackweave-*")
    finally:
        lab.ssh("ctl", "rm -f /etc/slurm/slurm.conf.before-rackweave-*")


def test_a_rebooted_node_comes_back_into_slurm(lab):
    started = lab.ssh("gpu02", "stat -c %Y /proc/1").strip()
    lab.ssh("gpu02", "systemctl reboot", check=False)
    assert wait_until(lambda: lab.ssh("gpu02", "stat -c %Y /proc/1", check=False).strip() not in ("", started))
    assert wait_until(lambda: lab.ssh("ctl", "sinfo --noheader --nodes gpu02 --format %T").strip() == "idle")


def test_a_placeholder_instead_of_the_munge_key_is_refused(lab):
    result = play("playbooks/validate.yml", "-e", "slurm_munge_key=changeme", expect=2)
    assert "slurm_munge_key is a secret and still a placeholder" in result.output
    assert "changeme" not in result.output
