"""What changed on a node since its hardware was accepted, in words.

Parts are matched by where they sit (PCI address, else index or name), so a part that moved to another address shows as
moved, and a part that was replaced shows its old and new serial.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from .node import Gpu, Interface, Nic, NodeDocument, Port

T = TypeVar("T")
# Kernels reserve more or less memory at boot; a missing module is far more than this.
MEMORY_TOLERANCE = 0.01


@dataclass(frozen=True)
class Change:
    """One change: `kind` for programs, `message` for people; `changes_rails` says whether plans must be made anew."""

    kind: str
    message: str
    changes_rails: bool = False

    def as_dict(self) -> dict[str, object]:
        return {"kind": self.kind, "message": self.message, "changes_rails": self.changes_rails}


def compare_documents(accepted: NodeDocument, observed: NodeDocument) -> tuple[Change, ...]:
    """Return the changes from the accepted to the observed hardware; volatile values do not count."""
    old, new = accepted.without_volatile(), observed.without_volatile()
    changes: list[Change] = []
    _compare_machine(old, new, changes)
    _compare_gpus(old.gpus, new.gpus, changes)
    _compare_nics(old.nics, new.nics, changes)
    _compare_interfaces(old, new, changes)
    _compare_settings(old, new, changes)
    return tuple(changes)


def consequences(changes: Sequence[Change]) -> tuple[str, ...]:
    """Return what follows from the changes, as sentences."""
    kinds = {change.kind for change in changes}
    found = []
    if any(change.changes_rails for change in changes):
        found.append("The rail map and the HCA list of this node are computed anew; plans that use it are out of date.")
    if kinds & {"gpu-missing", "gpu-added", "gpu-moved", "cpu"}:
        found.append("The gres line (count, Cores) changes, so slurm.conf and gres.conf are rendered again.")
    if kinds & {"nic-address", "interface-renamed", "nic-replaced"}:
        found.append("Network configuration that names a MAC address or an interface must follow.")
    if kinds & {"gpu-missing", "nic-missing"}:
        found.append("A part is missing: the node stays drained until it is back or the loss is accepted.")
    return tuple(found)


def _compare_machine(old: NodeDocument, new: NodeDocument, changes: list[Change]) -> None:
    names = {"serial": "chassis serial", "board_serial": "board serial", "uuid": "system UUID", "product": "product"}
    for field, name in names.items():
        before, after = getattr(old.identity, field), getattr(new.identity, field)
        if None not in (before, after) and before != after:
            changes.append(Change("machine", f"{name} was {before}, is {after}"))
    if old.host != new.host:
        changes.append(Change("machine", f"host name was {old.host}, is {new.host}"))
    for field in ("model", "sockets", "cores_per_socket", "threads_per_core", "logical"):
        before, after = getattr(old.cpu, field), getattr(new.cpu, field)
        if None not in (before, after) and before != after:
            changes.append(Change("cpu", f"CPU {field.replace('_', ' ')} was {before}, is {after}"))
    total, now = old.memory_total_bytes, new.memory_total_bytes
    if total and now and abs(now - total) > MEMORY_TOLERANCE * total:
        changes.append(Change("memory", f"memory was {total / 2**30:.1f} GiB, is {now / 2**30:.1f} GiB"))


def _compare_gpus(old: Sequence[Gpu], new: Sequence[Gpu], changes: list[Change]) -> None:
    pairs, gone, come = _paired(old, new, lambda gpu: gpu.bdf or f"#{gpu.index}")
    moved, gone, come = _moved(gone, come, lambda gpu: gpu.uuid, "gpu", _gpu_name, changes)
    for before, after in (*pairs, *moved):
        where = _gpu_name(after)
        if before.uuid != after.uuid and None not in (before.uuid, after.uuid):
            serials = f" (serial {before.serial} -> {after.serial})" if before.serial or after.serial else ""
            changes.append(Change("gpu-replaced", f"{where} was replaced: {before.uuid} -> {after.uuid}{serials}"))
        for field in (
            "name",
            "memory_bytes",
            "vbios",
            "ecc_enabled",
            "power_limit_w",
            "max_sm_clock_mhz",
            "nvlink_links",
        ):
            _field("gpu-setting", where, field, before, after, changes)
        if before.index != after.index:
            message = f"{where} had index {before.index}, has index {after.index}"
            changes.append(Change("gpu-moved", message, changes_rails=True))
    changes.extend(Change("gpu-missing", f"{_gpu_name(gpu)}{_serial(gpu)} is missing", True) for gpu in gone)
    changes.extend(Change("gpu-added", f"{_gpu_name(gpu)}{_serial(gpu)} is new", True) for gpu in come)


def _compare_nics(old: Sequence[Nic], new: Sequence[Nic], changes: list[Change]) -> None:
    pairs, gone, come = _paired(old, new, lambda nic: nic.bdf or nic.device)
    moved, gone, come = _moved(gone, come, lambda nic: nic.serial or nic.node_guid, "nic", _nic_name, changes)
    for before, after in (*pairs, *moved):
        _compare_nic(before, after, changes)
    changes.extend(Change("nic-missing", f"{_nic_name(nic)}{_serial(nic)} is missing", True) for nic in gone)
    changes.extend(Change("nic-added", f"{_nic_name(nic)}{_serial(nic)} is new", True) for nic in come)


def _compare_nic(before: Nic, after: Nic, changes: list[Change]) -> None:
    where = _nic_name(after)
    if before.device != after.device:
        changes.append(Change("nic-renamed", f"{after.bdf}: name moved {before.device} -> {after.device}", True))
    identity = [(name, getattr(before, name), getattr(after, name)) for name in ("serial", "node_guid")]
    replaced = [
        f"{name.replace('_', ' ')} {was} -> {now}"
        for name, was, now in identity
        if None not in (was, now) and was != now
    ]
    if replaced:
        changes.append(Change("nic-replaced", f"{where} was replaced: {', '.join(replaced)}"))
    for field in ("firmware", "board_id", "hca_type", "slot", "max_read_request", "roce"):
        _field("nic-setting", where, field, before, after, changes)
    ports, lost, found = _paired(before.ports, after.ports, lambda port: str(port.port))
    for port in (*lost, *found):
        changes.append(
            Change("nic-setting", f"{where}: port {port.port} {'is gone' if port in lost else 'is new'}", True)
        )
    for was, now in ports:
        _compare_port(where, was, now, changes)


def _compare_port(where: str, before: Port, after: Port, changes: list[Change]) -> None:
    port = f"{where} port {after.port}"
    if before.mac != after.mac and None not in (before.mac, after.mac):
        changes.append(Change("nic-address", f"{port}: MAC {before.mac} -> {after.mac}"))
    if before.netdev != after.netdev and None not in (before.netdev, after.netdev):
        changes.append(Change("interface-renamed", f"{port}: interface renamed {before.netdev} -> {after.netdev}"))
    for field in ("rate_gbps", "link_layer"):
        _field("nic-setting", port, field, before, after, changes, changes_rails=True)
    for field in ("mtu", "active_mtu"):
        _field("nic-setting", port, field, before, after, changes)
    rows = [{gid.index: gid.gid for gid in it.gids} for it in (before, after)]
    routable = [{index: gid for index, gid in table.items() if not gid.startswith("fe80")} for table in rows]
    if routable[0] != routable[1] and all(routable):
        shown = ["; ".join(f"{index}: {gid}" for index, gid in sorted(table.items())) for table in routable]
        changes.append(Change("gid-moved", f"{port}: GID table was [{shown[0]}], is [{shown[1]}]"))


def _compare_interfaces(old: NodeDocument, new: NodeDocument, changes: list[Change]) -> None:
    now = {interface.name: interface for interface in new.interfaces}
    names = {interface.name for interface in old.interfaces}
    come = [interface for interface in new.interfaces if interface.name not in names]
    for before in old.interfaces:
        after = now.get(before.name)
        if after is None:
            after = _renamed(before, come)
            if after is not None:
                come.remove(after)
        _compare_interface(before, after, changes)
    changes.extend(Change("interface", f"interface {it.name} ({it.mac}) is new") for it in come if it.mac)


def _renamed(before: Interface, come: Sequence[Interface]) -> Interface | None:
    """Return the interface that `before` is now: of the same MAC, else, on another card, of the same address."""
    for after in come:
        if before.mac is not None and before.mac == after.mac:
            return after
    routable = {address for address in before.addresses if not address.startswith("fe80")}
    return next((after for after in come if routable & set(after.addresses)), None)


def _compare_interface(before: Interface, after: Interface | None, changes: list[Change]) -> None:
    if after is None:
        if before.mac is not None:
            changes.append(Change("interface", f"interface {before.name} ({before.mac}) is gone"))
        return
    other_mac = before.mac != after.mac and None not in (before.mac, after.mac)
    if before.name != after.name:
        known_by = f"address {', '.join(after.addresses)}" if other_mac else f"MAC {after.mac}"
        message = f"interface with {known_by} renamed {before.name} -> {after.name}"
        changes.append(Change("interface-renamed", message))
    if other_mac:
        changes.append(Change("nic-address", f"interface {after.name}: MAC {before.mac} -> {after.mac}"))
    _field("interface", f"interface {after.name}", "mtu", before, after, changes)


def _compare_settings(old: NodeDocument, new: NodeDocument, changes: list[Change]) -> None:
    for section, kind in (("versions", "version"), ("pcie", "pcie"), ("gpudirect", "gpudirect"), ("limits", "limit")):
        before, after = getattr(old, section), getattr(new, section)
        for field in vars(before):
            _field(kind, section, field, before, after, changes)
    if old.nccl_plugins != new.nccl_plugins and None not in (old.nccl_plugins, new.nccl_plugins):
        message = f"NCCL plugins were {_text(old.nccl_plugins)}, are {_text(new.nccl_plugins)}"
        changes.append(Change("version", message))
    if set(old.nvswitches) != set(new.nvswitches):
        message = f"NVSwitches were {_text(old.nvswitches)}, are {_text(new.nvswitches)}"
        changes.append(Change("nvswitch", message))


def _field(
    kind: str,
    where: str,
    field: str,
    before: object,
    after: object,
    changes: list[Change],
    changes_rails: bool = False,
) -> None:
    was, now = getattr(before, field), getattr(after, field)
    if None not in (was, now) and was != now:
        message = f"{where}: {field.replace('_', ' ')} was {_text(was)}, is {_text(now)}"
        changes.append(Change(kind, message, changes_rails))


def _paired(old: Sequence[T], new: Sequence[T], key: Callable[[T], str]) -> tuple[list[tuple[T, T]], list[T], list[T]]:
    before, after = {key(item): item for item in old}, {key(item): item for item in new}
    pairs = [(before[name], after[name]) for name in before if name in after]
    gone = [item for name, item in before.items() if name not in after]
    return pairs, gone, [item for name, item in after.items() if name not in before]


def _moved(
    gone: list[T],
    come: list[T],
    identity: Callable[[T], str | None],
    kind: str,
    name: Callable[[T], str],
    changes: list[Change],
) -> tuple[list[tuple[T, T]], list[T], list[T]]:
    """Take parts that only sit elsewhere out of the missing and the new ones, and return them as pairs."""
    pairs = []
    arrived = {identity(item): item for item in come if identity(item)}
    stayed = []
    for item in gone:
        found = arrived.pop(identity(item), None) if identity(item) else None
        if found is None:
            stayed.append(item)
            continue
        changes.append(Change(f"{kind}-moved", f"{name(item)} moved, is now {name(found)}", changes_rails=True))
        pairs.append((item, found))
        come = [other for other in come if other is not found]
    return pairs, stayed, come


def _gpu_name(gpu: Gpu) -> str:
    return f"GPU {gpu.index} at {gpu.bdf or gpu.device_file}" + (f" in slot {gpu.slot}" if gpu.slot else "")


def _nic_name(nic: Nic) -> str:
    return f"NIC {nic.device} at {nic.bdf or 'no PCI address'}" + (f" in slot {nic.slot}" if nic.slot else "")


def _serial(part: Gpu | Nic) -> str:
    return f", serial {part.serial}," if part.serial else ""


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(map(str, value)) + "]"
    return str(value)
