"""RDMA devices of a node from sysfs, with what only tools know (active MTU, QoS) added where they are installed."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from ..errors import ParseError
from .collect_pci import pci_function
from .config_space import FULL_SIZE, read_config_space
from .kernel import link_rate_gbps, port_state
from .node import Gid, Nic, Port, Roce
from .order import natural_key
from .rdma_tools import VerbsDevice, gid_text, parse_ibv_devinfo
from .system import System, ToolOutput
from .tools import QosSettings, parse_mlnx_qos
from .vpd import serial_number

CLASS = "/sys/class/infiniband"
EMPTY_GIDS = ("0000:0000:0000:0000:0000:0000:0000:0000", "fe80:0000:0000:0000:0000:0000:0000:0000")
GID_ROWS_READ = 256
VPD_BYTES = 1024
# Vital product data is read through slow configuration cycles; a node must answer within two seconds.
VPD_BUDGET_S = 1.0


@dataclass(frozen=True)
class _Tools:
    verbs: dict[str, VerbsDevice]
    qos: dict[str, QosSettings]


def find_nics(system: System, slots: dict[str, str], warnings: list[str]) -> tuple[Nic, ...]:
    """Return all RDMA devices in natural order of their names."""
    devices = sorted(system.names(CLASS), key=natural_key)
    nics = [_nic(system, device, slots, warnings) for device in devices]
    if not nics:
        return ()
    tools = _ask_tools(system, nics, warnings)
    with_serials = _with_serials(system, nics, warnings)
    physical = any(not nic.virtual_function for nic in nics)
    return tuple(
        _short(nic) if nic.virtual_function and physical else _with_tools(system, nic, tools) for nic in with_serials
    )


def _short(nic: Nic) -> Nic:
    """Return what identifies a virtual function: machines have dozens, and beside physical ones they carry no job."""
    ports = tuple(Port(port.port, port.state, rate_gbps=port.rate_gbps, netdev=port.netdev) for port in nic.ports)
    return Nic(nic.device, bdf=nic.bdf, virtual_function=True, ports=ports)


def _nic(system: System, device: str, slots: dict[str, str], warnings: list[str]) -> Nic:
    directory = f"{CLASS}/{device}"
    target = system.target(f"{directory}/device")
    bdf = target.rsplit("/", 1)[-1] if target else None
    if bdf is None or not re.fullmatch(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", bdf):
        nic = Nic(device)  # software RDMA (rxe, siw) hangs below no PCI device
    else:
        function = pci_function(system, bdf, slots)
        config = system.read_bytes(f"/sys/bus/pci/devices/{bdf}/config", FULL_SIZE) or b""
        nic = Nic(
            device,
            bdf=bdf,
            pci_id=function.pci_id,
            slot=function.slot,
            numa_node=function.numa_node,
            pcie_path=function.path,
            virtual_function="physfn" in system.names(f"/sys/bus/pci/devices/{bdf}"),
            max_read_request=read_config_space(config).max_read_request,
        )
    ports = [int(name) for name in system.names(f"{directory}/ports") if name.isdigit()]
    read_ports = tuple(_port(system, directory, device, port, warnings) for port in ports)
    return replace(
        nic,
        node_guid=system.read(f"{directory}/node_guid"),
        sys_image_guid=system.read(f"{directory}/sys_image_guid"),
        hca_type=system.read(f"{directory}/hca_type"),
        board_id=system.read(f"{directory}/board_id"),
        firmware=system.read(f"{directory}/fw_ver"),
        bond_slaves=_slaves(system, read_ports),
        ports=read_ports,
    )


def _slaves(system: System, ports: tuple[Port, ...]) -> tuple[str, ...]:
    names = [system.read(f"/sys/class/net/{port.netdev}/bonding/slaves") or "" for port in ports if port.netdev]
    return tuple(" ".join(names).split())


def _port(system: System, directory: str, device: str, port: int, warnings: list[str]) -> Port:
    where = f"{directory}/ports/{port}"

    def value(name: str, parse: object) -> object:
        text = system.read(f"{where}/{name}")
        if text is None or not callable(parse):
            return text
        try:
            return parse(text)
        except ParseError as error:
            warnings.append(f"{device}/{port}: {error}")
            return None

    layer = system.read(f"{where}/link_layer")
    gids = _gids(system, where, layer)
    netdev = gids[0].netdev if gids and gids[0].netdev else _only_netdev(system, directory)
    # A row says its netdev only where it is another than the port's (VLAN, macvlan).
    gids = tuple(replace(gid, netdev=None) if gid.netdev == netdev else gid for gid in gids)
    rate, state, physical = value("rate", link_rate_gbps), value("state", port_state), value("phys_state", port_state)
    mtu = system.read(f"/sys/class/net/{netdev}/mtu") if netdev else None
    infiniband = layer == "InfiniBand" and gids
    return Port(
        port,
        state=state if isinstance(state, str) else None,
        physical_state=physical if isinstance(physical, str) else None,
        rate_gbps=rate if isinstance(rate, float) else None,
        link_layer=layer,
        netdev=netdev,
        mac=system.read(f"/sys/class/net/{netdev}/address") if netdev else None,
        mtu=int(mtu) if mtu and mtu.isdigit() else None,
        port_guid=(system.read(f"{where}/gids/0") or "")[-19:] or None if infiniband else None,
        gids=gids,
    )


def _only_netdev(system: System, directory: str) -> str | None:
    names = system.names(f"{directory}/device/net")
    return names[0] if len(names) == 1 else None


def _gids(system: System, where: str, layer: str | None) -> tuple[Gid, ...]:
    rows = []
    for index in sorted(int(name) for name in system.names(f"{where}/gids") if name.isdigit())[:GID_ROWS_READ]:
        text = system.read(f"{where}/gids/{index}")
        if not text or text in EMPTY_GIDS:
            continue
        # Reading the type of an empty row is an error of the kernel's (EINVAL), so it comes second.
        kind = system.read(f"{where}/gid_attrs/types/{index}") if layer != "InfiniBand" else None
        rows.append(Gid(index, gid_text(text), kind, system.read(f"{where}/gid_attrs/ndevs/{index}")))
    return tuple(rows)


def _with_serials(system: System, nics: list[Nic], warnings: list[str]) -> list[Nic]:
    result, skipped = [], 0
    start = system.seconds()
    by_card: dict[str, str | None] = {}
    for nic in nics:
        card = (nic.bdf or "").rsplit(".", 1)[0]
        if nic.bdf is None or nic.virtual_function:
            result.append(nic)
            continue
        if card not in by_card and system.seconds() - start > VPD_BUDGET_S:
            skipped += 1
        elif card not in by_card:
            by_card[card] = serial_number(system.read_bytes(f"/sys/bus/pci/devices/{nic.bdf}/vpd", VPD_BYTES) or b"")
        result.append(replace(nic, serial=by_card.get(card)))
    if skipped:
        warnings.append(f"serial numbers of {skipped} network card(s) not read: the time for them was used up")
    return result


def _ask_tools(system: System, nics: list[Nic], warnings: list[str]) -> _Tools:
    ports = [port for nic in nics if not nic.virtual_function for port in nic.ports]
    netdevs = [port.netdev for port in ports if port.netdev and port.link_layer == "Ethernet"]
    commands = [("ibv_devinfo",), *(("mlnx_qos", "-i", netdev) for netdev in netdevs)]
    verbs_output, *qos_outputs = system.run_all(commands)
    verbs: dict[str, VerbsDevice] = {}
    qos: dict[str, QosSettings] = {}
    text = _stdout(verbs_output, "ibv_devinfo", warnings)
    try:
        verbs = {device.device: device for device in parse_ibv_devinfo(text)} if text else {}
    except ParseError as error:
        warnings.append(str(error))
    for netdev, output in zip(netdevs, qos_outputs):
        text = _stdout(output, f"mlnx_qos -i {netdev}", warnings)
        try:
            if text:
                qos[netdev] = parse_mlnx_qos(text)
        except ParseError as error:
            warnings.append(f"{netdev}: {error}")
    return _Tools(verbs, qos)


def _stdout(output: ToolOutput | None, tool: str, warnings: list[str]) -> str | None:
    if output is None:
        if tool == "ibv_devinfo":
            warnings.append("ibv_devinfo is not installed: the active MTU is unknown")
        return None
    if output.status:
        warnings.append(f"{tool}: exit status {output.status}: {(output.stderr or output.stdout).strip()[:160]}")
        return None
    return output.stdout


def _with_tools(system: System, nic: Nic, tools: _Tools) -> Nic:
    verbs = tools.verbs.get(nic.device)
    mtus = {port.port: port.active_mtu for port in verbs.ports} if verbs else {}
    ports = tuple(replace(port, active_mtu=mtus.get(port.port)) for port in nic.ports)
    ethernet = [port for port in ports if port.link_layer == "Ethernet" and port.netdev]
    return replace(nic, ports=ports, roce=_roce(system, nic.device, ethernet[0], tools) if ethernet else None)


def _roce(system: System, device: str, port: Port, tools: _Tools) -> Roce:
    qos = tools.qos.get(port.netdev or "")
    traffic_class = re.search(r"tc=(\d+)", system.read(f"{CLASS}/{device}/tc/{port.port}/traffic_class") or "")
    tos = system.read(f"/sys/kernel/config/rdma_cm/{device}/ports/{port.port}/default_roce_tos")
    ecn = f"/sys/class/net/{port.netdev}/ecn"
    cnp = system.read(f"{ecn}/roce_np/cnp_dscp")
    reaction = _enabled_priorities(system, f"{ecn}/roce_rp/enable")
    notification = _enabled_priorities(system, f"{ecn}/roce_np/enable")
    both = None if reaction is None or notification is None else tuple(sorted(set(reaction) & set(notification)))
    return Roce(
        trust=qos.trust if qos else None,
        dscp_to_priority=qos.dscp_to_priority if qos else None,
        pfc_priorities=qos.pfc_priorities if qos else None,
        traffic_class=int(traffic_class[1]) if traffic_class else None,
        cma_tos=int(tos) if tos and tos.isdigit() else None,
        ecn_priorities=both,
        cnp_dscp=int(cnp) if cnp and cnp.isdigit() else None,
    )


def _enabled_priorities(system: System, directory: str) -> tuple[int, ...] | None:
    names = [name for name in system.names(directory) if name.isdigit()]
    if not names:
        return None
    return tuple(int(name) for name in names if system.read(f"{directory}/{name}") == "1")
