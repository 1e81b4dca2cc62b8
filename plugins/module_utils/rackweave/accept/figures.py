"""What the acceptance job measured, as dataclasses; read from the files that its programs wrote.

Times are seconds, rates bytes per second, sizes bytes. ``None`` means not measured; ``errors`` says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..errors import DocumentError
from ..hardware.rows import Row

NODE_SCHEMA = "rackweave.acceptance_node/1"
COLLECTIVE_SCHEMA = "rackweave.acceptance_collective/1"
RAILS_SCHEMA = "rackweave.acceptance_rails/1"


@dataclass(frozen=True)
class Spread:
    """Single events: median, 99th percentile and slowest."""

    p50_s: float
    p99_s: float
    max_s: float
    count: int


@dataclass(frozen=True)
class Storage:
    """One direction of the shared file system, seen from one node; start and end are that node's clock."""

    transferred_bytes: int
    start: float
    end: float
    direct: bool

    @property
    def bytes_per_second(self) -> float:
        return self.transferred_bytes / max(self.end - self.start, 1e-9)


@dataclass(frozen=True)
class Link:
    """One PCIe link: lanes and GT/s, now and at most. The speed falls while a GPU idles, the width does not."""

    width: int
    max_width: int
    speed: float
    max_speed: float


@dataclass(frozen=True)
class ToolRun:
    """Exit status and output of a tool of the node."""

    code: int
    text: str


@dataclass(frozen=True)
class NodeFigures:
    """One node on its own. `steal` is a fraction of CPU time; memory limits are -1 for unlimited."""

    host: str
    memlock_soft_bytes: int | None = None
    memlock_hard_bytes: int | None = None
    shm_bytes: int | None = None
    hypervisor_flag: bool | None = None
    virtualization: str | None = None
    cpu_work_bytes_per_second: float | None = None
    steal: float | None = None
    round_trip: Spread | None = None
    write: Storage | None = None
    read: Storage | None = None
    links: Mapping[str, Link] = field(default_factory=dict)
    nvlink: ToolRun | None = None
    dcgm: ToolRun | None = None
    errors: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Sweep:
    """All-reduce of one message size."""

    message_bytes: int
    spread: Spread
    bus_bytes_per_second: float

    @property
    def jitter(self) -> float:
        """How much longer the 99th percentile took than the median, as a fraction of it."""
        return self.spread.p99_s / self.spread.p50_s - 1.0


@dataclass(frozen=True)
class Collective:
    """All-reduce among `hosts` as one of them saw it; no sweeps where `error` says what happened."""

    host: str
    hosts: tuple[str, ...]
    ranks: int
    backend: str
    sweeps: tuple[Sweep, ...] = ()
    steal: float | None = None
    links: Mapping[str, Link] = field(default_factory=dict)
    error: str | None = None

    @property
    def largest(self) -> Sweep | None:
        return max(self.sweeps, key=lambda sweep: sweep.message_bytes, default=None)


@dataclass(frozen=True)
class RailRun:
    """One `ib_write_bw` from GPU memory of `host` to that of `peer` over one rail.

    `host_memory`: from host memory though there is a GPU, because the tool was built without CUDA.
    """

    host: str
    peer: str
    rail: int
    device: str
    run: ToolRun
    host_memory: bool = False


@dataclass(frozen=True)
class Observations:
    """Everything one acceptance job brought back; `pending` are hosts that could not be tested now, and why."""

    nodes: Mapping[str, NodeFigures] = field(default_factory=dict)
    collectives: tuple[Collective, ...] = ()
    rails: tuple[RailRun, ...] = ()
    pending: Mapping[str, str] = field(default_factory=dict)
    log: str = ""


def read_observations(value: object) -> Observations:
    """Read what the module `acceptance_run` returned.

    Raises:
        DocumentError: if a file of the job does not follow its schema.
    """
    row = Row(value, "acceptance")
    nodes = row.rows("nodes", _node)
    collectives = row.rows("collectives", _collective)
    rails = tuple(run for runs in row.rows("rails", _rails) for run in runs)
    pending = {str(host): str(reason) for host, reason in _mapping(row, "pending").items()}
    log = row.text("log") or ""
    row.finish()
    return Observations({node.host: node for node in nodes}, collectives, rails, pending, log)


def _mapping(row: Row, key: str) -> Mapping[object, object]:
    value = row.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise row.fail(key, "a JSON object")
    return value


def _schema(row: Row, wanted: str) -> None:
    schema = row.text("schema")
    if schema != wanted:
        raise DocumentError(f"{row.where}: schema={schema!r} is not {wanted!r}")


def _node(row: Row) -> NodeFigures:
    _schema(row, NODE_SCHEMA)
    return NodeFigures(
        host=row.required("host", row.text("host")),
        memlock_soft_bytes=row.whole("memlock_soft_bytes"),
        memlock_hard_bytes=row.whole("memlock_hard_bytes"),
        shm_bytes=row.whole("shm_bytes"),
        hypervisor_flag=row.flag("hypervisor_flag"),
        virtualization=row.text("virtualization"),
        cpu_work_bytes_per_second=row.number("cpu_work_bytes_per_second"),
        steal=row.number("steal"),
        round_trip=row.row("round_trip", _spread),
        write=row.row("write", _storage),
        read=row.row("read", _storage),
        links=_links(row),
        nvlink=row.row("nvlink", _tool),
        dcgm=row.row("dcgm", _tool),
        errors={str(stage): str(text) for stage, text in _mapping(row, "errors").items()},
    )


def _need(row: Row, key: str) -> float:
    return row.required(key, row.number(key))


def _count(row: Row, key: str) -> int:
    return row.required(key, row.whole(key))


def _spread(row: Row) -> Spread:
    return Spread(_need(row, "p50_s"), _need(row, "p99_s"), _need(row, "max_s"), _count(row, "count"))


def _storage(row: Row) -> Storage:
    direct = row.required("direct", row.flag("direct"))
    return Storage(_count(row, "bytes"), _need(row, "start"), _need(row, "end"), direct)


def _tool(row: Row) -> ToolRun:
    return ToolRun(_count(row, "code"), row.text("text") or "")


def _link(row: Row) -> Link:
    found = Link(_count(row, "width"), _count(row, "max_width"), _need(row, "speed_gts"), _need(row, "max_speed_gts"))
    row.finish()
    return found


def _links(row: Row) -> dict[str, Link]:
    found = _mapping(row, "links")
    return {str(bdf): _link(Row(value, f"{row.where}: links: {bdf}")) for bdf, value in found.items()}


def _sweep(row: Row) -> Sweep:
    spread = Spread(_need(row, "p50_s"), _need(row, "p99_s"), _need(row, "max_s"), _count(row, "calls"))
    if spread.p50_s <= 0:
        raise row.fail("p50_s", "above zero")
    return Sweep(_count(row, "message_bytes"), spread, _need(row, "bus_bytes_per_second"))


def _collective(row: Row) -> Collective:
    _schema(row, COLLECTIVE_SCHEMA)
    return Collective(
        host=row.required("host", row.text("host")),
        hosts=row.texts("hosts"),
        ranks=_count(row, "ranks"),
        backend=row.text("backend") or "",
        sweeps=row.rows("sizes", _sweep),
        steal=row.number("steal"),
        links=_links(row),
        error=row.text("error"),
    )


def _rails(row: Row) -> tuple[RailRun, ...]:
    _schema(row, RAILS_SCHEMA)
    host = row.required("host", row.text("host"))

    def one(entry: Row) -> RailRun:
        peer, device = entry.text("peer") or "", entry.text("device") or ""
        host_memory = entry.text("memory") == "host"
        return RailRun(host, peer, _count(entry, "rail"), device, _tool(entry), host_memory)

    return row.rows("runs", one)
