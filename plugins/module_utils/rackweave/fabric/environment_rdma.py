"""Variables of NCCL's RDMA transport: devices, addresses, traffic class, queue pairs, GPUDirect."""

from __future__ import annotations

from ..hardware.node import Nic, NodeDocument, Port
from ..hardware.version import at_least
from .block import Network
from .distance import GPUDIRECT_LEVELS
from .findings import Finding
from .gid import (
    IPV4,
    IPV6,
    GidQuery,
    addresses_of,
    gid_fault,
    gid_table,
    has_gap,
    predict_gid_index,
    smallest_cover,
)
from .hca_list import HcaEntry, HcaList
from .rails import RailPlan
from .request import Draft, EnvironmentRequest, GidPrediction
from .variables import (
    GID_GAP_FROM,
    GID_GAP_UNTIL,
    GID_SEARCH_SINCE,
    PEERMEM_SEEN_SINCE,
    PLANES_SINCE,
    known,
)

ROCE_QUEUE_PAIRS = 4


def set_devices(draft: Draft, document: NodeDocument, rails: RailPlan, request: EnvironmentRequest) -> None:
    """Set NCCL_IB_DISABLE and the exact device list, in the order of the rails."""
    if not rails.members:
        found = (
            "; ".join(f"{verdict.device}: {verdict.reason}" for verdict in rails.verdicts) or "no RDMA device at all"
        )
        message = f"the fabric is {request.fabric.kind}, but no device can carry it ({found})"
        draft.findings.append(Finding("no-rdma", document.host, message))
        draft.omit("NCCL_IB_HCA", message)
        return
    draft.set("NCCL_IB_DISABLE", "0", f"the fabric is {request.fabric.kind}: RDMA must carry the job", "fabric: kind")
    planes = _with_planes(draft, document, rails, request)
    entries = tuple(
        HcaEntry(member.device, member.port, rail.index if planes else None, member.plane if planes else None)
        for rail in rails.rails
        for member in rail.members
    )
    reason = f"{len(rails.rails)} rail(s), in the order of the GPUs they serve; exact names, so that none is a prefix"
    draft.set("NCCL_IB_HCA", HcaList(entries, exact=True).text(), reason, "document: nics, gpus, pcie_path")


def _with_planes(draft: Draft, document: NodeDocument, rails: RailPlan, request: EnvironmentRequest) -> bool:
    """Say whether rail and plane numbers are needed and understood; warn where needed but not understood."""
    dual = [rail for rail in rails.rails if len(rail.members) > 1]
    if not dual or not request.fabric.rail_isolated:
        return False
    if at_least(request.nccl, PLANES_SINCE):
        return True
    message = (
        f"{len(dual)} rail(s) are dual-port cards on an isolated fabric: NCCL {request.nccl} may send on one port and "
        f"receive on the other, which hangs; use NCCL {PLANES_SINCE} or later, or test an all-reduce over two nodes"
    )
    draft.findings.append(Finding("planes", document.host, message))
    return False


def set_addresses(
    draft: Draft, document: NodeDocument, rails: RailPlan, request: EnvironmentRequest
) -> tuple[GidPrediction, ...]:
    """Predict the GID row of each compute port, and set only the variables that make it right."""
    ports = [(nic, port) for nic, port in compute_ports(document, rails) if port.link_layer != "InfiniBand"]
    if not ports or request.fabric.kind != "roce":
        return ()
    query = _query(ports, request)
    predictions = tuple(_predict(nic, port, query, request) for nic, port in ports)
    _set_query(draft, query, request)
    _set_index(draft, document, predictions, request)
    for prediction, (_, port) in zip(predictions, ports):
        where = f"{prediction.device}/{prediction.port}"
        if prediction.fault:
            message = f"{where}: GID {prediction.fault}. Table: {gid_table(port.gids)}"
            draft.findings.append(Finding("gid", document.host, message))
        elif _gap_matters(request) and has_gap(port.gids, prediction.index):
            message = (
                f"{where}: the GID table has an empty row before row {prediction.index}; NCCL {request.nccl} may abort"
            )
            draft.findings.append(Finding("gid-gap", document.host, message))
    return predictions


def compute_ports(document: NodeDocument, rails: RailPlan) -> list[tuple[Nic, Port]]:
    """Return device and port of every member of the rails, in their order."""
    nics = {nic.device: nic for nic in document.nics}
    found: list[tuple[Nic, Port]] = []
    for member in rails.members:
        nic = nics[member.device]
        found.extend((nic, port) for port in nic.ports if port.port == member.port)
    return found


def _query(ports: list[tuple[Nic, Port]], request: EnvironmentRequest) -> GidQuery:
    family = request.fabric.address_family or _family_of(ports)
    plain = GidQuery(family=family, pinned=request.fabric.gid_index)
    wanted = [network for network in request.fabric.fabric_subnets if network.version == (4 if family == IPV4 else 6)]
    cover = smallest_cover(wanted)
    if request.fabric.gid_index is not None or cover is None or _all_right(ports, plain, wanted):
        return plain
    ranged = GidQuery(family=family, within=cover)
    return ranged if _all_right(ports, ranged, wanted) else plain


def _family_of(ports: list[tuple[Nic, Port]]) -> str:
    """IPv6 only where no port has a routable IPv4 address and each has an IPv6 one."""
    without_ipv4 = not any(addresses_of(port.gids, IPV4) for _, port in ports)
    return IPV6 if without_ipv4 and all(addresses_of(port.gids, IPV6) for _, port in ports) else IPV4


def _all_right(ports: list[tuple[Nic, Port]], query: GidQuery, wanted: list[Network]) -> bool:
    return not any(gid_fault(port.gids, predict_gid_index(port.gids, query), wanted) for _, port in ports)


def _predict(nic: Nic, port: Port, query: GidQuery, request: EnvironmentRequest) -> GidPrediction:
    index = predict_gid_index(port.gids, query)
    fault = gid_fault(port.gids, index, request.fabric.fabric_subnets)
    row = next((gid.gid for gid in port.gids if gid.index == index), None)
    return GidPrediction(nic.device, port.port, index, row, fault, port.gids)


def _set_query(draft: Draft, query: GidQuery, request: EnvironmentRequest) -> None:
    if known("NCCL_IB_ADDR_FAMILY", request.nccl) is False:
        return
    if query.family == IPV6:
        reason = "the compute ports have IPv6 addresses only; the default looks for IPv4"
        draft.set("NCCL_IB_ADDR_FAMILY", "AF_INET6", reason, "document: gids")
    if query.within is not None:
        reason = "without it NCCL takes an address outside the fabric's subnets (the first one of the port)"
        draft.set("NCCL_IB_ADDR_RANGE", str(query.within), reason, "fabric: subnets; document: gids")


def _set_index(
    draft: Draft, document: NodeDocument, predictions: tuple[GidPrediction, ...], request: EnvironmentRequest
) -> None:
    indexes = sorted({prediction.index for prediction in predictions})
    pinned = request.fabric.gid_index
    if pinned is not None:
        draft.set("NCCL_IB_GID_INDEX", str(pinned), "the operator pins it", "fabric: gid_index")
    elif at_least(request.nccl, GID_SEARCH_SINCE):
        shown = ", ".join(map(str, indexes))
        reason = f"NCCL {request.nccl} searches the table itself and will take row {shown}; a pinned index goes stale"
        draft.omit("NCCL_IB_GID_INDEX", reason)
    elif len(indexes) == 1:
        reason = f"NCCL {request.nccl} does not search the table; this is the row that is routable on this node"
        draft.set("NCCL_IB_GID_INDEX", str(indexes[0]), reason, "document: gids")
    else:
        rows = ", ".join(f"{it.device}/{it.port}: {it.index}" for it in predictions)
        message = (
            f"NCCL {request.nccl} takes one GID index for all ports, but they need different ones ({rows}); use NCCL "
            f"{GID_SEARCH_SINCE} or later, or give all ports the same kinds of address"
        )
        draft.findings.append(Finding("gid", document.host, message))


def _gap_matters(request: EnvironmentRequest) -> bool:
    return at_least(request.nccl, GID_GAP_FROM) is True and at_least(request.nccl, GID_GAP_UNTIL) is False


def set_quality_of_service(draft: Draft, request: EnvironmentRequest) -> None:
    """Set traffic class or service level, queue pairs, adaptive routing, and the use of other rails."""
    fabric = request.fabric
    if fabric.kind == "roce":
        _set_traffic_class(draft, request)
        pairs = fabric.queue_pairs or ROCE_QUEUE_PAIRS
        reason = "each queue pair is a flow of its own to the switches' hashing: one flow would use one path"
        draft.set(
            "NCCL_IB_QPS_PER_CONNECTION", str(pairs), reason, "fabric: kind" if not fabric.queue_pairs else "fabric"
        )
    else:
        if fabric.service_level is not None:
            reason = "InfiniBand's service level of the job"
            draft.set("NCCL_IB_SL", str(fabric.service_level), reason, "fabric: service_level")
        if fabric.queue_pairs is not None:
            reason = "the operator's choice"
            draft.set("NCCL_IB_QPS_PER_CONNECTION", str(fabric.queue_pairs), reason, "fabric: queue_pairs")
    if fabric.adaptive_routing is not None:
        value, state = ("1", "does") if fabric.adaptive_routing else ("0", "does not")
        draft.set("NCCL_IB_ADAPTIVE_ROUTING", value, f"the fabric {state} route adaptively", "fabric: adaptive_routing")
    if fabric.timeout is not None:
        seconds = 4.096e-6 * 2**fabric.timeout * 7
        draft.set("NCCL_IB_TIMEOUT", str(fabric.timeout), f"errors show after about {seconds:.0f} s", "fabric: timeout")
    if fabric.rail_isolated:
        reason = "the rails are not connected with each other: a transfer must leave and arrive on the same rail"
        draft.set("NCCL_CROSS_NIC", "0", reason, "fabric: rail_isolated")
    else:
        draft.omit("NCCL_CROSS_NIC", "the rails are not declared isolated: NCCL's own choice")


def _set_traffic_class(draft: Draft, request: EnvironmentRequest) -> None:
    fabric = request.fabric
    if fabric.traffic_class is None:
        draft.omit("NCCL_IB_TC", "the fabric block names no DSCP: traffic is sent unmarked (best effort)")
        return
    reason = (
        f"DSCP {fabric.dscp} and ECN {'on' if fabric.ecn else 'off'} make ToS byte {fabric.traffic_class}, "
        f"priority {fabric.priority_map[fabric.dscp or 0]}"
    )
    draft.set("NCCL_IB_TC", str(fabric.traffic_class), reason, "fabric: dscp, ecn")
    if known("NCCL_IB_FIFO_TC", request.nccl) is False:
        draft.omit("NCCL_IB_FIFO_TC", f"NCCL {request.nccl} does not know it")
        return
    own = fabric.fifo_traffic_class
    reason = (
        "control messages have a DSCP of their own"
        if own is not None
        else "control messages ride with the data; some versions would send them unmarked otherwise"
    )
    draft.set("NCCL_IB_FIFO_TC", str(fabric.traffic_class if own is None else own), reason, "fabric: fifo_dscp, dscp")


def set_gpudirect(draft: Draft, document: NodeDocument, rails: RailPlan, request: EnvironmentRequest) -> None:
    """Leave the GPUDirect level to NCCL unless measured; report what keeps GPUDirect from working."""
    fabric = request.fabric
    if fabric.gdr_level is not None:
        reason = f"measured: {fabric.gdr_level_reason}"
        draft.set("NCCL_NET_GDR_LEVEL", fabric.gdr_level, reason, "fabric: gdr_level")
    else:
        far = [rail.index for rail in rails.rails if rail.distance not in (None, *GPUDIRECT_LEVELS)]
        note = f"; rail(s) {', '.join(map(str, far))} are farther than PXB, so GPUDirect is off there" if far else ""
        draft.omit("NCCL_NET_GDR_LEVEL", f"NCCL's own choice unless a measurement says otherwise{note}")
    direct = document.gpudirect
    if direct.dmabuf is False and direct.peermem is False:
        message = (
            "neither dmabuf (open kernel module of driver 515 or later, kernel 5.12 or later) nor the module "
            "nvidia_peermem is there: every transfer would be copied through host memory"
        )
        draft.findings.append(Finding("gdr", document.host, message))
    elif direct.peermem and not direct.dmabuf and at_least(request.nccl, PEERMEM_SEEN_SINCE) is False:
        message = (
            f"NCCL {request.nccl} does not see nvidia_peermem of newer drivers and would report GPUDirect as missing; "
            f"use dmabuf, or NCCL {PEERMEM_SEEN_SINCE} or later"
        )
        draft.findings.append(Finding("peermem-unseen", document.host, message))


def set_plugin(draft: Draft, document: NodeDocument, request: EnvironmentRequest) -> None:
    """Ask for the transport by the name of what is really loaded, so that no silent fallback can happen."""
    if request.fabric.net_plugin:
        draft.set("NCCL_NET", request.fabric.net_plugin, "the operator names the transport", "fabric: net_plugin")
        return
    plugins = request.nccl_plugins if request.nccl_plugins is not None or request.image else document.nccl_plugins
    if plugins is None:
        draft.omit("NCCL_NET", "the plugins of the job's image are unknown: naming IB could bypass one of them")
    elif plugins:
        draft.omit("NCCL_NET", f"{', '.join(plugins)} is loaded; naming IB would bypass it")
    else:
        reason = "no plugin is installed: RDMA by NCCL itself, and an error instead of a fallback to sockets"
        draft.set("NCCL_NET", "IB", reason, "document: nccl_plugins")


def set_topology_file(draft: Draft, document: NodeDocument, request: EnvironmentRequest) -> None:
    """Set the topology file only on a node that has every device it names."""
    file = request.fabric.topology_file
    if file is None:
        draft.omit("NCCL_TOPO_FILE", "NCCL reads the PCIe tree itself")
        return
    present = {step for gpu in document.gpus for step in gpu.pcie_path} | {gpu.bdf for gpu in document.gpus}
    present |= {step for nic in document.nics for step in nic.pcie_path} | {nic.bdf for nic in document.nics}
    missing = [bus for bus in file.bus_ids if bus not in present]
    if missing or not file.bus_ids:
        listed = ", ".join(missing) or "no bus id at all is listed"
        draft.omit("NCCL_TOPO_FILE", f"{file.path} names devices that this node has not ({listed})")
        return
    draft.set("NCCL_TOPO_FILE", file.path, "every device it names is on this node", "fabric: topology_file")
