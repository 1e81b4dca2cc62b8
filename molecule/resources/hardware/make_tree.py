#!/usr/bin/env python3
"""Build the sysfs and procfs of a made-up 8-GPU machine below a directory; at every boot, so that settings are lost.

The driver of the tree is the installed one, as after a real boot. Addresses follow the public H100 layout.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

GPU_BUSES = ("0f", "2d", "44", "5b", "89", "a8", "c0", "d8")
NIC_BUSES = ("0c", "2a", "41", "58", "86", "a5", "bd", "d5")
SWITCH_BUSES = ("05", "06", "07", "08")
KERNEL = "6.1.0-fixture-amd64"


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def pci_function(root, parent, bdf, pci_class, vendor, device):
    """Make one function below its bridges and link it into the flat list, as sysfs does."""
    directory = root / "sys/devices" / parent / bdf
    for name, value in (("class", pci_class), ("vendor", vendor), ("device", device), ("numa_node", "0")):
        write(directory / name, value)
    link = root / "sys/bus/pci/devices" / bdf
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(directory)
    return directory


def rdma_function(root, index, bus, rate):
    bdf = f"0000:{bus}:00.0"
    device = pci_function(root, f"pci0000:{bus}/0000:{bus}:01.0", bdf, "0x020000", "0x15b3", "0x1021")
    rdma, netdev = f"mlx5_{index}", f"ens{index}np0"
    base = root / "sys/class/infiniband" / rdma
    write(device / "infiniband" / rdma / "node_guid", f"0000:00ff:fe00:{index:04x}")
    write(device / "net" / netdev / "ifindex", str(index + 2))
    for name, value in (("state", "4: ACTIVE"), ("rate", f"{rate} Gb/sec (4X NDR)"), ("link_layer", "Ethernet")):
        write(base / "ports/1" / name, value)
    (base / "device").symlink_to(device)
    write(base / "tc/1/traffic_class", "0")
    write(root / "sys/class/net" / netdev / "mtu", "1500")
    for point in ("roce_np", "roce_rp"):
        for priority in range(8):
            write(root / "sys/class/net" / netdev / "ecn" / point / "enable" / str(priority), "0")
    write(root / "sys/class/net" / netdev / "ecn/roce_np/cnp_dscp", "0")
    write(root / "sys/kernel/config/rdma_cm" / rdma / "ports/1/default_roce_tos", "0")
    return bdf, netdev


def installed_driver():
    """Return the version of the installed kernel module package, as the module of the next boot would have."""
    done = subprocess.run(
        ["dpkg-query", "--show", "--showformat=${Version} ${db:Status-Status}", "nvidia-kernel-open-dkms"],
        capture_output=True,
        text=True,
        check=False,
    )
    version, _, status = done.stdout.partition(" ")
    return version.split("-")[0] if status == "installed" else None


def kernel_line():
    """Return the line of the boot entry, or what a machine has that nobody set up."""
    entry = Path("/boot/grub/grub.cfg")
    return entry.read_text().split(maxsplit=2)[2] if entry.exists() else "root=/dev/sda1 intel_iommu=on"


def loaded_gpu_module(driver):
    """Return the module that takes the GPUs at boot: nouveau, unless the initial RAM disk has our blacklist."""
    disk = Path(f"/boot/initrd.img-{KERNEL}")
    if driver:
        return "nvidia"
    blocked = disk.exists() and "rackweave-nouveau.conf" in disk.read_text()
    return "i2c_core" if blocked else "nouveau"


def main():
    root = Path(sys.argv[1])
    shutil.rmtree(root.parent, ignore_errors=True)
    for bus in GPU_BUSES:
        pci_function(root, f"pci0000:{bus}/0000:{bus}:01.0", f"0000:{bus}:00.0", "0x030200", "0x10de", "0x2330")
    for bus in SWITCH_BUSES:
        pci_function(root, f"pci0000:{bus}/0000:{bus}:01.0", f"0000:{bus}:00.0", "0x068000", "0x10de", "0x22a3")
    for index, bus in enumerate(NIC_BUSES):
        rdma_function(root, index, bus, 400)
    _, front = rdma_function(root, len(NIC_BUSES), "f0", 100)
    write(
        root / "proc/net/route",
        f"Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n"
        f"{front} 00000000 0100000A 0003 0 0 0 00000000 0 0 0",
    )
    write(root / "proc/sys/kernel/osrelease", KERNEL)
    write(root / "proc/cmdline", kernel_line())
    (root / "lib/modules" / KERNEL / "build").mkdir(parents=True)
    write(root / "boot" / f"vmlinuz-{KERNEL}", "")
    driver = installed_driver()
    write(root / "proc/modules", f"mlx5_core 1 0 - Live 0\n{loaded_gpu_module(driver)} 1 0 - Live 0")
    if driver:
        text = f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {driver}  Release Build"
        write(root / "proc/driver/nvidia/version", text)
    for index in range(len(GPU_BUSES)):
        write(root / "dev" / f"nvidia{index}", "")
    for index in range(len(SWITCH_BUSES)):
        write(root / "dev" / f"nvidia-nvswitch{index}", "")
    # Registers and QoS as a BIOS leaves them: ACS redirection on every bridge, 512 bytes of read request.
    bridges = {f"0000:{bus}:01.0": {"ECAP_ACS+6.w": "001d"} for bus in GPU_BUSES + NIC_BUSES + ("f0",)}
    ports = {f"0000:{bus}:00.0": {"CAP_EXP+8.w": "2936"} for bus in (*NIC_BUSES, "f0")}
    write(root.parent / "registers.json", json.dumps({**bridges, **ports}))
    write(root.parent / "qos.json", "{}")


if __name__ == "__main__":
    main()
