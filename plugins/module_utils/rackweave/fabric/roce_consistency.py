"""Proof that the host's RoCE settings fit each other and the fabric block, on each node.

The chain: a packet's ToS byte (NCCL's traffic class, or rdma_cm's) carries a DSCP; the port must trust DSCP; its map
must put that DSCP on a priority that PFC makes lossless; ECN must be on for it; congestion notifications must leave on
another priority. One broken link, and RoCE rides a lossy queue without any error.
"""

from __future__ import annotations

from ..hardware.node import Nic, NodeDocument, Port, Roce
from .block import Fabric
from .environment_rdma import compute_ports
from .findings import Finding
from .rails import RailPlan
from .roce import as_ranges, dscp_of, pfc_list, priority_of, traffic_classes_for


def check_roce(
    document: NodeDocument, rails: RailPlan, fabric: Fabric, traffic_class: int | None
) -> tuple[Finding, ...]:
    """Return what does not fit on the compute ports of one node.

    Args:
        traffic_class: the ToS byte that the job really sends (NCCL_IB_TC of its environment), None where unmarked.
    """
    if fabric.kind != "roce":
        return ()
    found: dict[tuple[str, str], list[str]] = {}
    for nic, port in compute_ports(document, rails):
        if port.link_layer == "InfiniBand":
            continue
        check = _PortCheck(nic, port, fabric, found)
        check.mtu()
        if nic.roce is None:
            check.report("roce-unknown", "its QoS settings could not be read; the chain is not proved")
        else:
            check.chain(nic.roce, traffic_class)
    return tuple(Finding(kind, document.host, f"{'; '.join(ports)}: {text}") for (kind, text), ports in found.items())


class _PortCheck:
    """The checks of one port; each fault is noted with all ports that have it, since most are a setting of the node."""

    def __init__(self, nic: Nic, port: Port, fabric: Fabric, found: dict[tuple[str, str], list[str]]) -> None:
        self._port, self._fabric, self._found = port, fabric, found
        self._where = f"{nic.device}/{port.port} ({nic.bdf}, {port.netdev})"

    def report(self, kind: str, message: str) -> None:
        self._found.setdefault((kind, message), []).append(self._where)

    def mtu(self) -> None:
        fabric, port = self._fabric, self._port
        if fabric.mtu is not None and port.mtu not in (None, fabric.mtu):
            self.report("compute-nic-mtu", f"MTU is {port.mtu}, the fabric has {fabric.mtu}")
        if fabric.rdma_mtu is not None and port.active_mtu not in (None, fabric.rdma_mtu):
            cause = f" (the netdev's MTU is {port.mtu})" if port.mtu is not None else ""
            self.report("compute-nic-mtu", f"active RDMA MTU is {port.active_mtu}, not {fabric.rdma_mtu}{cause}")

    def chain(self, roce: Roce, traffic_class: int | None) -> None:
        if self._fabric.traffic_class is None or self._fabric.lossless_priority is None:
            self._own_contradictions(roce, traffic_class)
            return
        self._trust(roce)
        self._map(roce)
        self._lossless(roce, traffic_class)
        self._ecn_and_cnp(roce)
        self._other_marks(roce, traffic_class)

    def _own_contradictions(self, roce: Roce, traffic_class: int | None) -> None:
        """Without a fabric block to compare with, the node can still contradict itself."""
        if traffic_class is not None and roce.pfc_priorities is not None and roce.trust == "dscp":
            self._lossless(roce, traffic_class)

    def _trust(self, roce: Roce) -> None:
        wanted = self._fabric.trust or "dscp"
        if roce.trust is None:
            self.report("roce-unknown", "the trust mode could not be read (mlnx_qos)")
        elif roce.trust != wanted:
            consequence = "the DSCP of a packet is ignored, and untagged traffic takes priority 0"
            self.report("roce-trust", f"trusts {roce.trust}, not {wanted}: {consequence}")

    def _map(self, roce: Roce) -> None:
        if roce.dscp_to_priority is None or roce.dscp_to_priority == self._fabric.priority_map:
            return
        wanted = self._fabric.priority_map
        moved = [dscp for dscp in range(len(wanted)) if roce.dscp_to_priority[dscp] != wanted[dscp]]
        first = moved[0]
        self.report(
            "roce-dscp-map",
            f"maps DSCP {as_ranges(moved)} otherwise than the fabric (DSCP {first}: priority "
            f"{roce.dscp_to_priority[first]}, not {wanted[first]})",
        )

    def _lossless(self, roce: Roce, traffic_class: int | None) -> None:
        if traffic_class is None:
            self.report("roce-traffic-class", "the job sends unmarked traffic (no NCCL_IB_TC): it takes a lossy queue")
            return
        if roce.pfc_priorities is None:
            self.report("roce-unknown", "PFC could not be read (mlnx_qos)")
            return
        table = roce.dscp_to_priority or self._fabric.priority_map
        priority = priority_of(traffic_class, table)
        if priority not in roce.pfc_priorities:
            fitting = as_ranges(traffic_classes_for(roce.pfc_priorities, table))
            self.report(
                "roce-traffic-class",
                f"NCCL_IB_TC={traffic_class} (DSCP {dscp_of(traffic_class)}) rides on priority {priority}, but PFC is "
                f"on for {as_ranges(sorted(roce.pfc_priorities))}; traffic classes that would fit: {fitting}",
            )
        wanted = self._fabric.lossless_priority
        if wanted is not None and roce.pfc_priorities != (wanted,):
            self.report("roce-pfc", f"PFC is {pfc_list(roce.pfc_priorities)}, the fabric has {pfc_list([wanted])}")

    def _ecn_and_cnp(self, roce: Roce) -> None:
        fabric = self._fabric
        wanted = fabric.lossless_priority
        if fabric.ecn and roce.ecn_priorities is not None and wanted not in roce.ecn_priorities:
            shown = as_ranges(sorted(roce.ecn_priorities))
            self.report(
                "roce-ecn", f"ECN is on for priority {shown}, not for {wanted}: congestion only shows as pauses"
            )
        if fabric.cnp_dscp is not None and roce.cnp_dscp not in (None, fabric.cnp_dscp):
            self.report("roce-cnp", f"sends congestion notifications with DSCP {roce.cnp_dscp}, not {fabric.cnp_dscp}")

    def _other_marks(self, roce: Roce, traffic_class: int | None) -> None:
        wanted = self._fabric.traffic_class
        if roce.cma_tos is not None and roce.cma_tos != wanted:
            self.report(
                "roce-tos", f"rdma_cm marks with ToS {roce.cma_tos}, NCCL with {wanted} (storage and tests differ)"
            )
        # The device's own traffic class, where set, overrides what a program asks for.
        if roce.traffic_class is not None and roce.traffic_class != wanted:
            message = f"the device forces traffic class {roce.traffic_class}, whatever NCCL asks for ({wanted})"
            self.report("roce-traffic-class", message)
        if traffic_class is not None and traffic_class != wanted:
            self.report("roce-traffic-class", f"the job sends ToS {traffic_class}, the fabric is made for {wanted}")
