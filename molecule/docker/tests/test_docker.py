"""A node with a Docker daemon of its own, after containers of two jobs and changed settings."""

import json


def test_docker_runs_and_no_unit_has_failed(host):
    assert host.service("docker").is_running
    assert host.service("docker").is_enabled
    assert host.check_output("systemctl --failed --plain --no-legend") == ""


def test_the_daemon_has_taken_its_settings(host):
    shown = "{{.CgroupDriver}} {{.LiveRestoreEnabled}} {{.LoggingDriver}} {{.Driver}} {{.Debug}}"
    assert host.check_output(f"docker info --format '{shown}'") == "systemd true local vfs true"


def test_the_daemon_pulls_through_the_proxy(host):
    seen = host.check_output("docker info --format '{{.HTTPSProxy}} {{.NoProxy}} [{{.HTTPProxy}}]'")
    assert seen == "http://proxy.example.org:3128 .example.org,localhost []"


def test_locked_memory_is_without_limit_in_its_file(host):
    settings = json.loads(host.file("/etc/docker/daemon.json").content_string)
    assert settings["default-ulimits"]["memlock"] == {"Name": "memlock", "Hard": -1, "Soft": -1}


def test_the_user_of_jobs_may_start_containers(host):
    assert host.run("runuser --user hpc -- docker ps").rc == 0


def test_the_epilog_removed_the_container_of_its_job_only(host):
    assert host.check_output("docker ps --all --format '{{.Names}}'") == "job-78"
