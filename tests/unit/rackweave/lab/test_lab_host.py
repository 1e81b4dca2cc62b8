import dataclasses

import pytest
from rackweave.lab.host import HostFacts, LabError, check_host, has_pure_cgroup2

HYBRID = """tmpfs /sys/fs/cgroup tmpfs rw 0 0
cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0
"""
PURE = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n"
ALL_CAPABILITIES = 0x1FFFFFFFFFF
WITHOUT_SYS_RESOURCE = ALL_CAPABILITIES & ~(1 << 24)
HYBRID_HOST = HostFacts(0, "debian", HYBRID, "init", ("bash",), WITHOUT_SYS_RESOURCE, 20000)
SYSTEMD_HOST = HostFacts(0, "debian", PURE, "systemd", ("systemd",), ALL_CAPABILITIES, -1)


def test_a_hybrid_host_without_the_resource_capability_gets_a_private_cgroup_and_its_own_limits():
    mode = check_host(HYBRID_HOST)
    assert (mode.private_cgroup, mode.raise_limits, mode.nofile, mode.verified) == (True, False, 20000, True)


def test_an_ordinary_systemd_host_needs_no_namespace_and_is_said_to_be_unverified():
    mode = check_host(SYSTEMD_HOST)
    assert (mode.private_cgroup, mode.raise_limits, mode.verified) == (False, True, False)
    assert mode.nofile == 1048576


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"user_id": 1000}, ("root", "1000")),
        ({"distribution": "fedora"}, ("Debian", "fedora")),
        ({"distribution": ""}, ("unknown",)),
        ({"processes": ("bash", "slurmd", "slurmctld")}, ("slurmctld and slurmd",)),
        ({"mounts": PURE, "init_name": "tini"}, ("tini", "systemd")),
    ],
)
def test_an_unsuitable_host_is_refused_with_the_thing_to_change(change, words):
    with pytest.raises(LabError) as refusal:
        check_host(dataclasses.replace(HYBRID_HOST, **change))
    assert all(word in str(refusal.value) for word in words)


def test_the_last_mount_on_the_cgroup_directory_decides():
    assert has_pure_cgroup2(HYBRID + PURE)
    assert not has_pure_cgroup2(PURE + HYBRID)
    assert not has_pure_cgroup2("proc /proc proc rw 0 0\n")
