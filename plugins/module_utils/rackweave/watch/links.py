"""Ports that go down and up: kernel lines of mlx5, bnxt, ice, bonds, and NCCL's asynchronous events."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from .evidence import MAX_TEXT, Finding
from .prefix import Line

_DEVICE = (
    r"(?P<dev>(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]|mlx\d_(?!core|ib\b|en\b)\w+|"
    r"\ben\w+|\beth\d+|\bib[\w.]+|\bbond\d+)"
)
_DOWN = re.compile(
    r"\bLink [Dd]own\b|\bLink DOWN\b|Link is [Dd]own\b|[Cc]able unplugged|link status definitely down|"
    r"state changed (?:from \w+ )?to DOWN|Lost carrier|lost carrier|"
    r"async (?:fatal )?event ?:? ?port error|event: port error|port \d+ (?:went|is|state) (?:to )?(?:DOWN|"
    r"down)\b|physical link (?:is )?down|carrier lost|phys_state: DISABLED"
)
_UP = re.compile(
    r"carrier acquired|\bLink [Uu]p\b|\bLink (?:UP|ACTIVE)\b|Link is [Uu]p\b|link status definitely up|"
    r"state changed (?:from \w+ )?to "
    r"(?:UP|ACTIVE)|Gained carrier|link becomes ready|event ?:? ?port active|port \d+ (?:went|is|state) "
    r"(?:to )?(?:UP|ACTIVE|up|active)\b|[Cc]able plugged"
)
_GID = re.compile(r"GID table change")
_FIND = re.compile(_DEVICE)
_BOOT = re.compile(r"renamed from |E-Switch: Total vports|firmware version:|probe with|Linux version ")
_UPTIME = re.compile(r"(?:^|: ?)\[ *(?P<s>\d{1,9})\.\d{1,9}\]")
# Links are trained, and drivers open ports anew, within this time of a boot or of a driver's start.
TRAINING_S = 180.0
# The same, where lines have no times.
TRAINING_LINES = 400
# A boot ends: what its ports did until then, up at last, is how links are trained.
_BOOTED = re.compile(r"Reached target .{0,20}Network is Online|Startup finished in|Linux version \d")
_SPEED = re.compile(
    r"(?:Link (?:is )?[Uu]p\b|NIC Link is Up|speed)[^0-9]{0,20}(?P<n>\d+) ?(?P<unit>G|M)b", re.IGNORECASE
)

LITERALS = (
    "ink ",
    "Link",
    "able unplugged",
    "able plugged",
    "arrier",
    "async event",
    "async fatal event",
    "port error",
    "port active",
    "GID table change",
    "renamed from",
    "Network is Online",
    "Startup finished in",
    "Linux version",
    "state changed",
    "port ",
)
# Nothing but a driver or NCCL speaks of ports in these words; anything else that says "Link down" is not counted.
_SPEAKER = re.compile(
    r"mlx\d|bnxt|\bice \d|\bi40e\b|irdma|NET/IB|\bbond\d*\b|systemd-networkd|IPv6: ADDRCONF|\bib\d|ib_core|"
    r"\ben[pso]\w+|\beth\d|i(?:gb|xgbe)\b|hfi1|NIC Link"
)
_NOT_PORT = re.compile(r"(?i)nvlink|usb|\bsata\b|ata\d+:|pcieport|docker0|veth|virbr|cni\d|cali|br-[0-9a-f]+|NVRM")


@dataclass
class Port:
    """One port's history."""

    states: list[tuple[str, Line]] = field(default_factory=list)
    downs: int = 0
    ups_after_down: int = 0
    gid_changes: int = 0
    speeds: list[tuple[float, Line]] = field(default_factory=list)


@dataclass
class Links:
    """Follow ports per printing host."""

    ports: dict[tuple[str, str], Port] = field(default_factory=dict)
    starts: dict[str, Line] = field(default_factory=dict)
    aliases: dict[tuple[str, str], str] = field(default_factory=dict)

    def feed(self, line: Line) -> bool:
        """Take one line that may speak of a port; True if it does."""
        text = line.text
        if _BOOT.search(text):
            self._started(line)
        if _BOOTED.search(text):
            self._booted(line.host or "")
            return True
        if _NOT_PORT.search(text) or not _SPEAKER.search(text):
            return False
        host = line.host or ""
        key = (host, self._port(host, text))
        if key not in self.ports and len(self.ports) > 4096:
            return False
        port = self.ports.setdefault(key, Port())
        speed = _SPEED.search(text)
        if speed and len(port.speeds) < 64:
            port.speeds.append((float(speed["n"]) * (1.0 if speed["unit"].upper() == "G" else 1e-3), line))
        if _GID.search(text):
            port.gid_changes += 1
            self._remember(port, "gid", line)
        elif _DOWN.search(text):
            if self._is_training(line):
                self._remember(port, "training", line)
            else:
                port.downs += 1
                self._remember(port, "down", line)
        elif _UP.search(text):
            port.ups_after_down += port.downs > 0
            self._remember(port, "up", line)
        return True

    def _port(self, host: str, text: str) -> str:
        """The name under which a line's port is followed: its PCI address, once a line gave it with another name."""
        first, *others = [match["dev"] for match in _FIND.finditer(text)] or [""]
        if first.startswith("bond") and others:
            first, *others = others  # the member of a bond, not the bond
        if ":" in first and others and len(self.aliases) < 65536:
            self.aliases[(host, others[0])] = first
        return self.aliases.get((host, first), first)

    def _started(self, line: Line) -> None:
        """Take a mark of a boot; a driver that starts anew under ports that were in use is no boot."""
        host = line.host or ""
        in_use = "Linux version" not in line.text and any(
            name == host and p.states for (name, _), p in self.ports.items()
        )
        if not in_use and len(self.starts) < 65536:
            self.starts[host] = line

    def _is_training(self, line: Line) -> bool:
        """Whether the host, or a driver on it, started shortly before: links come and go until they are trained."""
        uptime = _UPTIME.search(line.full)
        if uptime is not None:
            return float(uptime["s"]) <= TRAINING_S
        start = self.starts.get(line.host or "")
        if start is None:
            return False
        if start.time is not None and line.time is not None:
            return 0 <= (line.time - start.time).total_seconds() <= TRAINING_S
        return start.source == line.source and 0 <= line.position - start.position <= TRAINING_LINES

    def _booted(self, host: str) -> None:
        for (name, device), port in list(self.ports.items()):
            if name == host and port.states and port.states[-1][0] == "up":
                del self.ports[(name, device)]

    @staticmethod
    def _remember(port: Port, state: str, line: Line) -> None:
        if len(port.states) < 256:
            port.states.append((state, line))

    def findings(self) -> Iterator[Finding]:
        """Down, flapping or slower ports."""
        for (host, _), port in self.ports.items():
            first = next((line for state, line in port.states if state in ("down", "gid")), None)
            if port.states and port.states[-1][0] == "training":
                yield _finding("net.link_down", port.states[-1][1], host)
            elif first is None:
                yield from self._slower(host, port)
            elif port.downs == 0 or port.ups_after_down > 0 or port.gid_changes > 0:
                yield _finding("net.link_flap", first, host)
            else:
                yield _finding("net.link_down", first, host)

    @staticmethod
    def _slower(host: str, port: Port) -> Iterator[Finding]:
        if len(port.speeds) >= 2 and port.speeds[-1][0] < 0.9 * max(speed for speed, _ in port.speeds):
            yield _finding("net.link_degraded", port.speeds[-1][1], host, 80)


def _finding(diagnosis: str, line: Line, host: str, depth: int = 13) -> Finding:
    return Finding(
        diagnosis,
        line.full.strip()[:MAX_TEXT],
        hosts=frozenset([host] if host else []),
        depth=depth,
        time=line.time,
        position=line.position,
        source=line.source,
        kernel=line.kernel,
    )
