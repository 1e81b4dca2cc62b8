"""What staging left on the node: packages in the cache, none installed."""


def test_the_kernel_modules_and_their_firmware_are_in_the_cache(host):
    cache = host.check_output("ls /var/cache/apt/archives")
    version = host.file("/opt/archive/version").content_string
    for name in ("nvidia-kernel-dkms", "firmware-nvidia-gsp", "libcuda1", "nvidia-smi"):
        assert f"{name}_{version}" in cache


def test_nothing_was_installed(host):
    assert not host.package("nvidia-kernel-dkms").is_installed
    assert not host.package("libcuda1").is_installed


def test_every_driver_package_is_pinned_at_one_version(host):
    pin = host.file("/etc/apt/preferences.d/rackweave-gpu-driver").content_string
    assert "Pin-Priority: 1001" in pin
