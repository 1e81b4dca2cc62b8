"""A node on which nothing was set: limits and packages are there, and no hardware was invented."""


def test_locked_memory_is_configured_without_limit(host):
    content = host.file("/etc/security/limits.d/90-rackweave.conf").content_string
    assert "* hard memlock unlimited" in content


def test_no_unit_has_failed(host):
    assert host.check_output("systemctl --failed --plain --no-legend") == ""


def test_no_driver_is_installed_without_a_gpu(host):
    assert host.run("dpkg-query --show 'nvidia-driver*' 'nvidia-kernel*'").rc != 0
