"""Collection from trees: sources of the GPUs and their order, what is unknown, and what may never be guessed."""

import os
from dataclasses import replace

import pytest
from rackweave.cli.nvml import read_gpus
from rackweave.cli.system import LocalSystem
from rackweave.errors import DocumentError, ParseError
from rackweave.hardware.collect import collect_node
from rackweave.hardware.document import read_document
from rackweave.hardware.node import Gpu
from rackweave.hardware.nvidia_smi import GpuReading

from tests.support.layouts import LAYOUTS, l06_roce_bonds
from tests.support.machines import TOOL_OUTPUT, build

MACHINE = l06_roce_bonds().machine


def collect(root, *overlays, origin="measured", nvml=None, host="gx01"):
    return collect_node(LocalSystem([*map(str, overlays), str(root)]), host, origin, "3.9.18", nvml)


@pytest.fixture
def tree(tmp_path):
    return build(MACHINE, tmp_path / "tree")


def test_a_collected_document_can_be_read_again(tree):
    document = collect(tree)

    assert read_document(document.as_dict()) == document


def test_a_tree_without_tools_and_driver_gives_unknowns_and_warnings(tree):
    for tool in (tree / "usr/bin").iterdir():
        tool.unlink()
    document = collect(tree)

    assert document.slurm is None
    assert document.nics[0].ports[0].active_mtu is None
    assert document.nics[0].roce.trust is None
    assert any("ibv_devinfo" in warning for warning in document.collection.warnings)


def test_versions_are_read_as_the_programs_print_them(tree):
    versions = collect(tree).versions

    assert (versions.slurm, versions.fabric_manager) == ("22.05.8", "560.35.05")
    assert (versions.nvidia_driver, versions.nvidia_kernel_module) == ("560.35.05", "open")


def test_settings_of_the_running_kernel_are_read():
    assert LocalSystem().read("/proc/sys/kernel/osrelease") == os.uname().release


def test_an_empty_tree_is_collected_without_a_traceback(tmp_path):
    document = collect(tmp_path)

    assert document.gpus == ()
    assert document.nics == ()
    assert document.collection.gpu_source == "none"
    assert read_document(document.as_dict()) == document


def test_nvml_comes_first_and_sysfs_adds_where_a_gpu_sits(tree):
    gpu = Gpu(0, uuid="GPU-00000000-0000-4000-8000-00000000abcd", bdf=MACHINE.gpus[3].bdf, memory_bytes=80 << 30)
    document = collect(tree, nvml=lambda: GpuReading("560.35.05", "12.6", (gpu,)))

    assert document.collection.gpu_source == "nvml"
    assert document.gpus[0].memory_bytes == 80 << 30
    assert document.gpus[0].pcie_path == MACHINE.gpus[3].path
    assert document.versions.cuda == "12.6"


def failing_nvml():
    raise ParseError("does not start: Driver/library version mismatch")


def test_where_nvml_fails_nvidia_smi_is_asked_and_the_failure_is_told(tree):
    report = (TOOL_OUTPUT / "nvidia_smi.xml").read_text()
    tool = tree / "usr/bin/nvidia-smi"
    tool.write_text(f"#!/bin/sh\ncat <<'END'\n{report}END\n")
    tool.chmod(0o755)

    document = collect(tree, nvml=failing_nvml)

    assert document.collection.gpu_source == "nvidia-smi"
    assert [gpu.bdf for gpu in document.gpus] == ["0000:1b:00.0", "0000:9d:00.0"]
    assert any("version mismatch" in warning for warning in document.collection.warnings)


def test_where_both_fail_sysfs_is_read(tree):
    tool = tree / "usr/bin/nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'Failed to initialize NVML: Driver/library version mismatch'\nexit 18\n")
    tool.chmod(0o755)

    document = collect(tree, nvml=failing_nvml)

    assert document.collection.gpu_source == "sysfs"
    assert len(document.gpus) == 8
    assert any("exit status 18" in warning for warning in document.collection.warnings)


def test_gpus_of_sysfs_are_numbered_by_hexadecimal_bus(tmp_path):
    for bus in ("5b", "0f", "9", "44", "2d", "c3"):
        place = tmp_path / f"proc/driver/nvidia/gpus/0000:{bus:>02}:00.0"
        place.mkdir(parents=True)
        (place / "information").write_text(f"Model: x\nGPU UUID: GPU-00000000-0000-4000-8000-0000000000{bus:>02}\n")

    gpus = collect(tmp_path).gpus

    assert [gpu.bdf[5:7] for gpu in gpus] == ["09", "0f", "2d", "44", "5b", "c3"]
    assert [gpu.index for gpu in gpus] == list(range(6))


def test_gpus_without_a_driver_are_seen_on_the_bus_with_unknown_uuid(tree):
    import shutil

    shutil.rmtree(tree / "proc/driver")
    document = collect(tree)

    assert [gpu.bdf for gpu in document.gpus] == [gpu.bdf for gpu in MACHINE.gpus]
    assert {gpu.uuid for gpu in document.gpus} == {None}
    assert any("no driver is loaded" in warning for warning in document.collection.warnings)


def lab_node(root):
    (root / "dev").mkdir(parents=True)
    for name in ("nvidia0", "nvidia1", "nvidia10", "nvidia2", "nvidiactl", "nvidia-uvm"):
        (root / "dev" / name).touch()
    (root / "run/systemd").mkdir(parents=True)
    (root / "run/systemd/container").write_text("podman\n")
    return root


def test_device_nodes_are_gpus_of_a_simulated_node_in_the_order_of_their_numbers(tmp_path):
    document = collect(lab_node(tmp_path), origin="simulated", host="gpu01")

    assert document.collection.gpu_source == "simulated"
    assert [gpu.device_file for gpu in document.gpus] == [
        "/dev/nvidia0",
        "/dev/nvidia1",
        "/dev/nvidia2",
        "/dev/nvidia10",
    ]
    assert any("made up" in warning for warning in document.collection.warnings)


def test_made_up_uuids_are_the_same_each_time_and_differ_between_hosts(tmp_path):
    node = lab_node(tmp_path)
    first, again, other = (collect(node, origin="simulated", host=host) for host in ("gpu01", "gpu01", "gpu02"))

    assert [gpu.uuid for gpu in first.gpus] == [gpu.uuid for gpu in again.gpus]
    assert not {gpu.uuid for gpu in first.gpus} & {gpu.uuid for gpu in other.gpus}


def test_device_nodes_are_no_gpus_of_a_measured_node(tmp_path):
    assert collect(lab_node(tmp_path)).gpus == ()


def test_a_container_has_no_identity_of_its_host(tmp_path):
    node = lab_node(tmp_path)
    (node / "sys/class/dmi/id").mkdir(parents=True)
    (node / "sys/class/dmi/id/product_serial").write_text("HOST-SERIAL\n")

    identity = collect(node).identity

    assert identity.virtualization == "container"
    assert identity.serial is None


def test_a_simulated_tree_lies_over_the_real_one(tmp_path):
    node = lab_node(tmp_path / "node")
    overlay = build(MACHINE, tmp_path / "overlay")

    document = collect(node, overlay, origin="simulated")

    assert len(document.nics) == 8
    assert len(document.gpus) == 8
    assert document.gpus[0].uuid.startswith("GPU-00000000")
    assert document.identity.virtualization == "container"


@pytest.mark.parametrize("origin", ["example", "guessed"])
def test_a_collection_never_calls_itself_an_example(tmp_path, origin):
    with pytest.raises(DocumentError, match="measured or simulated"):
        collect(tmp_path, origin=origin)


def test_acs_is_reported_for_bridges_on_the_way_to_a_gpu_or_nic_only(tmp_path):
    on_the_way = MACHINE.gpus[0].path[2]
    tree = build(replace(MACHINE, acs_bridges=(on_the_way,)), tmp_path)

    assert collect(tree).pcie.acs_bridges == (on_the_way,)


def test_acs_falls_back_to_lspci_where_the_configuration_space_is_short(tmp_path):
    tree = build(MACHINE, tmp_path)
    for config in tree.glob("sys/devices/**/config"):
        config.write_bytes(config.read_bytes()[:64])

    document = collect(tree)

    assert document.pcie.acs_bridges is None
    assert any("ACS unknown" in warning for warning in document.collection.warnings)


def test_serials_and_slots_of_network_cards_are_read(tmp_path):
    nics = tuple(replace(nic, serial=f"MT00{index}", slot=f"{index + 1}") for index, nic in enumerate(MACHINE.nics))
    document = collect(build(replace(MACHINE, nics=nics), tmp_path))

    assert [nic.serial for nic in document.nics] == [f"MT00{index}" for index in range(8)]
    assert [nic.slot for nic in document.nics] == [f"{index + 1}" for index in range(8)]
    assert {nic.max_read_request for nic in document.nics} == {4096}


def test_processors_and_limits_are_counted(tree):
    document = collect(tree)

    assert (document.cpu.sockets, document.cpu.cores_per_socket, document.cpu.threads_per_core) == (2, 56, 2)
    assert document.cpu.numa_nodes[1].cpus == "56-111,168-223"
    assert document.limits.memlock_effective_bytes == -1
    assert document.limits.memlock_configured_bytes == -1
    assert document.limits.rdma_devices_opened == 8
    assert document.pcie.iommu == "passthrough"
    assert document.gpudirect.dmabuf is True


def test_addresses_are_read_from_the_kernel_where_ip_is_not_installed(tmp_path):
    net = tmp_path / "proc/net"
    net.mkdir(parents=True)
    header = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
    rows = "eth0\t00000000\t014D590A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
    rows += "eth0\t004D590A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
    (net / "route").write_text(header + rows)
    (net / "fib_trie").write_text("Main:\n  +-- 0.0.0.0/0 3 0 5\n        |-- 10.89.77.21\n           /32 host LOCAL\n")
    (net / "if_inet6").write_text("fd000000000000000000000000000015 02 40 00 80     eth0\n")
    base = tmp_path / "sys/class/net/eth0"
    base.mkdir(parents=True)
    (base / "address").write_text("02:00:5e:00:00:15\n")
    (base / "mtu").write_text("1500\n")

    (interface,) = collect(tmp_path).interfaces

    assert interface.addresses == ("10.89.77.21/24", "fd00::15/64")
    assert interface.default_route is True


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_node_is_collected_within_two_seconds(name, tmp_path):
    # Processor time, with that of the tools: other programs of this machine do not count.
    system = LocalSystem([str(build(LAYOUTS[name]().machine, tmp_path))])
    before = sum(os.times()[:4])
    collect_node(system, "gx01", "measured", None, None)

    assert sum(os.times()[:4]) - before < 2


class FakeNvml:
    """The calls of the NVML bindings that are used, for one GPU that has no serial and no ECC."""

    class NVMLError(Exception):
        pass

    NVML_CLOCK_SM, NVML_FEATURE_ENABLED = 1, 1

    def __init__(self, starts=True):
        self.starts = starts
        self.shut = False

    def nvmlInit(self):
        if not self.starts:
            raise self.NVMLError("Driver Not Loaded")

    def nvmlShutdown(self):
        self.shut = True

    def nvmlDeviceGetCount(self):
        return 1

    def nvmlSystemGetDriverVersion(self):
        return b"560.35.05"

    def nvmlSystemGetCudaDriverVersion_v2(self):
        return 12060

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetUUID(self, handle):
        return "GPU-00000000-0000-4000-8000-000000000000"

    def nvmlDeviceGetPciInfo(self, handle):
        return type("Info", (), {"busId": "0000001B:1B:00.0"})

    def nvmlDeviceGetMemoryInfo(self, handle):
        return type("Memory", (), {"total": 80 << 30})

    def nvmlDeviceGetName(self, handle):
        return "NVIDIA H100 80GB HBM3"

    def nvmlDeviceGetMinorNumber(self, handle):
        return 3

    def nvmlDeviceGetMaxClockInfo(self, handle, kind):
        return 1980

    def nvmlDeviceGetPowerManagementLimit(self, handle):
        return 700000

    def nvmlDeviceGetVbiosVersion(self, handle):
        return "96.00.61.00.01"

    def nvmlDeviceGetNvLinkState(self, handle, link):
        if link >= 12:
            raise self.NVMLError("Invalid Argument")
        return 1

    def _not_supported(self, *_):
        raise self.NVMLError("Not Supported")

    nvmlDeviceGetSerial = nvmlDeviceGetEccMode = _not_supported


def test_nvml_gives_what_the_gpu_has_and_unknown_for_the_rest():
    nvml = FakeNvml()
    reading = read_gpus(nvml)

    (gpu,) = reading.gpus
    assert (reading.driver, reading.cuda) == ("560.35.05", "12.6")
    assert gpu.bdf == "001b:1b:00.0"
    assert (gpu.serial, gpu.ecc_enabled, gpu.nvlink_links, gpu.power_limit_w) == (None, None, 12, 700)
    assert gpu.device_file == "/dev/nvidia3"
    assert nvml.shut


def test_nvml_that_does_not_start_is_one_sentence():
    with pytest.raises(ParseError, match="does not start: Driver Not Loaded"):
        read_gpus(FakeNvml(starts=False))
