"""What is held: kernel, driver, OFED; and nothing that security updates should reach."""

import pytest
from rackweave.errors import ProvisionError
from rackweave.provision.holds import lock_changes, to_hold

HELD = [
    "linux-image-amd64", "linux-image-6.1.0-18-amd64", "linux-headers-amd64", "linux-modules-6.8.0-45-generic",
    "linux-generic-hwe-22.04", "kernel", "kernel-core", "kernel-modules-extra", "kernel-devel-matched",
    "nvidia-kernel-open-dkms", "libnvidia-compute-570-server", "libnvidia-common-570",
    "nvidia-fabricmanager-570", "libcuda1", "cuda-drivers-570", "kmod-nvidia-open-dkms",
    "nvidia-container-toolkit", "libnvidia-container1", "datacenter-gpu-manager-4-cuda12",
    "datacenter-gpu-manager", "doca-ofed", "mlnx-ofed-kernel-dkms", "ofed-scripts", "knem-dkms",
    "kernel-mft-dkms", "kmod-mlnx-ofa_kernel", "iser-dkms", "firmware-nvidia-gsp",
]  # fmt: skip
FREE = [
    "openssl", "libc6", "linux-libc-dev", "linux-base", "linux-perf", "kernel-headers", "kernel-tools",
    "rdma-core", "libibverbs1", "ibverbs-providers", "openssh-server", "datacenter-gpu-manager-exporter",
    "slurmd", "docker.io", "python3", "systemd", "perftest",
]  # fmt: skip


@pytest.mark.parametrize("name", HELD)
def test_p057_what_binds_a_module_to_its_kernel_or_library_is_held(name):
    assert to_hold({name: "1.0"}) == [name]


@pytest.mark.parametrize("name", FREE)
def test_other_security_updates_go_on(name):
    assert to_hold({name: "1.0"}) == []


def test_rdma_libraries_of_ofed_are_held_and_those_of_the_distribution_are_not():
    installed = {"rdma-core": "2501mlnx56-1.2501060", "libibverbs1": "44.0-2", "perftest": "25.04.0.0.84-1.2504mlnx1"}
    assert to_hold(installed) == ["perftest", "rdma-core"]


def test_a_site_adds_its_own_patterns():
    assert to_hold({"lustre-client": "2.15", "openssl": "3"}, ["lustre-.*"]) == ["lustre-client"]
    with pytest.raises(ProvisionError, match="regular expression"):
        to_hold({}, ["lustre-("])


def test_version_locks_follow_an_upgrade_and_leave_foreign_ones_alone():
    changes = lock_changes(
        wanted=["nvidia-driver-cuda-3:580.65.06-1.el9", "kernel-core-0:5.14.0-362.el9"],
        held=["nvidia-driver-cuda", "kernel-core"],
        locks=["nvidia-driver-cuda-3:570.86.10-1.el9.*", "kernel-core-0:5.14.0-362.el9.*", "glibc-0:2.34-60.el9.*"],
    )
    assert changes == {
        "add": ["nvidia-driver-cuda-3:580.65.06-1.el9"],
        "delete": ["nvidia-driver-cuda-3:570.86.10-1.el9.*"],
    }


def test_a_second_run_changes_no_lock():
    key = "kernel-core-0:5.14.0-362.el9"
    assert lock_changes([key], ["kernel-core"], [key + ".*"]) == {"add": [], "delete": []}
