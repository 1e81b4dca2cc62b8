"""Which transport NCCL really uses, proved from its INFO lines (2.10 to 2.30, third-party plugins included).

Proof of RDMA with GPUDirect are channel lines between hosts that end in ``/GDRDMA`` for every local GPU. Decoys:
``use ring PXN 0 GDR 1``, ``NET/Socket : Using`` beside ``Using network IB`` (the out-of-band interface), plugin probes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from .evidence import MAX_TEXT, Finding
from .prefix import Line, take_apart
from .text import as_chunks, clean, split_lines

# The wording of the "using" line: "Using network X", "Using network plugin X", "Assigned NET plugin X to comm".
_NETWORK = re.compile(
    r"NCCL INFO (?:Using network(?: plugin)?|Assigned NET plugin) (?P<net>[\w .+-]+?)(?: to comm\b.*)?\s*$"
)
_CHANNEL = re.compile(
    r"Channel (?P<channel>\d+)(?:/\d+)? ?: ?(?P<from>\d+)\[[0-9a-fx]+\] -> (?P<to>\d+)\[[0-9a-fx]+\] \[(?P<way>send|"
    r"receive)\] via (?P<via>.+?)\s*$"
)
_FAST = re.compile(
    rb"(?:\[[\d :-]{19}\] )?(?P<host>[\w.-]+):\d+:\d+ \[\d+\] NCCL INFO Channel \d+(?:/\d+)? ?: ?(?P<from>\d+)"
    rb"\[[0-9a-fx]+\] -> "
    rb"(?P<to>\d+)\[[0-9a-fx]+\] (?:\[(?P<way>send|receive)\] via NET/(?P<net>\w+)(?P<via>\S*)|via (?P<local>P2P|SHM))"
)
_LOCAL_CHANNEL = re.compile(
    r"Channel \d+(?:/\d+)? ?: ?\d+\[[0-9a-fx]+\] -> \d+\[[0-9a-fx]+\] via (?:P2P|SHM|direct|MNNVL)"
)
# NVLink between the hosts of one NVLink domain (GB200 NVL72): neither the network nor its proof is needed there.
_MNNVL = re.compile(r"Channel \d+(?:/\d+)? ?: ?(?P<from>\d+)\[[0-9a-fx]+\] -> \d+\[[0-9a-fx]+\] via (?:P2P/)?MNNVL")
_USING_IB = re.compile(r"NET/(?P<net>[\w .+-]+?) ?: Using \[0\](?P<dev>[\w.-]+):\d+/(?:RoCE|IB|OPA|uverbs)")
_NO_DEVICE = re.compile(r"NET/IB\S* ?: No device found")
_SET = re.compile(
    r"(?P<name>NCCL_(?:IB_DISABLE|NET|IB_HCA|NET_PLUGIN|NET_GDR_LEVEL|NET_DISABLE_GDR|NET_GDR_READ|IB_GID_INDEX)"
    r")(?: set (?:by environment )?to| set by environment to) (?P<value>\S+?)\.?\s*$"
)
_GDR = re.compile(
    r"GPU Direct RDMA (?:\(DMABUF\) |\(PCI\) )?(?P<state>Enabled|Disabled|enabled|disabled)(?: \(DMABUF\))"
    r"? for (?P<what>HCA|GPU) (?P<id>\S+)(?: / HCA (?P<hca>\d+))?"
)
_PLUGIN_MISSING = re.compile(
    r"NET/Plugin ?: (?:Plugin load(?: \((?P<plugin>[^)]*)\))? returned \d+ : (?P<why>.+)|Could not find: "
    r"(?P<names>.+)|dlerror=(?P<dlerror>.+?) No plugin found|No plugin found(?: \((?P<none>[^)]*)\))?)"
)
_LACKS = re.compile(r"(?P<lib>[\w./+-]+\.so[\w.]*): cannot open shared object|undefined symbol|GLIBC|version `")
# A file name with a suffix is that of a plugin somebody asked for; without one it is what NCCL always tries.
_NAMED = re.compile(r"(?:Could not find|returned \d+ ?): .*\blibnccl-net-\w+\.so")
_WHILE = re.compile(r"when loading (?P<plugin>\S+)")
_OFI = re.compile(r"NET/OFI (?:Selected [Pp]rovider is|Using) (?P<provider>\w+)")
_COMM = re.compile(
    r"comm 0x[0-9a-f]+ rank (?P<rank>\d+) n[rR]anks (?P<nranks>\d+)(?:.*?nNodes (?P<nodes>\d+))?(?:.*?localRanks "
    r"(?P<local>\d+))?"
)
_OOB = re.compile(
    r"OOB [\w.-]+:(?P<address>[0-9a-fA-F.:]+?)<\d+>|Bootstrap ?: Using [\w.-]+:(?P<boot>[0-9a-fA-F.:]+?)"
    r"<\d+>|NET/Socket ?: Using \[0\][\w.-]+:(?P<sock>[0-9a-fA-F.:]+?)<\d+>"
)

LITERALS = (
    "Using network",
    "Assigned NET plugin",
    "] via ",
    " via ",
    "Using [",
    "No device found",
    "NCCL_IB_DISABLE",
    "NCCL_NET",
    "NCCL_IB_HCA",
    "GPU Direct RDMA",
    "NET/Plugin",
    "NET/OFI",
    "nranks",
    "nRanks",
    "OOB ",
    "Bootstrap",
)


@dataclass
class HostTransport:
    """What one host's lines said; a line is kept for each kind as evidence."""

    networks: set[str] = field(default_factory=set)
    rdma_devices: set[str] = field(default_factory=set)
    settings: dict[str, str] = field(default_factory=dict)
    no_device: Line | None = None
    socket_line: Line | None = None
    socket_channel: Line | None = None
    plugin_line: Line | None = None
    rdma_ranks: dict[int, set[bool]] = field(default_factory=lambda: defaultdict(set))
    plain_channel: Line | None = None
    gdr_on: set[str] = field(default_factory=set)
    gdr_off: dict[str, Line] = field(default_factory=dict)
    nvlink_ranks: set[int] = field(default_factory=set)
    local_channels: int = 0
    inter_channels: int = 0
    ofi_tcp: Line | None = None
    single_node: bool = False

    @property
    def uses_socket(self) -> bool:
        """Traffic between hosts goes over TCP."""
        if self.socket_channel is not None or self.ofi_tcp is not None:
            return True
        return self.socket_line is not None and not (self.networks - {"Socket"}) and not self.rdma_ranks

    @property
    def uses_rdma(self) -> bool:
        """Some inter-host transport other than sockets was chosen."""
        return bool(self.networks - {"Socket"}) or bool(self.rdma_ranks)

    @property
    def only_local(self) -> bool:
        """All channels seen stay inside the host."""
        return self.inter_channels == 0 and (self.local_channels > 0 or self.single_node)


@dataclass
class Transport:
    """Collect NCCL's transport lines of all hosts."""

    hosts: dict[str, HostTransport] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)

    def feed_raw(self, raw: bytes) -> bool:
        """The fast way for a channel line that changes nothing; False if it has to be read properly."""
        match = _FAST.match(raw)
        if match is None:
            return False
        host = self.hosts.get(match["host"].decode("ascii", "replace"))
        if host is None:
            return False
        if match["local"]:
            host.local_channels += 1
            return b"MNNVL" not in raw
        seen = host.rdma_ranks.get(int(match["to"] if match["way"] == b"receive" else match["from"]))
        if seen is None or match["net"] == b"Socket":
            return False
        if (b"/GDRDMA" in match["via"]) not in seen:
            return False
        host.inter_channels += 1
        return True

    def feed(self, line: Line) -> bool:
        """Take one line; True if it says something of a transport."""
        text = line.text
        if "NCCL" not in line.full and "NET/" not in text:
            return False
        name = line.host or ""
        host = self.hosts.get(name)
        if host is None:
            if len(self.hosts) > 65536:
                return False
            host = self.hosts[name] = HostTransport()
        taken = (
            self._channel(host, line) or self._network(host, line) or self._gdr(host, line) or self._plugin(host, line)
        )
        address = _OOB.search(text)
        if address and name:
            self.addresses.setdefault(address["address"] or address["boot"] or address["sock"], name)
        return taken or address is not None

    def _channel(self, host: HostTransport, line: Line) -> bool:
        match = _CHANNEL.search(line.text)
        if match is None:
            if _LOCAL_CHANNEL.search(line.text):
                host.local_channels += 1
                nvlink = _MNNVL.search(line.text)
                if nvlink and len(host.nvlink_ranks) < 4096:
                    host.nvlink_ranks.add(int(nvlink["from"]))
                return True
            return False
        via = match["via"]
        if not via.startswith("NET/"):
            host.local_channels += 1
            return True
        host.inter_channels += 1
        if via.startswith("NET/Socket"):
            host.socket_channel = host.socket_channel or line
            return True
        rank = int(match["to"] if match["way"] == "receive" else match["from"])
        has_gdr = "/GDRDMA" in via
        if len(host.rdma_ranks) < 4096:
            host.rdma_ranks[rank].add(has_gdr)
        if not has_gdr:
            host.plain_channel = host.plain_channel or line
        return True

    def _network(self, host: HostTransport, line: Line) -> bool:
        text = line.text
        match = _NETWORK.search(text)
        if match:
            net = match["net"].strip()
            host.networks.add(net)
            if net == "Socket":
                host.socket_line = host.socket_line or line
            return True
        match = _USING_IB.search(text)
        if match and match["net"].strip() != "Socket":
            host.rdma_devices.add(match["dev"])
            return True
        if _NO_DEVICE.search(text):
            host.no_device = host.no_device or line
            return True
        match = _SET.search(text)
        if match:
            host.settings[match["name"]] = match["value"]
            return True
        match = _OFI.search(text)
        if match:
            if match["provider"].lower() in ("tcp", "sockets", "udp", "net"):
                host.ofi_tcp = line
            return True
        match = _COMM.search(text)
        if match:
            if match["nodes"] == "1" or (match["local"] and match["local"] == match["nranks"]):
                host.single_node = True
            return True
        return False

    def _gdr(self, host: HostTransport, line: Line) -> bool:
        match = _GDR.search(line.text)
        if match is None or "NET/Socket" in line.text:
            return False
        key = f"{match['what']} {match['id']}/{match['hca'] or ''}"
        if match["state"].lower() == "enabled":
            host.gdr_on.add(key)
        elif len(host.gdr_off) < 4096:
            host.gdr_off.setdefault(key, line)
        return True

    def _plugin(self, host: HostTransport, line: Line) -> bool:
        match = _PLUGIN_MISSING.search(line.text)
        if match is None:
            return False
        why = match["why"] or match["dlerror"] or ""
        lacks = _LACKS.search(why)
        loading = _WHILE.search(why)
        wanted = loading["plugin"] if loading else (match["plugin"] or "libnccl-net")
        if lacks and not (lacks["lib"] and wanted.split("/")[-1].split(".so")[0] in lacks["lib"]):
            host.plugin_line = line
        elif host.settings.get("NCCL_NET_PLUGIN", "none").lower() not in ("none", "") or _NAMED.search(line.text):
            # The plugin was asked for by name, so its absence is worth a note.
            host.plugin_line = line
        return True

    def findings(self) -> Iterator[Finding]:
        """Faults and notes of the transport, nearest to the cause first."""
        yield from self._no_rdma()
        yield from self._gdr_findings()
        for name, host in self.hosts.items():
            if host.plugin_line is not None:
                yield _finding("net.plugin_load_failed", host.plugin_line, [name], 90, blame=False)

    def all_use_gdr(self) -> bool:
        """Whether channel lines prove GPUDirect on every host that shows any."""
        states = {_gdr_state(host)[0] for host in self.hosts.values()} - {"unknown"}
        return states == {"on"}

    def _no_rdma(self) -> Iterator[Finding]:
        sockets = [name for name, host in self.hosts.items() if host.uses_socket and not host.only_local]
        rdma = [name for name, host in self.hosts.items() if host.uses_rdma and name not in sockets]
        for name, host in self.hosts.items():
            forced = host.settings.get("NCCL_NET", "").upper().startswith("IB")
            filtered = "NCCL_IB_HCA" in host.settings and host.settings.get("NCCL_IB_DISABLE", "0") == "0"
            if host.no_device is not None and (forced or filtered) and not host.uses_rdma and not host.only_local:
                yield _finding("net.ib_init_failed", host.no_device, [name], 56)
        if not sockets:
            return
        some_have_rdma = bool(rdma)
        for name in sockets:
            host = self.hosts[name]
            line = host.socket_channel or host.ofi_tcp or host.socket_line
            if line is not None:
                action = _why_socket(host)
                yield _finding("net.socket_fallback", line, [name], 58, blame=some_have_rdma, action=action)

    def _gdr_findings(self) -> Iterator[Finding]:
        proof = {name: _gdr_state(host) for name, host in self.hosts.items()}
        has_good = any(state == "on" for state, _ in proof.values())
        for name, (state, line) in proof.items():
            if state not in ("off", "partial") or line is None:
                continue
            diagnosis = "net.gdr_partial" if state == "partial" else "net.gdr_inactive"
            # A channel without GDR alone does not say which end is at fault; a "Disabled" line or a good peer does.
            said = bool(self.hosts[name].gdr_off) or state == "partial" or has_good
            yield _finding(diagnosis, line, [name], 80, blame=said)


def _gdr_state(host: HostTransport) -> tuple[str, Line | None]:
    """``on``, ``off``, ``partial`` or ``unknown`` for one host, with the line that says so."""
    if host.settings.get("NCCL_NET_DISABLE_GDR") == "1" and not host.rdma_ranks:
        return "unknown", None
    if host.rdma_ranks:
        good = [rank for rank, seen in host.rdma_ranks.items() if seen == {True}]
        line = next(iter(host.gdr_off.values()), None) or host.plain_channel
        if len(good) == len(host.rdma_ranks):
            return "on", None
        any_gdr = any(True in seen for seen in host.rdma_ranks.values())
        return ("partial" if any_gdr or host.gdr_on else "off"), line
    if (host.gdr_off and host.uses_rdma) or (host.gdr_off and host.rdma_devices):
        line = next(iter(host.gdr_off.values()))
        return ("partial" if host.gdr_on else "off"), line
    if host.gdr_off and not host.networks:
        return ("partial" if host.gdr_on else "off"), next(iter(host.gdr_off.values()))
    return "unknown", None


def _why_socket(host: HostTransport) -> str:
    if host.settings.get("NCCL_IB_DISABLE", "0") not in ("0", ""):
        return (
            "NCCL_IB_DISABLE is set in the job's environment (image profile, module or site default): unset it and "
            "launch again."
        )
    if host.settings.get("NCCL_NET", "").lower() == "socket":
        return "NCCL_NET=Socket is set in the job's environment: unset it, or set NCCL_NET=IB, and launch again."
    if host.no_device is not None:
        return (
            "No RDMA device is visible in the job: check /dev/infiniband, ibv_devinfo and IPC_LOCK inside "
            "the container; "
            "stop instead of training over TCP."
        )
    return ""


def _finding(
    diagnosis: str, line: Line, hosts: Iterable[str], depth: int, blame: bool = True, action: str = ""
) -> Finding:
    named = frozenset(host for host in hosts if host) if blame else frozenset()
    return Finding(
        diagnosis,
        line.full.strip()[:MAX_TEXT],
        hosts=named,
        depth=depth,
        time=line.time,
        position=line.position,
        source=line.source,
        action=action,
    )


@dataclass(frozen=True)
class GateReport:
    """The gate's answer after the first all-reduce.

    Attributes:
        passed: RDMA with GPUDirect is proved for every expected GPU (or nothing leaves the host).
        state: ``rdma_gdr``, ``nvlink_domain``, ``single_node``, ``socket_fallback``, ``ib_init_failed``,
            ``gdr_inactive``, ``gdr_partial`` or ``unproved``.
        reason: one sentence.
        ranks_proved: global ranks with ``/GDRDMA`` on every inter-host channel.
        hosts: hosts at fault, if any.
    """

    passed: bool
    state: str
    reason: str
    ranks_proved: tuple[int, ...]
    hosts: tuple[str, ...]


def gate(lines: str | bytes | Iterable[str | bytes], expected_ranks: Iterable[int] | None = None) -> GateReport:
    """Judge the NCCL INFO output of step 0.

    Args:
        lines: the output of all ranks.
        expected_ranks: ranks that must have proof (those with a peer on another host); None judges what is seen.
    """
    transport = Transport()
    for position, raw in enumerate(split_lines(as_chunks(lines))):
        transport.feed(take_apart(clean(raw), position))
    return judge(transport, expected_ranks)


def judge(transport: Transport, expected_ranks: Iterable[int] | None = None) -> GateReport:
    """Judge what was collected."""
    rdma = {rank for host in transport.hosts.values() for rank, seen in host.rdma_ranks.items() if seen == {True}}
    plain = {rank for host in transport.hosts.values() for rank, seen in host.rdma_ranks.items() if seen != {True}}
    nvlink = {rank for host in transport.hosts.values() for rank in host.nvlink_ranks}
    proved = sorted(rdma | (nvlink - plain))
    faults = sorted(
        (finding for finding in transport.findings() if finding.diagnosis != "net.plugin_load_failed"),
        key=lambda finding: finding.depth,
    )
    if faults:
        first = faults[0]
        hosts = sorted({host for fault in faults if fault.diagnosis == first.diagnosis for host in fault.hosts})
        return GateReport(False, first.diagnosis.split(".", 1)[1], f"{first.text}", tuple(proved), tuple(hosts))
    missing = sorted(set(expected_ranks) - set(proved)) if expected_ranks is not None else []
    if proved and not missing:
        way = "rdma_gdr" if rdma else "nvlink_domain"
        words = "RDMA with GPUDirect" if rdma else "NVLink between the hosts"
        return GateReport(True, way, f"{words} proved for {len(proved)} ranks.", tuple(proved), ())
    if missing:
        reason = f"no inter-host channel with /GDRDMA was seen for ranks {', '.join(map(str, missing[:16]))}"
        return GateReport(False, "unproved", reason, tuple(proved), ())
    if transport.hosts and all(host.only_local for host in transport.hosts.values()):
        return GateReport(True, "single_node", "every channel stays inside its host.", (), ())
    return GateReport(False, "unproved", "no inter-host channel line was seen; set NCCL_DEBUG=INFO.", (), ())
