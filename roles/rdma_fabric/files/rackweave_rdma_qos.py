#!/usr/bin/env python3
"""Apply or verify RoCE and PCIe settings that are lost at every boot; run by rackweave-rdma-qos.service before slurmd.

    rackweave-rdma-qos apply|verify [--config FILE] [--root DIR] [--json]

Exit status: 0 everything is as configured, 1 something differs (each difference is one line), 2 unusable configuration.
What the kernel's own driver has no setting for is named in a line and is no difference, unless NVIDIA's OFED is wanted.
It stands alone (standard library, no import of Rackweave), because it runs at boot without the controller.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

SCHEMA = "rackweave.rdma_qos/1"
ACS_REDIRECTION = 0x1F  # SrcValid, TransBlk, ReqRedir, CmpltRedir, UpstreamFwd
COMMAND_TIMEOUT_S = 20


class SettingError(Exception):
    """A tool that failed or is missing, or output that cannot be read."""


def run(*command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise SettingError(f"{command[0]}: {exc}") from exc
    if done.returncode != 0:
        raise SettingError(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()[:200]}")
    return done.stdout


def read_text(path):
    try:
        return path.read_text().strip()
    except OSError:
        return None


def write_text(path, value):
    try:
        path.write_text(f"{value}\n")
    except OSError as exc:
        raise SettingError(f"{path}: {exc.strerror}") from exc


class Device:
    """One PCI function with an RDMA device; names are looked up now, they may differ from those of the last boot."""

    def __init__(self, root, bdf):
        self.pci = root / "sys/bus/pci/devices" / bdf
        self.root, self.bdf = root, bdf
        names = sorted(path.name for path in (self.pci / "infiniband").glob("*"))
        if not names:
            raise SettingError(f"{bdf}: no RDMA device in this slot")
        self.rdma = names[0]
        netdevs = sorted(path.name for path in (self.pci / "net").glob("*"))
        self.netdev = netdevs[0] if netdevs else None


class MlnxQos:
    """Trust and PFC through NVIDIA's mlnx_qos."""

    @staticmethod
    def read(netdev):
        text = run("mlnx_qos", "-i", netdev)
        trust = re.search(r"[Pp]riority trust state:\s*(\w+)", text)
        pfc = re.search(r"^\s*enabled((?:\s+[01]){8})", text, re.MULTILINE)
        if trust is None or pfc is None:
            raise SettingError(f"{netdev}: mlnx_qos printed no trust state or no PFC table")
        mapping = {}
        for priority, values in re.findall(r"^\s*prio:(\d)\s+dscp:([\d,]+)", text, re.MULTILINE):
            mapping.update({str(int(value)): int(priority) for value in values.split(",") if value})
        return {"trust": trust.group(1), "pfc": [int(v) for v in pfc.group(1).split()], "map": mapping}

    @staticmethod
    def write(netdev, roce):
        run("mlnx_qos", "-i", netdev, "--trust", roce["trust"])
        run("mlnx_qos", "-i", netdev, "--pfc", ",".join(str(v) for v in roce["pfc"]))
        have = MlnxQos.read(netdev)["map"]
        for dscp, priority in sorted(roce["dscp_to_priority"].items()):
            if have.get(dscp, int(dscp) // 8) != priority:
                run("mlnx_qos", "-i", netdev, "--dscp2prio", f"set,{dscp},{priority}")


class Dcb:
    """Trust and PFC through iproute2's dcb, for drivers without NVIDIA's tools."""

    @staticmethod
    def read(netdev):
        pfc = json.loads(run("dcb", "-j", "pfc", "show", "dev", netdev) or "{}").get("prio_pfc", {})
        entries = json.loads(run("dcb", "-j", "app", "show", "dev", netdev) or "{}").get("dscp_prio", [])
        flags = [1 if pfc.get(str(level)) in (True, "on") else 0 for level in range(8)]
        return {
            "trust": "dscp" if entries else "pcp",
            "pfc": flags,
            "map": {str(dscp): int(priority) for dscp, priority in entries},
        }

    @staticmethod
    def write(netdev, roce):
        levels = [f"{level}:{'on' if flag else 'off'}" for level, flag in enumerate(roce["pfc"])]
        run("dcb", "pfc", "set", "dev", netdev, "prio-pfc", *levels)
        for dscp, priority in sorted(roce["dscp_to_priority"].items()):
            run("dcb", "app", "replace", "dev", netdev, "dscp-prio", f"{dscp}:{priority}")


def priority_tool():
    if shutil.which("mlnx_qos"):
        return MlnxQos
    if shutil.which("dcb"):
        return Dcb
    raise SettingError("neither mlnx_qos nor dcb is installed, so trust and PFC can be neither set nor read")


def file_settings(device, roce):
    """Yield (what, path, value, pattern) of each setting that is a file; the pattern finds the value when read back."""
    root, rdma, netdev = device.root, device.rdma, device.netdev
    yield "traffic class", root / f"sys/class/infiniband/{rdma}/tc/1/traffic_class", roce["traffic_class"], r"(\d+)\s*$"
    ecn = root / f"sys/class/net/{netdev}/ecn"
    for level in range(8):
        wanted = 1 if level in roce["ecn_priorities"] else 0
        for point in ("roce_np", "roce_rp"):
            yield f"ECN {point} priority {level}", ecn / point / "enable" / str(level), wanted, r"(\d+)"
    if roce["ecn_priorities"] and roce["cnp_dscp"] is not None:
        yield "CNP DSCP", ecn / "roce_np/cnp_dscp", roce["cnp_dscp"], r"(\d+)"


def settable(device, config):
    """Yield the file settings that the loaded driver has; with OFED wanted all of them, for then a missing one is news.

    The kernel's own mlx5 driver has neither ecn/ below the network device nor tc/ below the RDMA device.
    """
    for entry in file_settings(device, config["roce"]):
        if config.get("ofed", True) or entry[1].exists():
            yield entry


def unsettable(device, config):
    """Return the kinds of settings that the loaded driver has no file for."""
    if not config["roce"] or device.netdev is None:
        return []
    there = {entry[0] for entry in settable(device, config)}
    lacking = [
        entry[0].partition(" roce_")[0] for entry in file_settings(device, config["roce"]) if entry[0] not in there
    ]
    return list(dict.fromkeys(lacking))


def tos_path(device):
    base = device.root / "sys/kernel/config/rdma_cm"
    directory = base / device.rdma
    if not directory.is_dir():
        try:
            directory.mkdir()  # configfs: making the directory makes the kernel create the attributes below it
        except OSError as exc:
            raise SettingError(f"{directory}: {exc.strerror}; is rdma_cm loaded and configfs mounted?") from exc
    return directory / "ports/1/default_roce_tos"


def read_number(path, pattern):
    text = read_text(path)
    match = re.search(pattern, text) if text is not None else None
    return int(match.group(1)) if match else None


def ethernet_differences(device, config):
    roce = config["roce"]
    if device.netdev is None:
        return ["no network device: the port is not Ethernet, or its driver is not loaded"]
    found, differences = priority_tool().read(device.netdev), []
    if found["trust"] != roce["trust"]:
        differences.append(f"trust is {found['trust']}, wanted {roce['trust']}")
    if found["pfc"] != roce["pfc"]:
        differences.append(f"PFC is {found['pfc']}, wanted {roce['pfc']}")
    for dscp, priority in sorted(roce["dscp_to_priority"].items()):
        actual = found["map"].get(dscp, int(dscp) // 8)
        if actual != priority:
            differences.append(f"DSCP {dscp} maps to priority {actual}, wanted {priority}")
    for what, path, wanted, pattern in settable(device, config):
        actual = read_number(path, pattern)
        if actual != wanted:
            differences.append(f"{what} is {actual}, wanted {wanted}")
    tos = read_number(tos_path(device), r"(\d+)")
    if tos != roce["cma_tos"]:
        differences.append(f"rdma_cm ToS is {tos}, wanted {roce['cma_tos']}")
    mtu = read_number(device.root / f"sys/class/net/{device.netdev}/mtu", r"(\d+)")
    if mtu != roce["mtu"]:
        differences.append(f"MTU is {mtu}, wanted {roce['mtu']}")
    return differences


def apply_ethernet(device, config):
    roce = config["roce"]
    if device.netdev is None:
        raise SettingError("no network device")
    priority_tool().write(device.netdev, roce)
    for _what, path, wanted, _pattern in settable(device, config):
        write_text(path, wanted)
    write_text(tos_path(device), roce["cma_tos"])
    write_text(device.root / f"sys/class/net/{device.netdev}/mtu", roce["mtu"])


def read_register(bdf, register):
    text = run("setpci", "-s", bdf, register).strip()
    try:
        return int(text, 16)
    except ValueError as exc:
        raise SettingError(f"{bdf}: setpci {register} printed {text!r}") from exc


def read_request_bytes(bdf):
    return 128 << ((read_register(bdf, "CAP_EXP+8.w") >> 12) & 0x7)


def apply_read_request(bdf, wanted):
    code = {128: 0, 256: 1, 512: 2, 1024: 3, 2048: 4, 4096: 5}[wanted]
    value = (read_register(bdf, "CAP_EXP+8.w") & 0x8FFF) | (code << 12)
    run("setpci", "-s", bdf, f"CAP_EXP+8.w={value:04x}")


def bridges_above(device):
    """Return the PCI addresses between the device and the root complex, read from its resolved sysfs path."""
    parts = device.pci.resolve().parts[:-1]
    return [part for part in parts if re.fullmatch(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", part)]


def acs_control(bridge):
    """Return the ACS control register of a bridge, or None if it has no such capability."""
    try:
        return read_register(bridge, "ECAP_ACS+6.w")
    except SettingError:
        return None


def device_differences(device, config):
    differences = ethernet_differences(device, config) if config["roce"] else []
    if config["max_read_request_bytes"]:
        actual = read_request_bytes(device.bdf)
        if actual != config["max_read_request_bytes"]:
            differences.append(f"MaxReadReq is {actual}, wanted {config['max_read_request_bytes']}")
    if config["acs_clear"]:
        for bridge in bridges_above(device):
            control = acs_control(bridge)
            if control is not None and control & ACS_REDIRECTION:
                differences.append(f"ACS of bridge {bridge} is {control:#06x}, wanted no redirection")
    return differences


def apply_device(device, config):
    if config["roce"]:
        apply_ethernet(device, config)
    if config["max_read_request_bytes"]:
        apply_read_request(device.bdf, config["max_read_request_bytes"])
    if config["acs_clear"]:
        for bridge in bridges_above(device):
            control = acs_control(bridge)
            if control is not None and control & ACS_REDIRECTION:
                run("setpci", "-s", bridge, f"ECAP_ACS+6.w={control & ~ACS_REDIRECTION:04x}")


def wait_for_devices(root, bdfs, wait_s):
    deadline = time.monotonic() + wait_s
    while True:
        missing = [bdf for bdf in bdfs if not list((root / "sys/bus/pci/devices" / bdf / "infiniband").glob("*"))]
        if not missing or time.monotonic() >= deadline:
            return
        time.sleep(0.5)


def process(action, root, config):
    """Return {bdf: [difference, ...]} and {bdf: [what cannot be set, ...]} after applying (or only looking)."""
    if action == "apply":
        wait_for_devices(root, config["devices"], config["wait_s"])
    result, lacking = {}, {}
    for bdf in config["devices"]:
        try:
            device = Device(root, bdf)
            if action == "apply" and device_differences(device, config):
                apply_device(device, config)
            result[bdf] = device_differences(device, config)
            lacking[bdf] = unsettable(device, config)
        except SettingError as exc:
            result[bdf] = [str(exc)]
    return result, lacking


def load(path):
    config = json.loads(Path(path).read_text())
    wanted = {"schema", "devices", "roce", "max_read_request_bytes", "acs_clear", "wait_s"}
    if not isinstance(config, dict) or config.get("schema") != SCHEMA or set(config) - {"ofed"} != wanted:
        raise ValueError(f"{path} is not a {SCHEMA} document")
    return config


def main(arguments=None):
    parser = argparse.ArgumentParser(description="Apply or verify RoCE and PCIe settings of this node.")
    parser.add_argument("action", choices=("apply", "verify"))
    parser.add_argument("--config", default="/etc/rackweave/rdma_qos.json")
    parser.add_argument("--root", default="/", help="directory that holds sys/ (for tests)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    try:
        config = load(options.config)
    except (OSError, ValueError) as exc:
        sys.stderr.write(f"rackweave-rdma-qos: {exc}\n")
        return 2
    result, lacking = process(options.action, Path(options.root), config)
    if options.json:
        sys.stdout.write(json.dumps(result, sort_keys=True) + "\n")
    else:
        for bdf, differences in sorted(result.items()):
            for difference in differences:
                sys.stdout.write(f"{bdf}: {difference}\n")
        for bdf, kinds in sorted(lacking.items()):
            if kinds:
                sys.stdout.write(
                    f"{bdf}: not possible here: the kernel's own driver has no setting of {', '.join(kinds)}\n"
                )
    return 1 if any(result.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
