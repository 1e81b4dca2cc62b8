"""Ports as ``ibstat``, ``ibstatus`` and sysfs list them: the one among its like that is slower, or has no link.

A rate alone says nothing, since ports for storage or management are slower by design; so only ports of one kind are
compared, and on one host a single one has to be the exception.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from .evidence import MAX_TEXT, Finding
from .prefix import Line

_DEVICE = re.compile(r"^\s*(?:CA|Infiniband device) '(?P<device>[\w-]+)'(?: port (?P<port>\d+) status:)?\s*$")
_PORT = re.compile(r"^\s*Port (?P<port>\d+):\s*$")
_FIELD = re.compile(
    r"^\s*(?P<key>CA type|Physical state|phys state|Rate|rate|Link layer|link_layer):\s*(?:\d: )?(?P<value>\S+)"
)
_SYSFS = re.compile(r"/infiniband/(?P<device>[\w-]+)/ports/(?P<port>\d+)/rate:\s*(?P<rate>\d+(?:\.\d+)?) Gb/sec")
_KEYS = {"CA type": "kind", "Link layer": "layer", "link_layer": "layer", "Rate": "rate", "rate": "rate"}

LITERALS = (
    # A device's name after "CA", which alone would be found in too many words.
    *(f"'{driver}" for driver in ("mlx", "bnxt", "irdma", "hfi", "roce", "ibp", "ibs", "efa", "ionic")),
    "Infiniband device '",
    "CA type:",
    "Physical state:",
    "phys state:",
    "Rate: ",
    "rate:",
    "Link layer:",
    "link_layer:",
    "Port :",
)

# A device's listing is shorter than this.
_LISTING_LINES = 40
# So many alike make one that differs an exception.
_ALIKE = 4
_HOSTS = 3
_SLOWER = 0.75
# How a port without a partner is called; one that is "Disabled" was switched off by somebody.
_NO_LINK = ("Polling", "LinkErrorRecovery", "PortConfigurationTraining")
_MAX_PORTS = 65536


@dataclass
class _Port:
    """What a listing says of a port; rate in Gb/s."""

    host: str
    name: str
    line: Line
    kind: str = ""
    layer: str = ""
    state: str = "LinkUp"
    rate: float | None = None


@dataclass
class PortRates:
    """Follow such listings; the port that is being read, per source and host."""

    ports: dict[tuple[str, str], _Port] = field(default_factory=dict)
    _open: dict[tuple[int, str], _Port] = field(default_factory=dict)

    def feed(self, line: Line) -> bool:
        """Take one line; True if it may belong to a listing."""
        text = line.text
        if device := _DEVICE.match(text):
            self._port(line, device["device"], device["port"] or "1")
            return True
        if sysfs := _SYSFS.search(text):
            self._port(line, sysfs["device"], sysfs["port"]).rate = float(sysfs["rate"])
            return True
        port_now = self._open.get((line.source, line.host or ""))
        if _PORT.match(text):
            if port_now is not None:
                self._next(line, port_now, text)
            return True
        told = _FIELD.match(text)
        if told is None:
            return False
        if port_now is not None and line.position - port_now.line.position < _LISTING_LINES:
            _take(port_now, told, line)
        return True

    def _port(self, line: Line, device: str, number: str, kind: str = "") -> _Port:
        host = line.host or ""
        port = _Port(host, f"{device}/{number}", line, kind)
        if len(self.ports) < _MAX_PORTS:
            self.ports[(host, port.name)] = port
        self._open[(line.source, host)] = port
        return port

    def _next(self, line: Line, before: _Port, text: str) -> None:
        """The next port of a device; the first one was opened with the device."""
        number = "".join(filter(str.isdigit, text))
        device, _, last = before.name.partition("/")
        if number != last:
            self._port(line, device, number, before.kind)

    def findings(self) -> Iterator[Finding]:
        """Hosts with a port that is slower than its like, or alone without a link."""
        slow: dict[str, _Port] = {}
        for alike in self._alike():
            if not alike[0].kind and alike[0].layer != "InfiniBand":
                continue  # the management port of a RoCE node looks the same here
            up = [port for port in alike if port.state == "LinkUp"]
            down = [port for port in alike if port.state in _NO_LINK]
            if len(down) == 1 and len(up) >= _ALIKE - 1:
                yield _finding("net.link_down", [down[0]], 13)
            behind = _slower(up)
            if len(up) >= _ALIKE and len(behind) == 1:
                slow.setdefault(behind[0].host, behind[0])
        for same in self._same_name():
            if len(same) >= _HOSTS:
                slow.update((port.host, port) for port in _slower(same) if port.host not in slow)
        if slow:
            yield _finding("net.link_degraded", list(slow.values()), 80)

    def _alike(self) -> Iterator[list[_Port]]:
        """Ports of one host that are of one kind."""
        groups: dict[tuple[str, str, str], list[_Port]] = defaultdict(list)
        for port in self.ports.values():
            groups[(port.host, port.kind, port.layer)].append(port)
        yield from groups.values()

    def _same_name(self) -> Iterator[list[_Port]]:
        """The port of one name on all hosts."""
        groups: dict[tuple[str, str], list[_Port]] = defaultdict(list)
        for port in self.ports.values():
            if port.host and port.state == "LinkUp":
                groups[(port.name, port.layer)].append(port)
        yield from groups.values()


def _take(port: _Port, told: re.Match[str], line: Line) -> None:
    value = told["value"]
    key = _KEYS.get(told["key"], "state")
    if key == "rate":
        number = re.match(r"\d+(?:\.\d+)?", value)
        port.rate, port.line = (float(number[0]) if number else None), line
    else:
        setattr(port, key, value)


def _slower(ports: list[_Port]) -> list[_Port]:
    """Those clearly below the rate that more than half have."""
    rates = Counter(port.rate for port in ports if port.rate)
    if not rates:
        return []
    common, count = rates.most_common(1)[0]
    if common is None or count * 2 <= sum(rates.values()):
        return []
    return [port for port in ports if port.rate and port.rate < _SLOWER * common]


def _finding(diagnosis: str, ports: list[_Port], depth: int) -> Finding:
    line = ports[0].line
    text = f"{line.full.strip()} ({ports[0].name})"
    return Finding(
        diagnosis,
        text[:MAX_TEXT],
        hosts=frozenset(port.host for port in ports if port.host),
        depth=depth,
        time=line.time,
        position=line.position,
        source=line.source,
    )
