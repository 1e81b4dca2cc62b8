"""Which RDMA devices of a node carry the job, and why the others do not: evidence of each device by itself.

Distance alone fails (a storage pair can be near a GPU, virtual functions are all near each other), so rate, link layer,
subnet and default route are asked first; distance and uniqueness per GPU follow in `rails.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..errors import FabricError
from ..hardware.node import Nic, NodeDocument, Port
from ..hardware.nvidia_smi import normal_bdf
from .addresses import routable_addresses, subnet_of
from .block import Fabric, NicOverride

_BDF = re.compile(r"([0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")
SLOTS_OF_A_CARD = 2
LINK_LAYER_OF_KIND = {"roce": "Ethernet", "infiniband": "InfiniBand"}


@dataclass(frozen=True)
class Candidate:
    """One device that may carry the job; `ports` are those in use; `rail` is its position in `rail_subnets`.

    `cloned`: more slots than a card can have share its system image GUID, which then identifies nothing.
    """

    nic: Nic
    ports: tuple[Port, ...]
    rail: int | None
    cloned: bool = False

    @property
    def rate_gbps(self) -> float:
        return sum(port.rate_gbps or 0.0 for port in self.ports)

    @property
    def model(self) -> tuple[str | None, str | None]:
        """What the card is, whatever rate its link came up with."""
        return self.nic.hca_type or self.nic.pci_id, self.nic.board_id

    @property
    def card(self) -> str:
        """Identity of the card; both functions of a dual-port card share it."""
        shared = _card_guid(self.nic)
        return shared if shared and not self.cloned else _slot(self.nic)


def _card_guid(nic: Nic) -> str | None:
    """Return the GUID that all functions of one card share, None where the firmware gives none."""
    shared = nic.sys_image_guid
    return shared if shared and shared.strip("0:") else None


def _slot(nic: Nic) -> str:
    return (nic.bdf or nic.device).rsplit(".", 1)[0]


def _without_clones(candidates: list[Candidate]) -> list[Candidate]:
    """Mark cards whose GUID was copied with their firmware: one card has two PCI slots at most (one per processor)."""
    slots: dict[str, set[str]] = {}
    for candidate in candidates:
        guid = _card_guid(candidate.nic)
        if guid:
            slots.setdefault(guid, set()).add(_slot(candidate.nic))
    cloned = {guid for guid, found in slots.items() if len(found) > SLOTS_OF_A_CARD}
    return [replace(it, cloned=True) if _card_guid(it.nic) in cloned else it for it in candidates]


@dataclass(frozen=True)
class Verdict:
    """What was decided about one device; `role` is ``compute``, ``excluded`` or ``extra``."""

    device: str
    bdf: str | None
    role: str
    reason: str


def name_of(nic: Nic) -> str:
    """Return a device as messages name it: display name and identity."""
    return f"{nic.device} ({nic.bdf})" if nic.bdf else nic.device


def find_candidates(document: NodeDocument, fabric: Fabric) -> tuple[list[Candidate], list[Verdict]]:
    """Return the devices that may carry the job and a verdict on each of the others.

    Raises:
        FabricError: if the operator's override names a device that the node has not.
    """
    override = fabric.override_for(document.host)
    _check_override(document, override)
    if override.use:
        return _overridden(document, fabric, override)
    candidates: list[Candidate] = []
    verdicts: list[Verdict] = []
    physical = any(nic.virtual_function is not True for nic in document.nics)
    for nic in document.nics:
        evidence = _evidence(document, fabric, nic)
        reason = _own_evidence(nic, override, physical, evidence)
        if reason:
            verdicts.append(Verdict(nic.device, nic.bdf, "excluded", reason))
        else:
            candidates.append(_candidate(document, fabric, nic, evidence))
    candidates = _without_clones(candidates)
    for rule in (_without_default_route, _fastest):
        candidates = _apply(rule, document, fabric, candidates, verdicts)
    return candidates, verdicts


def _check_override(document: NodeDocument, override: NicOverride) -> None:
    for key, values in (("use", override.use), ("exclude", override.exclude)):
        missing = [value for value in values if not any(_is(nic, value) for nic in document.nics)]
        if missing and key == "use":
            present = ", ".join(f"{nic.bdf or nic.device} (slot {nic.slot})" for nic in document.nics) or "none"
            raise FabricError(
                f"{document.host}: fabric.nics.{key} names {', '.join(missing)}, which the node has not; it has "
                f"{present}"
            )


def _is(nic: Nic, value: str) -> bool:
    """Compare with BDF or slot; a BDF may be written as lspci (no domain) or NVML (eight digits, capitals) do."""
    if value in (nic.bdf, nic.slot) or (nic.bdf is None and value == nic.device):
        return True
    if not _BDF.fullmatch(value):
        return False
    return normal_bdf(value if value.count(":") == 2 else f"0000:{value}") == nic.bdf


def _overridden(document: NodeDocument, fabric: Fabric, override: NicOverride) -> tuple[list[Candidate], list[Verdict]]:
    chosen = [nic for value in override.use for nic in document.nics if _is(nic, value)]
    unique = list(dict.fromkeys(chosen))
    others = [nic for nic in document.nics if nic not in unique]
    verdicts = [Verdict(nic.device, nic.bdf, "excluded", "not in the operator's list (nics.use)") for nic in others]
    return _without_clones(
        [_candidate(document, fabric, nic, _evidence(document, fabric, nic)) for nic in unique]
    ), verdicts


def _evidence(document: NodeDocument, fabric: Fabric, nic: Nic) -> list[str | None]:
    return [_port_evidence(document, fabric, port) for port in nic.ports]


def _candidate(document: NodeDocument, fabric: Fabric, nic: Nic, evidence: Sequence[str | None]) -> Candidate:
    usable = tuple(port for port, reason in zip(nic.ports, evidence) if reason is None)
    up = usable or tuple(port for port in nic.ports if _up(port)) or nic.ports
    addresses = [address for port in up for address in routable_addresses(document, port)]
    return Candidate(nic, up, subnet_of(addresses, fabric.rail_subnets))


def _up(port: Port) -> bool:
    return port.state in (None, "ACTIVE")


def _own_evidence(nic: Nic, override: NicOverride, physical: bool, reasons: Sequence[str | None]) -> str | None:
    """Return why a device cannot carry the job, None if nothing about itself or one of its ports speaks against it."""
    if any(_is(nic, value) for value in override.exclude):
        return "the operator excludes it (nics.exclude)"
    if nic.virtual_function and physical:
        return "virtual function: it shares the port of a physical one and adds no bandwidth"
    if not nic.ports:
        return "has no port"
    if None in reasons:
        return None
    return "; ".join(dict.fromkeys(reason for reason in reasons if reason))


def _port_evidence(document: NodeDocument, fabric: Fabric, port: Port) -> str | None:
    """Return why one port cannot carry the job, None if nothing about it speaks against it."""
    if not _up(port):
        return f"no active port (port {port.port} is {port.state})"
    wanted_layer = LINK_LAYER_OF_KIND.get(fabric.kind)
    if wanted_layer and port.link_layer not in (None, wanted_layer):
        return f"link layer is {port.link_layer}; the fabric is {fabric.kind}"
    if port.link_layer == "InfiniBand":
        return None
    addresses = routable_addresses(document, port)
    shown = ", ".join(map(str, addresses))
    for name, networks in (("storage", fabric.storage_subnets), ("management", fabric.management_subnets)):
        at = subnet_of(addresses, networks)
        if at is not None:
            return f"{shown} is in the {name} subnet {networks[at]}"
    wanted = fabric.fabric_subnets
    if not wanted or subnet_of(addresses, wanted) is not None:
        return None
    names = ", ".join(map(str, wanted))
    if addresses:
        return f"{shown} is outside the fabric's subnets ({names})"
    return f"has no address in the fabric's subnets ({names}), only link-local ones"


Rule = Callable[[NodeDocument, Fabric, list[Candidate]], "dict[str, str]"]


def _apply(
    rule: Rule, document: NodeDocument, fabric: Fabric, candidates: list[Candidate], verdicts: list[Verdict]
) -> list[Candidate]:
    """Drop what a rule excludes, unless nothing would be left: then the rule knows nothing of this node."""
    reasons = rule(document, fabric, candidates)
    kept = [candidate for candidate in candidates if candidate.nic.device not in reasons]
    if not kept:
        return candidates
    dropped = [candidate.nic for candidate in candidates if candidate.nic.device in reasons]
    verdicts.extend(Verdict(nic.device, nic.bdf, "excluded", reasons[nic.device]) for nic in dropped)
    return kept


def _without_default_route(document: NodeDocument, fabric: Fabric, candidates: list[Candidate]) -> dict[str, str]:
    routed = {interface.name for interface in document.interfaces if interface.default_route}
    return {
        candidate.nic.device: f"{port.netdev} carries the default route: management or front-end"
        for candidate in candidates
        for port in candidate.ports
        if port.netdev in routed and candidate.rail is None
    }


def _fastest(document: NodeDocument, fabric: Fabric, candidates: list[Candidate]) -> dict[str, str]:
    """Exclude cards of a slower model; a fast model whose link came up slowly stays, to be reported as such."""
    cards: dict[str, float] = {}
    for candidate in candidates:
        cards[candidate.card] = cards.get(candidate.card, 0.0) + candidate.rate_gbps
    best_of_model: dict[tuple[str | None, str | None], float] = {}
    for candidate in candidates:
        best = best_of_model.get(candidate.model, 0.0)
        best_of_model[candidate.model] = max(best, cards[candidate.card])
    top = max(best_of_model.values(), default=0.0)
    return {
        candidate.nic.device: f"{cards[candidate.card]:g} Gb/s; the compute network runs at {top:g} Gb/s"
        for candidate in candidates
        if best_of_model[candidate.model] < top
    }
