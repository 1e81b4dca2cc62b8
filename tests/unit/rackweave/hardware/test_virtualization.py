"""Container, virtual machine, both or neither: from trees that show what such machines show."""

import pytest
from rackweave.cli.system import LocalSystem
from rackweave.hardware.collect_host import find_identity
from rackweave.hardware.virtualization import find_virtualization

FLAGS = "flags\t\t: fpu vme sse2 ht lm{}\n"
VIRTUAL, BARE = FLAGS.format(" hypervisor"), FLAGS.format("")
CLOCKS = "sys/devices/system/clocksource/clocksource0/available_clocksource"
FIRST = {"cgroup": 4026531835, "pid": 4026531836, "uts": 4026531838, "ipc": 4026531839}


@pytest.fixture
def tree(tmp_path):
    def make(files, namespaces=None):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        for name, number in (namespaces or {}).items():
            path = tmp_path / "proc/self/ns" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(f"{name}:[{number}]")
        return LocalSystem([str(tmp_path)])

    return make


def dmi(vendor, product=""):
    return {"sys/class/dmi/id/sys_vendor": f"{vendor}\n", "sys/class/dmi/id/product_name": f"{product}\n"}


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"proc/cpuinfo": BARE, **dmi("Supermicro", "AS-8125GS-TNHR")}, "none"),
        ({"proc/cpuinfo": BARE, **dmi("Amazon EC2", "p5.metal")}, "none"),
        ({"proc/cpuinfo": BARE, **dmi("Microsoft Corporation", "C2195")}, "none"),
        ({"proc/cpuinfo": BARE, CLOCKS: "tsc hpet acpi_pm\n"}, "none"),
        ({"proc/cpuinfo": VIRTUAL, **dmi("QEMU", "Standard PC (Q35 + ICH9, 2009)")}, "kvm"),
        ({"proc/cpuinfo": VIRTUAL, **dmi("Amazon EC2", "p5.48xlarge")}, "kvm"),
        ({"proc/cpuinfo": VIRTUAL, **dmi("Microsoft Corporation", "Virtual Machine")}, "hyperv"),
        ({"proc/cpuinfo": VIRTUAL, **dmi("VMware, Inc.", "VMware7,1")}, "vmware"),
        ({"proc/cpuinfo": VIRTUAL, **dmi("innotek GmbH", "VirtualBox")}, "virtualbox"),
        ({"proc/cpuinfo": VIRTUAL, "sys/hypervisor/type": "xen\n"}, "xen"),
        # a microVM has neither DMI nor a bus; its clock tells
        ({"proc/cpuinfo": VIRTUAL, CLOCKS: "tsc kvm-clock \n"}, "kvm"),
        ({"proc/cpuinfo": VIRTUAL, CLOCKS: "hyperv_clocksource_tsc_page acpi_pm\n"}, "hyperv"),
        ({"proc/cpuinfo": VIRTUAL}, "vm"),
        # processors without flags
        ({"proc/cpuinfo": "Features : fp asimd\n", **dmi("QEMU", "KVM Virtual Machine")}, "kvm"),
        ({"proc/cpuinfo": "Features : fp asimd\n", **dmi("NVIDIA", "GB200 NVL")}, "none"),
        (
            {"proc/cpuinfo": "Features : fp\n", "sys/firmware/devicetree/base/hypervisor/compatible": "linux,kvm\0"},
            "kvm",
        ),
        # the control domain of Xen owns the hardware
        ({"proc/cpuinfo": VIRTUAL, "sys/hypervisor/type": "xen\n", "proc/xen/capabilities": "control_d\n"}, "none"),
    ],
)
def test_a_hypervisor_is_told_by_evidence(tree, files, found):
    assert find_virtualization(tree(files)) == (found, None if found == "none" else found)


def test_a_mark_left_by_the_image_does_not_make_a_microvm_a_container(tree):
    files = {"proc/cpuinfo": VIRTUAL, CLOCKS: "tsc kvm-clock\n", ".dockerenv": ""}
    assert find_virtualization(tree(files, FIRST)) == ("kvm", "kvm")


def test_such_a_mark_proves_nothing_on_a_virtual_machine_whose_namespaces_are_unreadable(tree):
    assert find_virtualization(tree({"proc/cpuinfo": VIRTUAL, ".dockerenv": ""})) == ("vm", "vm")


@pytest.mark.parametrize("mark", [".dockerenv", "run/.containerenv", "run/systemd/container"])
def test_a_container_in_a_virtual_machine_says_both(tree, mark):
    files = {"proc/cpuinfo": VIRTUAL, **dmi("QEMU"), mark: "podman\n"}
    assert find_virtualization(tree(files, {**FIRST, "pid": 4026532201})) == ("container", "kvm")


def test_a_container_with_the_hosts_processes_is_known_by_its_other_namespaces(tree):
    files = {"proc/cpuinfo": BARE, ".dockerenv": ""}
    assert find_virtualization(tree(files, {**FIRST, "uts": 4026532199})) == ("container", None)


def test_a_container_on_bare_metal_is_a_container_alone(tree):
    assert find_virtualization(tree({"proc/cpuinfo": BARE, "run/systemd/container": "podman\n"})) == ("container", None)


def test_the_tool_is_asked_where_files_do_not_name_the_hypervisor(tree, tmp_path):
    system = tree({"proc/cpuinfo": VIRTUAL, "usr/bin/systemd-detect-virt": "#!/bin/sh\necho bhyve\n"})
    (tmp_path / "usr/bin/systemd-detect-virt").chmod(0o755)
    assert find_virtualization(system) == ("bhyve", "bhyve")


def test_a_virtual_machine_keeps_its_own_identity(tree):
    files = {"proc/cpuinfo": VIRTUAL, **dmi("QEMU", "Standard PC"), "sys/class/dmi/id/product_serial": "vm-7\n"}
    identity = find_identity(tree({**files, ".dockerenv": ""}, FIRST))
    assert (identity.serial, identity.virtualization, identity.hypervisor) == ("vm-7", "kvm", "kvm")
