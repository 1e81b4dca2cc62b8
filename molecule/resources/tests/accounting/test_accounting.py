"""Accounting of the cluster, seen from its controller."""

import time

import pytest


@pytest.fixture
def controller(host):
    if host.check_output("hostname") != "head01":
        pytest.skip("slurmdbd is on the controller")
    return host


def test_slurmdbd_knows_the_cluster(controller):
    assert controller.service("slurmdbd").is_enabled
    assert controller.check_output("sacctmgr --noheader --parsable2 list cluster format=cluster") == "molecule"


def test_only_slurms_own_user_reads_the_password(controller):
    settings = controller.file("/etc/slurm/slurmdbd.conf")
    assert (settings.user, settings.mode) == ("slurm", 0o600)


def test_the_database_has_what_slurmdbd_asks_of_it(controller):
    shown = controller.check_output("mariadb --batch --skip-column-names --execute 'SELECT @@innodb_lock_wait_timeout'")
    assert shown == "900"


def test_a_finished_step_is_accounted_for(controller):
    name = f"accounted{time.time_ns()}"
    controller.check_output(f"srun --chdir=/tmp --immediate=60 --job-name={name} true")
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        shown = controller.check_output(f"sacct --noheader --parsable2 --allocations --name={name} --format=state")
        if shown == "COMPLETED":
            return
        time.sleep(1)
    pytest.fail(f"sacct shows {shown!r} two minutes after the step")
