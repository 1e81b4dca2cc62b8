"""A node document that may be shown to strangers: serials, UUIDs, MAC addresses, GUIDs and IP addresses made up.

Equal values stay equal and different ones different, so what the document says about the machine stays true. Made-up
MAC addresses are from the documentation range of RFC 7042, IP addresses from those of RFC 5737 and RFC 3849.
"""

from __future__ import annotations

import ipaddress
from dataclasses import replace

from ..errors import DocumentError
from .node import Gid, Gpu, Interface, Nic, NodeDocument, Port
from .rdma_tools import gid_text

MAX_MADE_UP = 250


class Scrubber:
    """Remembers what each real value was replaced with."""

    def __init__(self) -> None:
        self._made_up: dict[tuple[str, str], int] = {}

    def document(self, document: NodeDocument) -> NodeDocument:
        """Return the document without any identity but its host name."""
        identity = replace(
            document.identity,
            serial=self._text("serial", document.identity.serial),
            board_serial=self._text("serial", document.identity.board_serial),
            uuid=self._uuid(document.identity.uuid),
            boot_id=self._uuid(document.identity.boot_id),
        )
        return replace(
            document,
            identity=identity,
            gpus=tuple(self._gpu(gpu) for gpu in document.gpus),
            nics=tuple(self._nic(nic) for nic in document.nics),
            interfaces=tuple(self._interface(interface) for interface in document.interfaces),
        )

    def _number(self, kind: str, value: str) -> int:
        number = self._made_up.setdefault((kind, value), len([key for key in self._made_up if key[0] == kind]) + 1)
        if number > MAX_MADE_UP:
            raise DocumentError(f"more than {MAX_MADE_UP} different values of kind {kind}: not a document of one node")
        return number

    def _text(self, kind: str, value: str | None) -> str | None:
        return None if value is None else f"SCRUBBED-{self._number(kind, value)}"

    def _uuid(self, value: str | None) -> str | None:
        return None if value is None else f"00000000-0000-4000-8000-{self._number('uuid', value):012x}"

    def _guid(self, value: str | None) -> str | None:
        return None if value is None else f"0000:5eff:fe00:53{self._number('guid', value):02x}"

    def _mac(self, value: str | None) -> str | None:
        return None if value is None else f"00:00:5e:00:53:{self._number('mac', value):02x}"

    def _address(self, address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
        number = self._number("address", str(address))
        if address.version == 4:
            if address.is_link_local:
                return f"169.254.0.{number}"
            return f"192.0.2.{number}"
        return f"fe80::{number:x}" if address.is_link_local else f"2001:db8::{number:x}"

    def _gpu(self, gpu: Gpu) -> Gpu:
        uuid = self._uuid(gpu.uuid)
        return replace(gpu, uuid=None if uuid is None else f"GPU-{uuid}", serial=self._text("serial", gpu.serial))

    def _nic(self, nic: Nic) -> Nic:
        return replace(
            nic,
            serial=self._text("serial", nic.serial),
            node_guid=self._guid(nic.node_guid),
            sys_image_guid=self._guid(nic.sys_image_guid),
            ports=tuple(self._port(port) for port in nic.ports),
        )

    def _port(self, port: Port) -> Port:
        return replace(
            port,
            mac=self._mac(port.mac),
            port_guid=self._guid(port.port_guid),
            gids=tuple(self._gid(gid) for gid in port.gids),
        )

    def _gid(self, gid: Gid) -> Gid:
        address = ipaddress.IPv6Address(gid.gid)
        inner = address.ipv4_mapped
        return replace(gid, gid=gid_text(f"::ffff:{self._address(inner)}" if inner else self._address(address)))

    def _interface(self, interface: Interface) -> Interface:
        addresses = [ipaddress.ip_interface(address) for address in interface.addresses]
        shown = tuple(f"{self._address(it.ip)}/{it.network.prefixlen}" for it in addresses)
        return replace(interface, mac=self._mac(interface.mac), addresses=shown)
