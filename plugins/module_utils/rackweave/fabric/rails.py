"""Rails of a node: which network card serves which GPUs, in the same order on every node.

Rail k is the k-th card in the order of the GPUs it serves (or of the fabric's rail subnets, where the block names
them), so position k of one node talks to position k of every other.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from ..errors import FabricError
from ..hardware.node import Gpu, NodeDocument
from ..hardware.order import bdf_key, natural_key
from .block import Fabric
from .candidates import Candidate, Verdict, find_candidates, name_of
from .distance import LEVELS, flat_virtual_machine, pcie_distance
from .findings import Finding
from .matching import cheapest_assignment

# One step farther outweighs any number of steps nearer, and any distance outweighs the order of the devices.
_LEVEL_COST: dict[str, int] = {level: 10**6 * 64**position for position, level in enumerate(LEVELS)}
_UNKNOWN_COST = _LEVEL_COST["SYS"]


@dataclass(frozen=True)
class Member:
    """One port of a rail; both functions of a dual-port card are members of one rail, on planes 0 and 1."""

    device: str
    port: int
    bdf: str | None
    rate_gbps: float | None
    plane: int


@dataclass(frozen=True)
class Rail:
    """One card and the GPUs it serves; `distance` is the longest to one of them, None where unknown."""

    index: int
    members: tuple[Member, ...]
    gpus: tuple[int, ...]
    distance: str | None
    subnet: int | None

    @property
    def rate_gbps(self) -> float:
        return sum(member.rate_gbps or 0.0 for member in self.members)


@dataclass(frozen=True)
class RailPlan:
    """The rails of one host, a verdict on every RDMA device, and what is wrong with them."""

    host: str
    rails: tuple[Rail, ...]
    verdicts: tuple[Verdict, ...]
    findings: tuple[Finding, ...]

    @property
    def members(self) -> tuple[Member, ...]:
        return tuple(member for rail in self.rails for member in rail.members)

    def rail_of_gpu(self, index: int) -> Rail | None:
        """Return the first rail that serves a GPU, None where there is none."""
        return next((rail for rail in self.rails if index in rail.gpus), None)

    def hca_of_gpu(self, index: int) -> str | None:
        """Return ``device:port`` that a GPU's rank uses first, None on a node without RDMA."""
        rail = self.rail_of_gpu(index)
        return None if rail is None else f"{rail.members[0].device}:{rail.members[0].port}"


@dataclass(frozen=True)
class _Card:
    """All candidate functions of one physical card, with its distance to each GPU."""

    functions: tuple[Candidate, ...]
    distances: tuple[str | None, ...]

    @property
    def first(self) -> Candidate:
        return self.functions[0]

    @property
    def rate_gbps(self) -> float:
        return sum(function.rate_gbps for function in self.functions)

    @property
    def signature(self) -> tuple[object, ...]:
        """What cards of one purpose have in common."""
        layers = {port.link_layer for function in self.functions for port in function.ports}
        return self.first.model, len(self.functions), self.rate_gbps, tuple(sorted(map(str, layers)))


def plan_rails(document: NodeDocument, fabric: Fabric) -> RailPlan:
    """Return the rails of a node.

    Raises:
        FabricError: on a virtual machine whose flat PCIe tree tells nothing, or for a wrong override.
    """
    candidates, verdicts = find_candidates(document, fabric)
    chosen = bool(fabric.override_for(document.host).use)
    gpus = sorted(document.gpus, key=lambda gpu: gpu.index)
    if len(gpus) > 1 and len(candidates) > 1 and not chosen and flat_virtual_machine(document):
        kind = document.identity.hypervisor or document.identity.virtualization
        raise FabricError(
            f"{document.host} is a virtual machine ({kind}) with a flat PCIe tree: nothing "
            "tells which GPU is near which NIC. Name the compute NICs in the order of the GPUs by BDF (fabric: nics: "
            "use), and give NCCL the provider's topology file (fabric: topology_file)"
        )
    cards = _cards(document, candidates, gpus)
    findings: list[Finding] = []
    if not chosen:
        cards = _near(cards, len(gpus), verdicts)
        cards = _of_majority(cards, len(gpus), verdicts)
    # The order that the operator wrote is the order of the GPUs; otherwise the tree decides.
    owners = _in_order(len(cards), len(gpus)) if chosen else _assign(cards, gpus)
    cards, owners = _without_extra(document, cards, owners, verdicts, findings)
    rails = _rails(document, cards, owners, gpus)
    findings.extend(_balance(document, rails, gpus, verdicts))
    findings.extend(_shared_subnets(document, rails, fabric))
    compute = [
        Verdict(member.device, member.bdf, "compute", _reason(rail, member, chosen))
        for rail in rails
        for member in rail.members
    ]
    verdicts.sort(key=lambda verdict: natural_key(verdict.device))
    return RailPlan(document.host, rails, (*compute, *verdicts), tuple(findings))


def _cards(document: NodeDocument, candidates: list[Candidate], gpus: list[Gpu]) -> list[_Card]:
    groups: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        groups.setdefault(candidate.card, []).append(candidate)
    return [_card(document, group, gpus) for group in groups.values()]


def _card(document: NodeDocument, functions: list[Candidate], gpus: list[Gpu]) -> _Card:
    ordered = sorted(functions, key=lambda function: bdf_key(function.nic.bdf) if function.nic.bdf else ())
    nic = ordered[0].nic
    sockets = document.cpu.sockets
    distances = [pcie_distance(nic.pcie_path, gpu.pcie_path, (nic.numa_node, gpu.numa_node), sockets) for gpu in gpus]
    return _Card(tuple(ordered), tuple(distances))


def _cost(distance: str | None) -> int:
    return _UNKNOWN_COST if distance is None else _LEVEL_COST[distance]


def _near(cards: list[_Card], gpus: int, verdicts: list[Verdict]) -> list[_Card]:
    """Drop cards that are the nearest of no GPU."""
    if not gpus:
        return cards
    best = [min(_cost(card.distances[gpu]) for card in cards) if cards else 0 for gpu in range(gpus)]
    kept = []
    for card in cards:
        if any(_cost(card.distances[gpu]) == best[gpu] for gpu in range(gpus)):
            kept.append(card)
            continue
        nearest = min(card.distances, key=_cost)
        reason = f"nearest to no GPU (its nearest is {nearest} away, every GPU has a nearer card)"
        verdicts.extend(Verdict(it.nic.device, it.nic.bdf, "excluded", reason) for it in card.functions)
    return kept


def _balanced(cards: int, gpus: int) -> bool:
    return cards > 0 and (gpus == 0 or cards % gpus == 0 or gpus % cards == 0)


def _of_majority(cards: list[_Card], gpus: int, verdicts: list[Verdict]) -> list[_Card]:
    """Where the cards do not fit the GPUs, keep those of the most common kind if these do."""
    if _balanced(len(cards), gpus) or not cards:
        return cards
    signature, count = Counter(card.signature for card in cards).most_common(1)[0]
    if not _balanced(count, gpus) or count * 2 <= len(cards):
        return cards
    for card in cards:
        if card.signature != signature:
            reason = f"another kind of card than the {count} that fit the {gpus} GPUs"
            verdicts.extend(Verdict(it.nic.device, it.nic.bdf, "excluded", reason) for it in card.functions)
    return [card for card in cards if card.signature == signature]


def _in_order(cards: int, gpus: int) -> list[list[int]]:
    """Give cards to GPUs in the order written: several GPUs a card, or several cards a GPU."""
    if not cards:
        return []
    if gpus >= cards:
        return [[gpu for gpu in range(gpus) if gpu * cards // gpus == card] for card in range(cards)]
    return [[card * gpus // cards] if gpus else [] for card in range(cards)]


def _assign(cards: list[_Card], gpus: list[Gpu]) -> list[list[int]]:
    """Return for each card the positions of its GPUs: as near as can be, and as many for each as can be."""
    if not cards or not gpus:
        return [[] for _ in cards]
    nic_order = sorted(range(len(cards)), key=lambda card: _position(cards[card].first.nic.bdf))
    gpu_order = sorted(range(len(gpus)), key=lambda gpu: _position(gpus[gpu].bdf))
    per_card = -(-len(gpus) // len(cards))
    per_gpu = max(1, len(cards) // len(gpus))
    rows = [gpu for gpu in gpu_order for _ in range(per_gpu)]
    columns = [card for card in nic_order for _ in range(per_card)]
    # The square of the shift keeps equally near devices in bus order; it never outweighs a distance.
    costs = [
        [_cost(cards[card].distances[gpu]) + (at_row - at_column) ** 2 for at_column, card in enumerate(columns)]
        for at_row, gpu in enumerate(rows)
    ]
    owners: list[list[int]] = [[] for _ in cards]
    for row, column in enumerate(cheapest_assignment(costs)):
        owners[columns[column]].append(rows[row])
    return [sorted(set(owner)) for owner in owners]


def _position(bdf: str | None) -> tuple[int, ...]:
    return bdf_key(bdf) if bdf else ()


def _without_extra(
    document: NodeDocument,
    cards: list[_Card],
    owners: list[list[int]],
    verdicts: list[Verdict],
    findings: list[Finding],
) -> tuple[list[_Card], list[list[int]]]:
    """Set aside cards that look like compute cards but have no GPU left to serve."""
    if not document.gpus:
        return cards, owners
    for card, owner in zip(cards, owners):
        if owner:
            continue
        names = ", ".join(name_of(function.nic) for function in card.functions)
        reason = "looks like a compute NIC, but every GPU has one already"
        verdicts.extend(Verdict(it.nic.device, it.nic.bdf, "extra", reason) for it in card.functions)
        message = (
            f"{names} {reason} ({len(cards)} cards, {len(document.gpus)} GPUs); remove it, or exclude it by BDF "
            "(fabric: nics: exclude)"
        )
        findings.append(Finding("compute-nic-extra", document.host, message))
    kept = [position for position, owner in enumerate(owners) if owner]
    return [cards[position] for position in kept], [owners[position] for position in kept]


def _rails(document: NodeDocument, cards: list[_Card], owners: list[list[int]], gpus: list[Gpu]) -> tuple[Rail, ...]:
    rails = []
    for card, owner in zip(cards, owners):
        distances = [card.distances[gpu] for gpu in owner]
        members = tuple(
            Member(function.nic.device, port.port, function.nic.bdf, port.rate_gbps, plane)
            for plane, (function, port) in enumerate(
                (function, port) for function in card.functions for port in function.ports
            )
        )
        subnets = {function.rail for function in card.functions} - {None}
        farthest = max(distances, key=_cost) if distances else None
        indexes = tuple(gpus[gpu].index for gpu in owner)
        rails.append(Rail(0, members, indexes, farthest, min(subnets) if subnets else None))  # type: ignore[type-var]
    if all(rail.subnet is not None for rail in rails) and len({rail.subnet for rail in rails}) == len(rails):
        rails.sort(key=lambda rail: rail.subnet or 0)
    else:
        rails.sort(key=lambda rail: (rail.gpus, _position(rail.members[0].bdf), natural_key(rail.members[0].device)))
    return tuple(replace(rail, index=index) for index, rail in enumerate(rails))


def _balance(
    document: NodeDocument, rails: tuple[Rail, ...], gpus: list[Gpu], verdicts: list[Verdict]
) -> list[Finding]:
    if not rails or _balanced(len(rails), len(gpus)):
        return []
    left_out = "; ".join(f"{verdict.device} ({verdict.bdf}): {verdict.reason}" for verdict in verdicts)
    message = f"{len(rails)} compute cards for {len(gpus)} GPUs: some GPUs would share what others have alone"
    return [Finding("compute-nic-count", document.host, f"{message}. Left out: {left_out or 'none'}")]


def _shared_subnets(document: NodeDocument, rails: tuple[Rail, ...], fabric: Fabric) -> list[Finding]:
    """Name rails that lie in one subnet where the block has one for each: a wrong address, or a swapped cable."""
    if len(fabric.rail_subnets) < len(rails):
        return []
    members: dict[int, list[str]] = {}
    for rail in rails:
        if rail.subnet is not None:
            members.setdefault(rail.subnet, []).append(f"{rail.members[0].device} ({rail.members[0].bdf})")
    return [
        Finding(
            "rail-subnet",
            document.host,
            f"{' and '.join(names)} are both in {fabric.rail_subnets[subnet]}, but each rail has a subnet of its own",
        )
        for subnet, names in members.items()
        if len(names) > 1
    ]


def _reason(rail: Rail, member: Member, chosen: bool) -> str:
    gpus = ", ".join(map(str, rail.gpus)) or "none"
    if chosen:
        return f"rail {rail.index}, GPU {gpus}: the operator's choice"
    distance = rail.distance or "an unknown distance"
    rate = "unknown rate" if member.rate_gbps is None else f"{member.rate_gbps:g} Gb/s"
    return f"rail {rail.index}, GPU {gpus} at {distance}, {rate}"
