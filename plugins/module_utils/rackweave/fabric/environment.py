"""The NCCL environment of one node, computed from its document and the fabric block, with a reason for every value."""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import FabricError
from ..hardware.address_text import Address, interface_address
from ..hardware.node import Interface, NodeDocument
from ..hardware.version import at_least
from .addresses import subnet_of
from .environment_rdma import (
    set_addresses,
    set_devices,
    set_gpudirect,
    set_plugin,
    set_quality_of_service,
    set_topology_file,
)
from .findings import Finding, ordered
from .hca_list import HcaList, check_devices, parse_hca_list
from .rails import RailPlan, plan_rails
from .request import Draft, EnvironmentRequest, GidPrediction, NodeEnvironment
from .variables import harm_of, known

FLIGHT_RECORDER_ENTRIES = 20000
# A dump takes about a second after the timeout has spread; two minutes cover a slow file system.
HEARTBEAT_MARGIN_S = 120
NEW_TORCH_NAMES_SINCE = "2.2"


def render_environment(document: NodeDocument, request: EnvironmentRequest) -> NodeEnvironment:
    """Return the environment of one host.

    Raises:
        FabricError: for a virtual machine whose tree tells nothing, or a wrong override of the operator.
    """
    draft = Draft()
    gids: tuple[GidPrediction, ...] = ()
    if request.fabric.kind == "ethernet":
        rails = RailPlan(document.host, (), (), ())
        reason = "the fabric block declares plain Ethernet: sockets are the declared transport, not a fallback"
        draft.set("NCCL_IB_DISABLE", "1", reason, "fabric: kind")
    else:
        rails = plan_rails(document, request.fabric)
        draft.findings.extend(rails.findings)
        set_devices(draft, document, rails, request)
        gids = set_addresses(draft, document, rails, request)
        set_quality_of_service(draft, request)
        set_gpudirect(draft, document, rails, request)
        set_plugin(draft, document, request)
        set_topology_file(draft, document, request)
    _set_sockets(draft, document, request)
    _set_debug(draft, request)
    _set_torch(draft, request)
    _set_operator(draft, document, request)
    return NodeEnvironment(
        document.host,
        tuple(draft.settings.values()),
        tuple(draft.omitted.items()),
        rails,
        gids,
        ordered(draft.findings),
    )


def render_environments(documents: Iterable[NodeDocument], request: EnvironmentRequest) -> dict[str, NodeEnvironment]:
    """Return the environments of all hosts by name; the cost of each is independent of the others."""
    return {document.host: render_environment(document, request) for document in documents}


def _set_sockets(draft: Draft, document: NodeDocument, request: EnvironmentRequest) -> None:
    try:
        name, reason, source = _bootstrap_interface(document, request)
    except FabricError as error:
        draft.findings.append(Finding("socket-interface", document.host, str(error)))
        draft.omit("NCCL_SOCKET_IFNAME", str(error))
        return
    draft.set("NCCL_SOCKET_IFNAME", f"={name}", f"{reason}; exact name, so that none is a prefix", source)
    draft.set("GLOO_SOCKET_IFNAME", name, f"{reason}; gloo takes one exact name", source)


def _bootstrap_interface(document: NodeDocument, request: EnvironmentRequest) -> tuple[str, str, str]:
    """Return name, reason and source of the interface on which ranks find each other."""
    fabric = request.fabric
    names = ", ".join(interface.name for interface in document.interfaces) or "none"
    wanted = fabric.socket_interface_for(document.host)
    if wanted is not None:
        if document.interfaces and all(interface.name != wanted for interface in document.interfaces):
            raise FabricError(f"fabric: socket_interface={wanted}, but {document.host} has {names}")
        return wanted, "the operator's choice", "fabric: socket_interface"
    usable = [interface for interface in document.interfaces if _addressed(interface)]
    managed = [it for it in usable if subnet_of(_ips(it), fabric.management_subnets) is not None]
    for found, reason in (
        (managed, "its address is in a management subnet"),
        ([it for it in usable if it.default_route], "it carries the default route"),
        (usable, "it is the only interface with an address"),
    ):
        if len(found) == 1:
            return found[0].name, reason, "document: interfaces"
        if len(found) > 1:
            break
    described = ", ".join(f"{it.name} ({', '.join(it.addresses)})" for it in usable) or "none with an address"
    raise FabricError(
        f"{document.host}: cannot tell on which interface ranks should find each other: {described}; name it in the "
        f"fabric block (management_subnets, socket_interface, or hosts: {document.host}: socket_interface)"
    )


def _addressed(interface: Interface) -> bool:
    return interface.state != "down" and any(not address.is_link_local for address in _ips(interface))


def _ips(interface: Interface) -> list[Address]:
    return [interface_address(address).ip for address in interface.addresses]


def _set_debug(draft: Draft, request: EnvironmentRequest) -> None:
    if request.profile != "acceptance":
        draft.set("NCCL_DEBUG", "WARN", "errors only: INFO floods the log of a long run", "profile")
        return
    draft.set("NCCL_DEBUG", "INFO", "the acceptance run proves which transport is chosen", "profile")
    draft.set(
        "NCCL_DEBUG_SUBSYS", "INIT,NET,GRAPH,ENV", "transport, topology and values that NCCL really saw", "profile"
    )
    if request.log_directory is not None:
        path = f"{request.log_directory}/nccl.%h.%p.log"
        draft.set("NCCL_DEBUG_FILE", path, "one file per host and process, off the job's output", "log_directory")
    else:
        draft.omit("NCCL_DEBUG_FILE", "the launcher knows the attempt's directory and sets it")
    if known("NCCL_IGNORE_NET_MISMATCH", request.nccl):
        reason = "different NIC counts must be an error here, not a hang later"
        draft.set("NCCL_IGNORE_NET_MISMATCH", "0", reason, "profile")


def _set_torch(draft: Draft, request: EnvironmentRequest) -> None:
    heartbeat = request.collective_timeout_s + HEARTBEAT_MARGIN_S
    reason = "3 keeps the processes alive until the flight recorder is written; 1 tears them down before"
    draft.set("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3", reason, "rule")
    if at_least(request.torch_version, NEW_TORCH_NAMES_SINCE) is False:
        draft.set("NCCL_ASYNC_ERROR_HANDLING", "1", "the name before PyTorch 2.2, which knows no 3", "rule")
    reason = f"collective timeout {request.collective_timeout_s} s and {HEARTBEAT_MARGIN_S} s for the dump"
    draft.set("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", str(heartbeat), reason, "collective_timeout_s")
    draft.set("TORCH_NCCL_ENABLE_MONITORING", "1", "a stuck watchdog thread must end the process", "rule")
    draft.set("TORCH_NCCL_DUMP_ON_TIMEOUT", "1", "write the flight recorder when a collective times out", "rule")
    entries = str(FLIGHT_RECORDER_ENTRIES)
    for name, era in (("TORCH_FR_BUFFER_SIZE", "new"), ("TORCH_NCCL_TRACE_BUFFER_SIZE", "old")):
        draft.set(name, entries, f"entries of the flight recorder ({era} name; each version reads one)", "rule")
    for name, era in (("TORCH_FR_DUMP_TEMP_FILE", "new"), ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "old")):
        if request.log_directory is not None:
            draft.set(name, f"{request.log_directory}/flight_recorder_", f"the rank is appended ({era} name)", "rule")
        else:
            draft.omit(name, "the launcher knows the attempt's directory and sets it")


def _set_operator(draft: Draft, document: NodeDocument, request: EnvironmentRequest) -> None:
    """Let the operator's own variables win, checked against the node and against known harm."""
    for name, value in request.fabric.variables:
        if name in ("NCCL_IB_HCA", "NCCL_SOCKET_IFNAME"):
            there = [nic.device for nic in document.nics]
            if name == "NCCL_SOCKET_IFNAME":
                there = [interface.name for interface in document.interfaces]
            parsed = parse_hca_list(value, name)
            if not parsed.exclude:
                check_devices(parsed, there, name)
            if name == "NCCL_IB_HCA":
                _compare_hca_lists(draft, document, parsed)
        harm = harm_of(name, value, request.nccl)
        if harm:
            message = f"fabric: variables: {name}={value}: {harm}"
            draft.findings.append(Finding("harmful-variable", document.host, message))
        replaced = draft.settings.get(name)
        instead = f"; computed: {replaced.value}" if replaced and replaced.value != value else ""
        draft.set(name, value, f"the operator's value{instead}", "fabric: variables")


def _compare_hca_lists(draft: Draft, document: NodeDocument, chosen: HcaList) -> None:
    """Report where the operator's list selects other devices than the evidence: a prefix takes neighbours too."""
    computed = draft.settings.get("NCCL_IB_HCA")
    if computed is None:
        return
    wanted = parse_hca_list(computed.value)
    ports = [(nic.device, port.port) for nic in document.nics for port in nic.ports if port.state in (None, "ACTIVE")]
    more = [device for device, port in ports if chosen.selects(device, port) and not wanted.selects(device, port)]
    less = [device for device, port in ports if wanted.selects(device, port) and not chosen.selects(device, port)]
    if more or less:
        words = [f"also selects {', '.join(more)}"] * bool(more) + [f"leaves out {', '.join(less)}"] * bool(less)
        hint = "" if chosen.exact else "; without = a name is a prefix"
        message = (
            f"fabric: variables: NCCL_IB_HCA={chosen.text()} {' and '.join(words)}{hint}; computed: {computed.value}"
        )
        draft.findings.append(Finding("hca-list", document.host, message))
