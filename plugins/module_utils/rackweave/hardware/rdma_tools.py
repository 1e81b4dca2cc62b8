"""Output of the RDMA tools: ``rdma -j link``, ``rdma link``, ``ibv_devinfo``, ``ibdev2netdev``, ``show_gids``."""

from __future__ import annotations

import ipaddress
import json
import re
from dataclasses import dataclass

from ..errors import ParseError
from .node import Gid
from .text import excerpt, plain, whole_lines

_LINK_STATES = ("NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER")
_PORT_STATES = ("PORT_NOP", "PORT_DOWN", "PORT_INIT", "PORT_ARMED", "PORT_ACTIVE", "PORT_ACTIVE_DEFER")
_MTU_SIZES = ("256", "512", "1024", "2048", "4096")
_DEVICE_KEYS = ("fw_ver", "node_guid", "sys_image_guid", "vendor_part_id", "phys_port_cnt")
_PORT_KEYS = ("state", "active_mtu", "link_layer")


@dataclass(frozen=True)
class RdmaLink:
    """One port as ``rdma link`` shows it."""

    device: str
    port: int
    state: str
    physical_state: str
    netdev: str | None


@dataclass(frozen=True)
class VerbsPort:
    """One port of ``ibv_devinfo``; `active_mtu` in bytes."""

    port: int
    state: str
    active_mtu: int
    link_layer: str


@dataclass(frozen=True)
class VerbsDevice:
    """One device of ``ibv_devinfo``."""

    device: str
    firmware: str
    node_guid: str
    sys_image_guid: str
    vendor_part_id: int
    board_id: str | None
    ports: tuple[VerbsPort, ...]


@dataclass(frozen=True)
class NetdevLink:
    """One line of ``ibdev2netdev``."""

    device: str
    port: int
    netdev: str
    up: bool


@dataclass(frozen=True)
class GidEntry:
    """One row of ``show_gids``."""

    device: str
    port: int
    gid: Gid


def parse_rdma_link_json(text: str) -> tuple[RdmaLink, ...]:
    """Read ``rdma -j link``.

    Raises:
        ParseError: if it is not the JSON list that the tool prints.
    """
    tool = "rdma -j link"
    try:
        rows = json.loads(plain(text, tool))
    except ValueError as error:
        raise ParseError(f"{tool}: not JSON ({error}): cut, or an error message?") from error
    if not isinstance(rows, list):
        raise ParseError(f"{tool}: a list is expected, not {excerpt(str(rows))}")
    return tuple(_link_of_json(row, tool) for row in rows)


def _link_of_json(row: object, tool: str) -> RdmaLink:
    if not isinstance(row, dict):
        raise ParseError(f"{tool}: {excerpt(str(row))} is no object")
    device, port, netdev = row.get("ifname"), row.get("port"), row.get("netdev")
    if not isinstance(device, str) or not isinstance(port, int) or not isinstance(netdev, (str, type(None))):
        raise ParseError(f"{tool}: {excerpt(str(row))} lacks ifname or port")
    return _link(device, port, str(row.get("state")), str(row.get("physical_state")), netdev, tool)


def _link(device: str, port: int, state: str, physical: str, netdev: str | None, tool: str) -> RdmaLink:
    if state not in _LINK_STATES or not re.fullmatch("[A-Z_]+", physical):
        raise ParseError(f"{tool}: {device}/{port}: unknown state {excerpt(state)}, {excerpt(physical)}")
    return RdmaLink(device, port, state, physical, netdev)


def parse_rdma_link(text: str) -> tuple[RdmaLink, ...]:
    """Read the plain form of ``rdma link`` (for versions without JSON)."""
    tool = "rdma link"
    links = []
    for line in whole_lines(text, tool):
        if not line.strip():
            continue
        words = line.split()
        where = re.fullmatch(r"([A-Za-z0-9_.-]+)/(\d+)", words[1]) if len(words) > 1 else None
        values = dict(zip(words[2::2], words[3::2]))
        if words[0] != "link" or not where or len(words) % 2 or not {"state", "physical_state"} <= set(values):
            raise ParseError(f"{tool}: {excerpt(line)} is not like 'link mlx5_0/1 state ACTIVE physical_state LINK_UP'")
        netdev = values.get("netdev")
        links.append(_link(where[1], int(where[2]), values["state"], values["physical_state"], netdev, tool))
    return tuple(links)


def parse_ibv_devinfo(text: str) -> tuple[VerbsDevice, ...]:
    """Read ``ibv_devinfo`` (also ``-v``).

    Raises:
        ParseError: if a device or a port lacks a line it always has.
    """
    tool = "ibv_devinfo"
    blocks: list[tuple[dict[str, str], list[dict[str, str]]]] = []
    for line in whole_lines(text, tool):
        key, colon, value = (piece.strip() for piece in line.partition(":"))
        if not colon:
            if line.strip() and not blocks:
                raise ParseError(f"{tool}: {excerpt(line)} comes before any device")
            continue
        if key == "hca_id":
            blocks.append(({"device": value}, []))
        elif not blocks:
            raise ParseError(f"{tool}: {excerpt(line)} comes before any device")
        elif key == "port":
            blocks[-1][1].append({"port": value})
        else:
            (blocks[-1][1][-1] if blocks[-1][1] else blocks[-1][0]).setdefault(key, value)
    return tuple(_verbs_device(head, ports) for head, ports in blocks)


def _verbs_device(head: dict[str, str], ports: list[dict[str, str]]) -> VerbsDevice:
    device = head["device"]
    _need(head, _DEVICE_KEYS, f"ibv_devinfo: {device}")
    count, part = head["phys_port_cnt"], head["vendor_part_id"]
    if not device or not count.isdigit() or not part.isdigit() or int(count) != len(ports):
        raise ParseError(f"ibv_devinfo: {device}: phys_port_cnt={count} but {len(ports)} port(s) follow: cut?")
    return VerbsDevice(
        device,
        head["fw_ver"],
        _guid(head["node_guid"], device),
        _guid(head["sys_image_guid"], device),
        int(part),
        head.get("board_id"),
        tuple(_verbs_port(port, device) for port in ports),
    )


def _verbs_port(port: dict[str, str], device: str) -> VerbsPort:
    where = f"ibv_devinfo: {device} port {port['port']}"
    _need(port, _PORT_KEYS, where)
    state, mtu, layer = port["state"].split(" ")[0], port["active_mtu"].split(" ")[0], port["link_layer"]
    if not port["port"].isdigit() or state not in _PORT_STATES or mtu not in _MTU_SIZES:
        raise ParseError(f"{where}: state {excerpt(port['state'])} or active_mtu {excerpt(port['active_mtu'])}")
    if layer not in ("InfiniBand", "Ethernet", "Unspecified"):
        raise ParseError(f"{where}: link_layer {excerpt(layer)}")
    return VerbsPort(int(port["port"]), state[len("PORT_") :], int(mtu), layer)


def _need(row: dict[str, str], keys: tuple[str, ...], where: str) -> None:
    missing = [key for key in keys if not row.get(key)]
    if missing:
        raise ParseError(f"{where}: no {', '.join(missing)}: cut?")


def _guid(text: str, device: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{4}(:[0-9a-f]{4}){3}", text):
        raise ParseError(f"ibv_devinfo: {device}: GUID {excerpt(text)} is not like a088:c203:00ab:cd12")
    return text


def parse_ibdev2netdev(text: str) -> tuple[NetdevLink, ...]:
    """Read ``ibdev2netdev``, plain or ``-v``, with every spelling of Up and Down."""
    tool = "ibdev2netdev"
    links = []
    for line in whole_lines(text, tool):
        if not line.strip():
            continue
        short = re.fullmatch(r"(\S+) port (\d+) ==> (\S+) \((Up|Down)\)\s*", line)
        verbose = re.fullmatch(r"\S+ (\S+) \(.*==> (\S+) \((Up|Down|UP|DOWN) ?\)\s*", line)
        if short:
            links.append(NetdevLink(short[1], int(short[2]), short[3], short[4] == "Up"))
        elif verbose:
            port = re.search(r" port (\d+) ", line)
            if not port:
                raise ParseError(f"{tool}: no port number in {excerpt(line)}")
            links.append(NetdevLink(verbose[1], int(port[1]), verbose[2], verbose[3].upper() == "UP"))
        else:
            raise ParseError(f"{tool}: {excerpt(line)} is not like 'mlx5_0 port 1 ==> ens1np0 (Up)'")
    return tuple(links)


def parse_show_gids(text: str) -> tuple[GidEntry, ...]:
    """Read ``show_gids``.

    Raises:
        ParseError: if a row does not fit, its IPv4 column contradicts its GID, or the count at the end differs.
    """
    tool = "show_gids"
    entries = []
    count: int | None = None
    for line in whole_lines(text, tool):
        words = line.split()
        if not words or words[0] in ("DEV", "---"):
            continue
        found = re.fullmatch(r"n_gids_found=(\d+)", line.strip())
        if found:
            count = int(found[1])
            continue
        entries.append(_gid_entry(words, line))
    if count != len(entries):
        raise ParseError(f"{tool}: {len(entries)} rows, but n_gids_found={count}: cut?")
    return tuple(entries)


def _gid_entry(words: list[str], line: str) -> GidEntry:
    if len(words) not in (6, 7) or not words[1].isdigit() or not words[2].isdigit() or words[-2] not in ("v1", "v2"):
        raise ParseError(f"show_gids: {excerpt(line)} is not like 'mlx5_0 1 3 GID IPv4 v2 ens1np0'")
    try:
        address = ipaddress.IPv6Address(words[3])
        shown = ipaddress.IPv4Address(words[4]) if len(words) == 7 else None
    except ValueError as error:
        raise ParseError(f"show_gids: {excerpt(line)}: {error}") from error
    if address.ipv4_mapped != shown:
        raise ParseError(f"show_gids: {excerpt(line)}: the IPv4 column is not the address in the GID")
    kind = "RoCE v2" if words[-2] == "v2" else "IB/RoCE v1"
    return GidEntry(words[0], int(words[1]), Gid(int(words[2]), gid_text(words[3]), kind, words[-1]))


def gid_text(gid: str) -> str:
    """Return a GID in its shortest form, an embedded IPv4 address in dots.

    Raises:
        ParseError: if it is not an IPv6-shaped address.
    """
    try:
        address = ipaddress.IPv6Address(gid)
    except ValueError as error:
        raise ParseError(f"GID {excerpt(gid)}: {error}") from error
    return f"::ffff:{address.ipv4_mapped}" if address.ipv4_mapped else str(address)
