"""The fabric block of the inventory: one description of the network, from which everything else is derived.

`docs/fabric.md` describes each key. Schema ``rackweave.fabric/1``.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Union

from ..errors import FabricError
from ..hardware.rows import Row
from .hca_list import check_exclusion_syntax
from .roce import (
    CONGESTION_EXPERIENCED,
    DEFAULT_DSCP_TO_PRIORITY,
    DSCP_VALUES,
    PRIORITIES,
    TRAFFIC_CLASSES,
    dscp_of,
    ecn_bits_of,
    pfc_list,
    traffic_class_of,
)

SCHEMA = "rackweave.fabric/1"
KINDS = ("roce", "infiniband", "ethernet")
TRUSTS = ("dscp", "pcp")
GDR_LEVELS = ("LOC", "PIX", "PXB", "P2C", "PHB", "SYS")
Network = Union[ipaddress.IPv4Network, ipaddress.IPv6Network]


@dataclass(frozen=True)
class NicOverride:
    """What the operator knows better: devices by BDF or physical slot, for all hosts or one."""

    use: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()


@dataclass(frozen=True)
class TopologyFile:
    """An NCCL topology file and the PCI addresses it names; set only on nodes that have every one."""

    path: str
    bus_ids: tuple[str, ...]


@dataclass(frozen=True)
class HostFabric:
    """What differs on one host."""

    nics: NicOverride = NicOverride()
    socket_interface: str | None = None


@dataclass(frozen=True)
class Fabric:
    """One description of the network between the nodes."""

    kind: str
    mtu: int | None = None
    rdma_mtu: int | None = None
    trust: str | None = None
    dscp: int | None = None
    ecn: bool | None = None
    ecn_bits: int | None = None  # only where `traffic_class` was given: both 1 and 2 mean capable (RFC 3168)
    lossless_priority: int | None = None
    dscp_to_priority: tuple[int, ...] | None = None
    cnp_dscp: int | None = None
    cnp_priority: int | None = None
    fifo_dscp: int | None = None
    rail_subnets: tuple[Network, ...] = ()
    subnets: tuple[Network, ...] = ()
    storage_subnets: tuple[Network, ...] = ()
    management_subnets: tuple[Network, ...] = ()
    rail_isolated: bool | None = None
    address_family: str | None = None
    gid_index: int | None = None
    service_level: int | None = None
    adaptive_routing: bool | None = None
    queue_pairs: int | None = None
    timeout: int | None = None
    gdr_level: str | None = None
    gdr_level_reason: str | None = None
    net_plugin: str | None = None
    topology_file: TopologyFile | None = None
    socket_interface: str | None = None
    nics: NicOverride = NicOverride()
    hosts: tuple[tuple[str, HostFabric], ...] = ()
    variables: tuple[tuple[str, str], ...] = ()

    @property
    def traffic_class(self) -> int | None:
        """The ToS byte of RoCE traffic (NCCL_IB_TC), derived from DSCP and ECN."""
        return self._marked(self.dscp)

    @property
    def fifo_traffic_class(self) -> int | None:
        """The ToS byte of NCCL's control messages, where the fabric gives them their own DSCP."""
        return self._marked(self.fifo_dscp)

    def _marked(self, dscp: int | None) -> int | None:
        if dscp is None or self.ecn_bits is None:
            return None if dscp is None else traffic_class_of(dscp, bool(self.ecn))
        return traffic_class_of(dscp, False) | self.ecn_bits

    @property
    def priority_map(self) -> tuple[int, ...]:
        return self.dscp_to_priority or DEFAULT_DSCP_TO_PRIORITY

    @property
    def fabric_subnets(self) -> tuple[Network, ...]:
        """Every subnet that compute NICs may be in; empty where the block names none."""
        return (*self.rail_subnets, *self.subnets)

    def override_for(self, host: str) -> NicOverride:
        """Return the operator's choice for a host; what is said of the host replaces what is said of all."""
        own = dict(self.hosts).get(host, HostFabric()).nics
        return NicOverride(own.use or self.nics.use, own.exclude or self.nics.exclude)

    def socket_interface_for(self, host: str) -> str | None:
        return dict(self.hosts).get(host, HostFabric()).socket_interface or self.socket_interface

    def expectations(self) -> dict[str, object]:
        """Return what NICs and switches must be set to, derived from this block (empty for other than RoCE)."""
        if self.kind != "roce" or self.dscp is None or self.lossless_priority is None:
            return {}
        return {
            "trust": self.trust or "dscp",
            "dscp": self.dscp,
            "traffic_class": self.traffic_class,
            "rdma_cm_tos": self.traffic_class,
            "priority": self.lossless_priority,
            "pfc": pfc_list([self.lossless_priority]),
            "ecn_priorities": [self.lossless_priority] if self.ecn else [],
            "cnp_dscp": self.cnp_dscp,
            "cnp_priority": self.cnp_priority,
            "mtu": self.mtu,
            "switch_mtu": None if self.mtu is None else max(9216, self.mtu),
            "dscp_to_priority": list(self.priority_map),
        }


def read_fabric(mapping: object) -> Fabric:
    """Read a fabric block from parsed JSON or from inventory variables.

    Raises:
        FabricError: for an unknown key, a wrong type, or values that contradict each other.
    """
    row = Row(mapping, "fabric", FabricError)
    if row.get("schema") not in (None, SCHEMA):
        raise FabricError(f"fabric has schema={row.get('schema')!r}; this version reads {SCHEMA!r}")
    fabric = _fields(row)
    row.finish()
    _check_ranges(row, fabric)
    _check_contradictions(fabric)
    return fabric


def _fields(row: Row) -> Fabric:
    dscp, ecn = row.whole("dscp"), row.flag("ecn")
    traffic_class = row.whole("traffic_class")
    if traffic_class is not None:
        dscp, ecn = _from_traffic_class(traffic_class, dscp, ecn)
    return Fabric(
        kind=row.required("kind", row.choice("kind", KINDS)),
        mtu=row.whole("mtu"),
        rdma_mtu=row.whole("rdma_mtu"),
        trust=row.choice("trust", TRUSTS),
        dscp=dscp,
        ecn=ecn,
        ecn_bits=None if traffic_class is None else ecn_bits_of(traffic_class),
        lossless_priority=row.whole("lossless_priority"),
        dscp_to_priority=row.wholes_or_null("dscp_to_priority"),
        cnp_dscp=row.whole("cnp_dscp"),
        cnp_priority=row.whole("cnp_priority"),
        fifo_dscp=row.whole("fifo_dscp"),
        rail_subnets=_networks(row, "rail_subnets"),
        subnets=_networks(row, "subnets"),
        storage_subnets=_networks(row, "storage_subnets"),
        management_subnets=_networks(row, "management_subnets"),
        rail_isolated=row.flag("rail_isolated"),
        address_family=row.choice("address_family", ("ipv4", "ipv6")),
        gid_index=row.whole("gid_index"),
        service_level=row.whole("service_level"),
        adaptive_routing=row.flag("adaptive_routing"),
        queue_pairs=row.whole("queue_pairs"),
        timeout=row.whole("timeout"),
        gdr_level=row.choice("gdr_level", GDR_LEVELS),
        gdr_level_reason=row.text("gdr_level_reason"),
        net_plugin=row.text("net_plugin"),
        topology_file=row.row("topology_file", _topology_file),
        socket_interface=row.text("socket_interface"),
        nics=row.row_or_empty("nics", _override),
        hosts=_hosts(row),
        variables=_variables(row),
    )


def _from_traffic_class(traffic_class: int, dscp: int | None, ecn: bool | None) -> tuple[int, bool]:
    derived = dscp_of(traffic_class), ecn_bits_of(traffic_class) in (1, 2)
    if ecn_bits_of(traffic_class) == CONGESTION_EXPERIENCED:
        raise FabricError(
            f"fabric: traffic_class={traffic_class} marks every packet as congestion experienced (ECN bits 3); "
            f"{traffic_class - 1} is the same DSCP with ECN, {traffic_class - 3} without"
        )
    if dscp not in (None, derived[0]) or ecn not in (None, derived[1]):
        raise FabricError(
            f"fabric: traffic_class={traffic_class} means dscp={derived[0]} and ecn={derived[1]}, but dscp={dscp} and "
            f"ecn={ecn} are given; leave traffic_class out, it is derived"
        )
    return derived


def _override(row: Row) -> NicOverride:
    return NicOverride(row.texts("use"), row.texts("exclude"))


def _topology_file(row: Row) -> TopologyFile:
    return TopologyFile(row.required("path", row.text("path")), row.texts("bus_ids"))


def _hosts(row: Row) -> tuple[tuple[str, HostFabric], ...]:
    hosts = row.get("hosts")
    if hosts is None:
        return ()
    table = Row(hosts, "fabric: hosts", FabricError)
    names = list(hosts) if isinstance(hosts, dict) else [str(name) for name in hosts]  # type: ignore[attr-defined]
    return tuple((name, table.row_or_empty(name, _host)) for name in names)


def _host(row: Row) -> HostFabric:
    return HostFabric(row.row_or_empty("nics", _override), row.text("socket_interface"))


def _variables(row: Row) -> tuple[tuple[str, str], ...]:
    values = row.get("variables")
    if values is None:
        return ()
    table = Row(values, "fabric: variables", FabricError)
    names = [str(name) for name in values]  # type: ignore[attr-defined]
    pairs = tuple((name, table.required(name, table.text(name))) for name in sorted(names))
    check_exclusion_syntax(dict(pairs))
    return pairs


def _networks(row: Row, key: str) -> tuple[Network, ...]:
    networks = []
    for text in row.texts(key):
        try:
            networks.append(ipaddress.ip_network(text))
        except ValueError as error:
            raise FabricError(f"fabric: {key}: {error}; a subnet is written like 10.40.0.0/16") from error
    return tuple(networks)


def _check_ranges(row: Row, fabric: Fabric) -> None:
    limits = {
        "dscp": DSCP_VALUES,
        "cnp_dscp": DSCP_VALUES,
        "fifo_dscp": DSCP_VALUES,
        "lossless_priority": PRIORITIES,
        "cnp_priority": PRIORITIES,
        "service_level": 16,
        "gid_index": TRAFFIC_CLASSES,
    }
    for key, count in limits.items():
        value = getattr(fabric, key)
        if value is not None and not 0 <= value < count:
            raise row.fail(key, f"from 0 to {count - 1}")
    if fabric.timeout is not None and not 1 <= fabric.timeout <= 31:
        raise row.fail("timeout", "from 1 to 31: 4.096 µs x 2^timeout; 0 and above 31 mean that no error ever shows")
    if fabric.queue_pairs is not None and not 1 <= fabric.queue_pairs <= 128:
        raise row.fail("queue_pairs", "from 1 to 128")
    if fabric.rdma_mtu not in (None, 256, 512, 1024, 2048, 4096):
        raise row.fail("rdma_mtu", "256, 512, 1024, 2048 or 4096 bytes")
    if fabric.mtu is not None and not 576 <= fabric.mtu <= 65535:
        raise row.fail("mtu", "from 576 to 65535 bytes")
    if fabric.dscp_to_priority is not None and (
        len(fabric.dscp_to_priority) != DSCP_VALUES or not set(fabric.dscp_to_priority) <= set(range(PRIORITIES))
    ):
        raise row.fail("dscp_to_priority", f"a list of {DSCP_VALUES} priorities from 0 to {PRIORITIES - 1}")


def _check_contradictions(fabric: Fabric) -> None:
    _check_priority("dscp", fabric.dscp, "lossless_priority", fabric.lossless_priority, fabric.priority_map)
    _check_priority("cnp_dscp", fabric.cnp_dscp, "cnp_priority", fabric.cnp_priority, fabric.priority_map)
    if fabric.cnp_priority is not None and fabric.cnp_priority == fabric.lossless_priority:
        raise FabricError(
            f"fabric: cnp_priority={fabric.cnp_priority} is the lossless priority too: congestion notifications would "
            "wait behind the traffic they are to slow down"
        )
    # RoCE v2 adds up to 78 bytes of headers to each RDMA packet (IB spec annex A17).
    if fabric.mtu is not None and fabric.rdma_mtu is not None and fabric.mtu < fabric.rdma_mtu + 78:
        raise FabricError(
            f"fabric: mtu={fabric.mtu} is too small for rdma_mtu={fabric.rdma_mtu} (78 bytes more needed)"
        )
    if fabric.gdr_level is not None and not fabric.gdr_level_reason:
        raise FabricError(
            f"fabric: gdr_level={fabric.gdr_level} needs gdr_level_reason (what was measured); NCCL's own choice is "
            "right unless a measurement says otherwise"
        )
    _check_overlaps(fabric)


def _check_priority(
    dscp_name: str, dscp: int | None, priority_name: str, priority: int | None, table: Sequence[int]
) -> None:
    if dscp is None or priority is None or table[dscp] == priority:
        return
    fitting = ", ".join(str(value) for value in range(DSCP_VALUES) if table[value] == priority) or "none"
    raise FabricError(
        f"fabric: {dscp_name}={dscp} is mapped to priority {table[dscp]}, but {priority_name}={priority}; "
        f"DSCP values of that priority: {fitting}"
    )


def _check_overlaps(fabric: Fabric) -> None:
    for number, rail in enumerate(fabric.rail_subnets):
        for other_number, other in enumerate(fabric.rail_subnets[:number]):
            if rail.version == other.version and rail.overlaps(other):
                raise FabricError(f"fabric: rail_subnets {other_number} ({other}) and {number} ({rail}) overlap")
    for name in ("storage_subnets", "management_subnets"):
        for network in getattr(fabric, name):
            for rail in fabric.fabric_subnets:
                if rail.version == network.version and rail.overlaps(network):
                    raise FabricError(f"fabric: {name} {network} overlaps the compute subnet {rail}")
