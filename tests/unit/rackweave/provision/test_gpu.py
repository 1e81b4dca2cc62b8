import pytest
from rackweave.errors import ProvisionError
from rackweave.provision import gpu

H100 = {"class": "0x030200", "vendor": "0x10de", "device": "0x2330"}
NVSWITCH_H100 = {"class": "0x068000", "vendor": "0x10de", "device": "0x22a3"}
NVSWITCH_A100 = {"class": "0x068000", "vendor": "0x10de", "device": "0x1af1"}
L40S = {"class": "0x030200", "vendor": "0x10de", "device": "0x26b9"}
B200 = {"class": "0x030200", "vendor": "0x10de", "device": "0x2901"}
GRACE_ROOT_PORT = {"class": "0x060400", "vendor": "0x10de", "device": "0x22b1"}
OTHER_BRIDGE = {"class": "0x068000", "vendor": "0x8086", "device": "0x09a2"}


def decision(*rows, state="auto"):
    devices = gpu.pci_devices([{"bdf": f"0000:{index:02x}:00.0", **row} for index, row in enumerate(rows)])
    return gpu.fabric_manager_decision(devices, state)


@pytest.mark.parametrize("switch", [NVSWITCH_A100, NVSWITCH_H100])
def test_nvswitches_on_the_bus_want_a_fabric_manager(switch):
    assert decision(H100, switch, switch)["wanted"] is True


def test_p053_a_pcie_node_in_the_same_group_gets_no_fabric_manager_and_the_reason_is_said():
    assert decision(L40S, OTHER_BRIDGE) == {
        "wanted": False,
        "subnet_manager": False,
        "reason": "no NVSwitch on the PCI bus",
    }


def test_root_ports_of_nvidias_own_cpu_are_no_nvswitches():
    assert decision(H100, GRACE_ROOT_PORT)["wanted"] is False


def test_boards_that_hide_their_switches_want_the_subnet_manager_too():
    found = decision(B200)
    assert (found["wanted"], found["subnet_manager"]) == (True, True)


def test_the_operator_overrides_detection():
    assert decision(H100, NVSWITCH_H100, state="absent")["wanted"] is False
    with pytest.raises(ProvisionError, match="maybe"):
        decision(H100, state="maybe")


def test_a_gpu_too_new_for_any_table_is_a_gpu():
    row = {"bdf": "0001:01:00.0", "class": "0x030200", "vendor": "0x10de", "device": "0xffff"}
    assert len(gpu.gpus(gpu.pci_devices([row]))) == 1


def gpudirect(**options):
    settings = {
        "requested": "auto",
        "flavour": "open",
        "driver": "570.86.10",
        "kernel": "6.1.0-40-amd64",
        "cuda": "12.6",
    }
    return gpu.gpudirect_decision(**{**settings, **options})


def test_open_modules_on_a_new_kernel_take_dmabuf():
    assert gpudirect()["way"] == "dmabuf"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"flavour": "proprietary"}, "proprietary"),
        ({"driver": "510.108.03"}, "510.108.03"),
        ({"kernel": "5.4.0-190-generic"}, "5.4.0-190-generic"),
        ({"cuda": "11.6"}, "11.6"),
    ],
)
def test_each_missing_capability_leads_to_peermem_with_its_reason(change, reason):
    found = gpudirect(**change)
    assert found["way"] == "peermem"
    assert reason in found["reason"]


def test_dmabuf_that_cannot_work_is_refused_when_asked_for():
    with pytest.raises(ProvisionError, match="proprietary"):
        gpudirect(requested="dmabuf", flavour="proprietary")


def test_p047_an_nccl_that_does_not_see_peermem_is_warned_about():
    assert "2.22.3" in gpudirect(requested="peermem", nccl="2.22.3")["warnings"][0]
    assert gpudirect(requested="peermem", nccl="2.23.4")["warnings"] == []
    assert gpudirect(nccl="2.22.3")["warnings"] == []


def test_no_reboot_is_due_where_the_installed_driver_is_loaded():
    assert gpu.driver_reboot_reasons({"loaded_driver": "570.86.10", "modules": ["nvidia"]}, wanted="570.86.10") == []


def test_p063_nouveau_in_use_is_a_reason_to_reboot():
    reasons = gpu.driver_reboot_reasons({"loaded_driver": None, "modules": ["nouveau"]}, wanted="570.86.10")
    assert "nouveau" in reasons[0]


def test_p057_userspace_that_moved_under_the_loaded_driver_is_found():
    assert "535.161.07" in gpu.driver_library_mismatch("535.161.07", "535.183")
    assert gpu.driver_library_mismatch("535.183.06", "535.183") is None
    assert gpu.driver_library_mismatch(None, "535.183") is None


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (
            "NVIDIA-SMI version  : 580.65.06\nNVML version        : 580.65\nDRIVER version      : 580.65.06\n",
            "580.65.06",
        ),
        ("Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 535.183\n", "535.183"),
        ("| NVIDIA-SMI 535.161.07   Driver Version: 535.161.07   CUDA Version: 12.2     |", "535.161.07"),
        ("bash: nvidia-smi: command not found", None),
    ],
)
def test_the_library_version_is_read_from_what_nvidia_smi_prints(text, version):
    assert gpu.smi_library_version(text) == version


def test_the_fabric_is_up_only_when_completed_with_success():
    shown = "    GPU Fabric GUID : 0x0\n    Fabric\n        State     : {}\n        Status    : {}\n"
    assert gpu.fabric_is_up(shown.format("Completed", "Success"))
    assert not gpu.fabric_is_up(shown.format("In Progress", "N/A"))
    assert not gpu.fabric_is_up(shown.format("Completed", "Unknown Error"))
    assert not gpu.fabric_is_up("")


# nvidia-smi 555.42.02 on an A100 SXM4 behind NVSwitches, in part.
AMPERE = """GPU 00000000:68:00.0
    Product Name                          : NVIDIA A100-SXM4-80GB
    Product Brand                         : NVIDIA
    Product Architecture                  : Ampere
    Fabric
        State                             : N/A
        Status                            : N/A
        CliqueId                          : N/A
"""


def test_a_generation_without_fabric_state_is_up_where_the_fabric_manager_runs():
    assert gpu.fabric_is_up(AMPERE, manager_runs=True)
    assert gpu.fabric_is_up(AMPERE.partition("    Fabric")[0], manager_runs=True)
    assert not gpu.fabric_is_up(AMPERE, manager_runs=False)
    assert not gpu.fabric_is_up(AMPERE.replace("N/A", "In Progress"), manager_runs=True)


@pytest.mark.parametrize("generation", ["Hopper", "Blackwell", "Rubin"])
def test_a_generation_with_fabric_state_is_not_up_without_it(generation):
    assert not gpu.fabric_is_up(AMPERE.replace("Ampere", generation), manager_runs=True)


def test_p061_a_kernel_without_headers_anywhere_is_refused_before_the_build():
    sentence = gpu.kernel_headers_missing("5.14.0-284.el9.x86_64", False, "kernel-devel-5.14.0-284.el9.x86_64", None)
    assert "5.14.0-284.el9.x86_64" in sentence
    assert gpu.kernel_headers_missing("6.1.0-40-amd64", False, "linux-headers-6.1.0-40-amd64", "6.1.153-1") is None
    assert gpu.kernel_headers_missing("6.1.0-40-amd64", True, "linux-headers-6.1.0-40-amd64", None) is None


DKMS = "nvidia/570.86.10, 6.1.0-18-amd64, x86_64: installed\nnvidia, 570.86.10, 6.1.0-9-amd64, x86_64: installed\n"
DKMS += "mlnx-ofed-kernel/24.10, 6.1.0-18-amd64, x86_64: installed\nnvidia-current/535.1.1, 6.1.0, x86_64: installed\n"


@pytest.mark.parametrize(
    ("depends", "due"),
    [("nvidia", ["nvidia/570.86.10"]), ("", ["nvidia/570.86.10"]), ("ib_core,nvidia", []), ("nvidia,ib_uverbs", [])],
)
def test_a_peer_memory_module_that_was_built_before_ofed_is_built_anew(depends, due):
    assert gpu.peermem_rebuild(depends, DKMS, "570.86.10") == due


def test_nothing_is_built_anew_where_dkms_has_no_driver_of_that_version():
    assert gpu.peermem_rebuild("nvidia", DKMS, "580.65.06") == []
    assert gpu.peermem_rebuild("nvidia", "", "570.86.10") == []
