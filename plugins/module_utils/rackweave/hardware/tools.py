"""Output of other tools: ``slurmd -C``, ``mlnx_qos``, ``lspci -vvv``, ``ip -j``."""

from __future__ import annotations

import ipaddress
import json
import re
from dataclasses import dataclass

from ..errors import ParseError
from .config_space import ACS_BITS
from .node import SlurmNode
from .text import excerpt, plain, whole_lines

PRIORITIES = 8
DSCP_VALUES = 64
_SLURM_KEYS = ("CPUs", "Boards", "SocketsPerBoard", "CoresPerSocket", "ThreadsPerCore", "RealMemory")
_DEVICE_LINE = re.compile(r"((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) (.+)")


@dataclass(frozen=True)
class QosSettings:
    """What ``mlnx_qos`` shows; the map is None where the port does not trust DSCP (the tool prints none then)."""

    trust: str
    dscp_to_priority: tuple[int, ...] | None
    pfc_priorities: tuple[int, ...]


@dataclass(frozen=True)
class AcsState:
    """ACS controls of one PCI function that are on."""

    bdf: str
    bridge: bool
    controls: frozenset[str]


def parse_slurmd_c(text: str) -> SlurmNode:
    """Read ``slurmd -C``: the node line as Slurm itself would register it.

    Raises:
        ParseError: if a value is missing, or the counts contradict each other.
    """
    tool = "slurmd -C"
    lines = [line for line in whole_lines(text, tool) if line.startswith("NodeName=")]
    if len(lines) != 1:
        raise ParseError(f"{tool}: {len(lines)} lines begin with NodeName=, one is expected")
    values = dict(word.partition("=")[::2] for word in lines[0].split())
    wrong = [key for key in _SLURM_KEYS if not values.get(key, "").isascii() or not values.get(key, "").isdigit()]
    if wrong:
        raise ParseError(f"{tool}: no whole number for {', '.join(wrong)} in {excerpt(lines[0])}")
    node = SlurmNode(*(int(values[key]) for key in _SLURM_KEYS))
    threads = node.boards * node.sockets_per_board * node.cores_per_socket * node.threads_per_core
    if node.cpus not in (threads, threads // max(1, node.threads_per_core)):
        raise ParseError(f"{tool}: CPUs={node.cpus} is neither the threads ({threads}) nor the cores of the node")
    return node


def parse_mlnx_qos(text: str) -> QosSettings:
    """Read ``mlnx_qos -i NETDEV``.

    Raises:
        ParseError: if trust, map or PFC is missing or incomplete.
    """
    tool = "mlnx_qos"
    lines = whole_lines(text, tool)
    trust = next((line.split(":")[1].strip() for line in lines if line.startswith("Priority trust state:")), "")
    if trust not in ("dscp", "pcp", "both"):
        raise ParseError(f"{tool}: 'Priority trust state' is {excerpt(trust)}, not dscp or pcp")
    at = next((number for number, line in enumerate(lines) if line.startswith("PFC configuration")), None)
    rows = [line.split() for line in lines[at + 1 : at + 3]] if at is not None else []
    expected = [str(priority) for priority in range(PRIORITIES)]
    if len(rows) < 2 or rows[0] != ["priority", *expected] or rows[1][:1] != ["enabled"]:
        raise ParseError(f"{tool}: no complete 'PFC configuration'")
    bits = rows[1][1:]
    if len(bits) != PRIORITIES or any(bit not in ("0", "1") for bit in bits):
        raise ParseError(f"{tool}: PFC row {excerpt(' '.join(rows[1]))} has not eight times 0 or 1")
    pfc = tuple(priority for priority, bit in enumerate(bits) if bit == "1")
    return QosSettings(trust, _dscp_map(lines, trust), pfc)


def _dscp_map(lines: list[str], trust: str) -> tuple[int, ...] | None:
    found: dict[int, int] = {}
    for line in lines:
        row = re.fullmatch(r"\s*prio:\s*([0-7])\s+dscp:\s*((?:\d{1,2},\s*)*\d{0,2},?)\s*", line)
        if not row:
            continue
        for dscp in re.findall(r"\d+", row[2]):
            if int(dscp) in found or int(dscp) >= DSCP_VALUES:
                raise ParseError(f"mlnx_qos: DSCP {dscp} is mapped twice or out of range")
            found[int(dscp)] = int(row[1])
    if len(found) == DSCP_VALUES:
        return tuple(found[dscp] for dscp in range(DSCP_VALUES))
    if found or trust == "dscp":
        raise ParseError(f"mlnx_qos: the dscp2prio mapping has {len(found)} of {DSCP_VALUES} values: cut?")
    return None


def parse_lspci_acs(text: str) -> tuple[AcsState, ...]:
    """Read the ACS controls from ``lspci -vvv`` (any of ``-D``, ``-n``, ``-nn`` beside it).

    Raises:
        ParseError: if the capabilities were not readable (not root), or the output is cut.
    """
    tool = "lspci -vvv"
    lines = whole_lines(text, tool)
    states: list[AcsState] = []
    heading, inside = "", False
    for line in lines:
        match = _DEVICE_LINE.fullmatch(line)
        if match:
            _refuse_pending(inside, states)
            bdf = match[1] if match[1].count(":") == 2 else f"0000:{match[1]}"
            heading = match[2]
            states.append(AcsState(bdf, "PCI bridge" in heading or "0604" in heading.split(":")[0], frozenset()))
        elif "<access denied>" in line:
            raise ParseError(f"{tool}: capabilities are not readable; run it as root")
        elif not states and line.strip():
            raise ParseError(f"{tool}: {excerpt(line)} comes before any device")
        elif re.search(r"Capabilities: \[[0-9a-f]+ v\d+\] Access Control Services", line):
            inside = True
        elif inside and line.strip().startswith("ACSCtl:"):
            states[-1] = AcsState(states[-1].bdf, states[-1].bridge, _controls(line))
            inside = False
    _refuse_pending(inside, states)
    if not states or lines[-1].strip():
        raise ParseError(f"{tool}: no blank line after the last device: cut?")
    return tuple(states)


def _refuse_pending(inside: bool, states: list[AcsState]) -> None:
    if inside:
        raise ParseError(f"lspci -vvv: {states[-1].bdf} has the ACS capability but no ACSCtl line: cut?")


def _controls(line: str) -> frozenset[str]:
    words = line.split(":", 1)[1].split()
    signs = {word[:-1]: word[-1] for word in words}
    if any(name not in signs or signs[name] not in "+-" for name in ACS_BITS):
        raise ParseError(f"lspci -vvv: {excerpt(line)} lacks one of {', '.join(ACS_BITS)}")
    return frozenset(name for name in ACS_BITS if signs[name] == "+")


def parse_ip_addresses(text: str) -> dict[str, tuple[str, ...]]:
    """Read ``ip -j address show``: interface name to its addresses in CIDR notation."""
    result = {}
    for row in _json_rows(text, "ip -j address"):
        name, entries = row.get("ifname"), row.get("addr_info", [])
        if not isinstance(name, str) or not isinstance(entries, list):
            raise ParseError(f"ip -j address: {excerpt(str(row))} has no ifname")
        addresses = [_cidr(entry) for entry in entries if isinstance(entry, dict) and entry.get("family") != "link"]
        result[name] = tuple(addresses)
    return result


def parse_ip_default_routes(text: str) -> frozenset[str]:
    """Read ``ip -j route show default``: the interfaces that carry a default route."""
    rows = _json_rows(text, "ip -j route") if text.strip() else []
    hops = [hop for row in rows for hop in (row.get("nexthops") or [row])]  # type: ignore[attr-defined]
    return frozenset(hop["dev"] for hop in hops if isinstance(hop, dict) and isinstance(hop.get("dev"), str))


def _json_rows(text: str, tool: str) -> list[dict[str, object]]:
    try:
        rows = json.loads(plain(text, tool))
    except ValueError as error:
        raise ParseError(f"{tool}: not JSON ({error}): cut, or an error message?") from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ParseError(f"{tool}: a list of objects is expected")
    return [row for row in rows if row]


def _cidr(entry: dict[str, object]) -> str:
    try:
        return str(ipaddress.ip_interface(f"{entry.get('local')}/{entry.get('prefixlen')}"))
    except ValueError as error:
        raise ParseError(f"ip -j address: {error}") from error
