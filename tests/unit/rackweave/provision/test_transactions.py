from pathlib import Path

import pytest
from rackweave.errors import ProvisionError
from rackweave.provision import transactions

FIXTURES = Path(__file__).resolve().parents[3] / "fixtures/provision"
PROPRIETARY = ["libcuda1", "libnvidia-ml1", "libnvidia-ptxjitcompiler1", "nvidia-kernel-dkms", "nvidia-smi"]


def captured(name):
    return (FIXTURES / name).read_text(encoding="utf-8")


def check(text, **options):
    settings = {"version": "535.309.01", "same_version": PROPRIETARY, "installed": {}, "kernel_change_ok": False}
    return transactions.check_driver_transaction(text, **{**settings, **options})


def test_debian_12_offers_the_proprietary_set_at_one_version():
    candidates = transactions.parse_apt_policy(captured("debian12-policy.txt"))
    assert transactions.check_candidates(candidates, PROPRIETARY, "535.309.01") == "535.309.01"


def test_debian_12_offers_open_modules_of_another_version_than_the_driver_and_both_are_named():
    candidates = transactions.parse_apt_policy(captured("debian12-policy.txt"))
    with pytest.raises(ProvisionError, match=r"libcuda1 535\.309\.01.*nvidia-open-kernel-dkms 535\.261\.03"):
        transactions.check_candidates(candidates, ["libcuda1", "nvidia-open-kernel-dkms"], "535.309.01")


def test_a_package_that_no_repository_has_is_named():
    candidates = transactions.parse_apt_policy(captured("debian12-policy.txt"))
    with pytest.raises(ProvisionError, match="nvidia-fabricmanager"):
        transactions.check_candidates(candidates, ["libcuda1", "nvidia-fabricmanager"], "535.309.01")


def test_a_real_simulation_of_debian_12_passes_and_lists_its_packages():
    plan = check(captured("debian12-proprietary-simulation.txt"))
    assert plan["version"] == "535.309.01"
    assert {"nvidia-kernel-dkms", "dkms", "firmware-nvidia-gsp"} <= set(plan["changes"])


def test_apts_own_complaint_is_quoted():
    with pytest.raises(ProvisionError, match=r"firmware-nvidia-gsp \(= 535\.261\.03\)"):
        transactions.parse_apt_simulation(captured("debian12-open-unresolvable.txt"))


def test_text_that_is_no_simulation_is_refused():
    with pytest.raises(ProvisionError, match="not the output"):
        transactions.parse_apt_simulation("bash: apt-get: command not found\n")


SIMULATION = "Reading package lists...\nInst {line}\n"


def test_p059_a_transaction_that_brings_a_kernel_is_refused_and_names_the_variable():
    text = (
        captured("debian12-proprietary-simulation.txt")
        + "Inst linux-image-6.1.0-40-amd64 (6.1.153-1 Debian:12 [amd64])\n"
    )
    with pytest.raises(ProvisionError, match=r"linux-image-6\.1\.0-40-amd64.*gpu_driver_kernel_change_ok"):
        check(text)
    assert check(text, kernel_change_ok=True)["version"] == "535.309.01"


def test_p061_headers_are_no_kernel():
    text = (
        captured("debian12-proprietary-simulation.txt")
        + "Inst linux-headers-6.1.0-40-amd64 (6.1.153-1 Debian:12 [amd64])\n"
    )
    assert "linux-headers-6.1.0-40-amd64" in check(text)["changes"]


def test_a_transaction_that_removes_something_else_is_refused():
    text = captured("debian12-proprietary-simulation.txt") + "Remv slurmd [22.05.8-4]\n"
    with pytest.raises(ProvisionError, match="remove slurmd"):
        check(text)


def test_the_other_flavour_of_the_modules_may_be_replaced():
    text = captured("debian12-proprietary-simulation.txt") + "Remv nvidia-open-kernel-dkms [535.261.03-1]\n"
    removable = ["nvidia-(open-)?kernel-(dkms|support)"]
    assert "nvidia-open-kernel-dkms" in check(text, removable=removable)["changes"]


def test_installed_packages_that_stay_count_with_their_version():
    text = "Reading package lists...\n0 upgraded, 0 newly installed, 0 to remove and 0 not upgraded.\n"
    installed = dict.fromkeys(PROPRIETARY, "535.309.01-0+deb12u1")
    assert check(text, installed=installed) == {"version": "535.309.01", "changes": []}


def test_an_upgrade_line_with_an_old_version_is_read():
    text = SIMULATION.format(line="libcuda1 [535.261.03-1] (535.309.01-0+deb12u1 Debian-Security:12 [amd64])")
    assert transactions.parse_apt_simulation(text) == (
        transactions.PackageChange("libcuda1", "535.261.03-1", "535.309.01-0+deb12u1"),
    )


def test_only_packages_in_state_installed_are_installed():
    text = "a\t1.0-1\tinstalled\nb\t2.0-1\tconfig-files\nno packages found matching c\n"
    assert transactions.parse_installed(text) == {"a": "1.0-1"}


KERNEL = "5.14.0-503.14.1.el9_5"


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (f"kernel-devel-{KERNEL}.x86_64", KERNEL),
        (f"kernel-devel-{KERNEL}", KERNEL),
        ("kernel-devel-5.14.0-503.14.el9_5.x86_64", None),
        (f"kernel-devel-{KERNEL[:-1]}.x86_64", None),
        (f"kernel-{KERNEL}.x86_64", None),
    ],
)
def test_the_headers_of_a_kernel_are_found_by_their_whole_name(asked, found):
    candidates = transactions.parse_repoquery(f"kernel-devel {KERNEL}\nnvidia-driver-cuda 3:570.86.10-1.el9\n")
    assert transactions.rpm_candidate(candidates, asked) == found


TABLE = [
    {"name": "nvidia-driver-cuda", "same_version": True},
    {"name": "libnvidia-nscq-570", "same_version": True},
    {"name": "nvlsm", "same_version": False},
]
INSTALLED = {"nvidia-driver-cuda": "3:570.86.10-1.el9", "libnvidia-nscq-570": "0:570.86.10-1", "nvlsm": "0:2025.06-1"}


def test_dnf_is_asked_for_every_package_and_for_the_headers_that_lack():
    wanted = transactions.rpm_transaction(TABLE, "570.86.10", {}, headers=f"kernel-devel-{KERNEL}.x86_64")
    assert wanted["specs"] == [
        "libnvidia-nscq-570-570.86.10*", "nvidia-driver-cuda-570.86.10*", "nvlsm", f"kernel-devel-{KERNEL}.x86_64",
    ]  # fmt: skip
    assert wanted["changes"] == ["libnvidia-nscq-570", "nvidia-driver-cuda", "nvlsm", f"kernel-devel-{KERNEL}.x86_64"]


def test_nothing_changes_where_every_package_is_there_and_a_version_that_only_begins_alike_is_another_one():
    assert transactions.rpm_transaction(TABLE, "570.86.10", INSTALLED)["changes"] == []
    assert transactions.rpm_transaction(TABLE, "570.86.1", INSTALLED)["changes"] == [
        "libnvidia-nscq-570",
        "nvidia-driver-cuda",
    ]


# `dnf module list nvidia-driver` of dnf 4, in part.
STREAMS = """NVIDIA CUDA
Name          Stream          Profiles                Summary
nvidia-driver latest-dkms [d] default [d], fm, ks     Nvidia driver for latest-dkms branch
nvidia-driver 570-open        default [d], fm, ks     Nvidia driver for 570-open branch
nvidia-driver 580-open [e]    default [d], fm, ks     Nvidia driver for 580-open branch

Hint: [d]efault, [e]nabled, [x]disabled, [i]nstalled
"""


@pytest.mark.parametrize(
    ("stream", "state"),
    [("570-open", "available"), ("580-open", "enabled"), ("570", "absent"), ("latest-dkms", "available")],
)
def test_the_state_of_a_module_stream_is_read(stream, state):
    assert transactions.stream_state(STREAMS, "nvidia-driver", stream) == state
    assert transactions.stream_state("", "nvidia-driver", stream) == "absent"


def test_an_optional_package_is_taken_only_from_the_source_of_the_others():
    table = [
        {"name": "libcompute", "same_version": True},
        {"name": "smi", "same_version": True, "optional": True},
        {"name": "daemon", "same_version": True, "optional": True},
    ]
    candidates = {"libcompute": "580.95.05-0ubuntu1", "smi": "580.95.05-0ubuntu0.24.04.3"}
    assert transactions.packages_left_out(table, candidates) == ["daemon", "smi"]
    assert transactions.packages_left_out(table, dict.fromkeys(("libcompute", "smi", "daemon"), "1-1")) == []
    assert transactions.packages_left_out(table, {}) == ["daemon", "smi"]


def test_rpm_candidates_are_read_by_name():
    assert transactions.parse_repoquery("nvidia-driver-cuda 3:570.86.10-1.el9\n\n") == {
        "nvidia-driver-cuda": "3:570.86.10-1.el9"
    }
