"""The node after everything: settings in force, versions at one, services as wanted, nothing half done."""

import json

ROOT = "/run/fixture/root"


def journal(host, unit):
    return host.run(f"journalctl --no-pager --lines=50 --unit={unit}").stdout


def test_every_port_is_set_as_the_fabric_block_says(host):
    done = host.run(f"rackweave-rdma-qos verify --json --root {ROOT}")
    assert done.rc == 0, journal(host, "rackweave-rdma-qos")
    assert len(json.loads(done.stdout)) == 8


def test_the_front_end_port_is_left_alone(host):
    state = json.loads(host.file("/run/fixture/qos.json").content_string)
    assert "ens8np0" not in state


def test_the_settings_come_before_slurmd_and_never_pull_it(host):
    unit = host.file("/etc/systemd/system/rackweave-rdma-qos.service").content_string
    assert "Before=slurmd.service" in unit
    assert "RequiredBy" not in unit


def test_driver_library_and_fabric_manager_are_at_one_version(host):
    loaded = host.file(f"{ROOT}/proc/driver/nvidia/version").content_string
    assert "570.86.10" in loaded
    assert "570.86.10" in host.check_output("nvidia-smi --version")
    assert "570.86.10" in host.check_output("nv-fabricmanager --version")
    assert host.service("nvidia-fabricmanager").is_running, journal(host, "nvidia-fabricmanager")


def test_the_driver_packages_are_held_and_pinned(host):
    held = host.check_output("apt-mark showhold").split()
    assert {"nvidia-driver-cuda", "nvidia-kernel-open-dkms"} <= set(held)
    assert {"nvidia-fabricmanager-570", "libnvidia-nscq-570"} <= set(held)


def test_what_an_earlier_version_gave_to_slurmd_is_gone(host):
    assert not host.file("/etc/systemd/system/slurmd.service.d/20-rackweave-gpu.conf").exists


def test_dmabuf_needs_no_peer_memory_module(host):
    lines = host.file("/etc/modules-load.d/rackweave-gpu.conf").content_string.splitlines()
    assert not [line for line in lines if line and not line.startswith("#")]


def test_containers_get_unlimited_memlock_and_the_gpu_runtime(host):
    document = json.loads(host.file("/etc/docker/daemon.json").content_string)
    assert document["default-ulimits"]["memlock"]["Hard"] == -1
    assert "nvidia" in document["runtimes"]


def test_pyxis_is_in_the_plugin_stack(host):
    lines = host.file("/etc/slurm/plugstack.conf").content_string.splitlines()
    assert [line for line in lines if "spank_pyxis.so" in line] == ["optional /usr/lib/slurm/spank_pyxis.so"]


def test_the_mount_table_has_the_parallel_file_system_and_the_container_did_not_mount_it(host):
    assert "10.0.0.1@o2ib:/training /mnt/parallel lustre" in host.file("/etc/fstab").content_string
    assert not host.mount_point("/mnt/parallel").exists


def test_the_node_exporter_answers(host):
    address = "http://127.0.0.1:9100/metrics"
    code = f"import urllib.request; print('node_load1' in urllib.request.urlopen('{address}').read().decode())"
    assert host.check_output(f'python3 -c "{code}"') == "True"


def test_the_kernel_line_came_into_force_with_the_reboot(host):
    assert "iommu=pt" in host.file(f"{ROOT}/proc/cmdline").content_string.split()
    assert "iommu=pt" in host.file("/etc/default/grub.d/90-rackweave.cfg").content_string


def test_nouveau_is_kept_out_in_the_initial_ram_disk_too(host):
    assert "blacklist nouveau" in host.file("/etc/modprobe.d/rackweave-nouveau.conf").content_string
    assert "etc/modprobe.d/rackweave-nouveau.conf" in host.check_output(
        "lsinitramfs /boot/initrd.img-6.1.0-fixture-amd64"
    )
    assert "nouveau" not in host.file(f"{ROOT}/proc/modules").content_string


def test_kernel_parameters_and_shared_memory_are_in_force_after_the_last_reboot(host):
    assert host.check_output("sysctl -n net.core.somaxconn") == "8192"
    assert host.check_output("df --block-size=1M --output=size /dev/shm").split()[-1] == "512"


def test_unattended_upgrades_may_go_on_with_everything_else(host):
    held = host.check_output("apt-mark showhold").split()
    assert {"doca-ofed", "datacenter-gpu-manager-4-cuda12", "nvidia-container-toolkit"} <= set(held)
    assert not {"openssh-server", "libc6", "rdma-core"} & set(held)


def test_locked_memory_is_unlimited_for_logins_services_and_user_managers(host):
    for path in ("/etc/systemd/system.conf.d/90-rackweave.conf", "/etc/systemd/user.conf.d/90-rackweave.conf"):
        assert "DefaultLimitMEMLOCK=infinity" in host.file(path).content_string
    assert "* hard memlock unlimited" in host.file("/etc/security/limits.d/90-rackweave.conf").content_string


def test_the_epilog_finds_what_removes_containers(host):
    hook = host.file("/etc/rackweave/epilog.d/50-remove-job-containers")
    assert "/usr/local/libexec/rackweave/remove-job-containers" in hook.content_string
    assert hook.mode & 0o111
