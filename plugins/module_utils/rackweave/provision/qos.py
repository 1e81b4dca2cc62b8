"""RoCE host settings as values: from the fabric block of the inventory to what the boot-time service applies.

What the settings must be follows from the block (``fabric.block``); here they get the form that the service reads, and
the PCI functions they are for are chosen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..errors import ProvisionError
from ..fabric.block import Fabric, read_fabric

SCHEMA = "rackweave.rdma_qos/1"
_READ_REQUESTS = (128, 256, 512, 1024, 2048, 4096)
_ROCE_KEYS = ("dscp", "lossless_priority", "ecn", "mtu")


def roce_settings(fabric: Fabric) -> dict[str, object]:
    """Return the settings of one RoCE port, for the boot-time service.

    Raises:
        ProvisionError: if the block leaves out what a lossless port needs; nothing is guessed, since a wrong priority
            is silently lossy.
    """
    missing = [key for key in _ROCE_KEYS if getattr(fabric, key) is None]
    if missing:
        raise ProvisionError(
            f"fabric block: {', '.join(missing)} not given; a RoCE port cannot be set up without "
            f"{', '.join(_ROCE_KEYS)} (take them from the design of the network)"
        )
    if fabric.trust not in (None, "dscp"):
        raise ProvisionError(f"fabric block: trust={fabric.trust}: RoCE v2 is routed, and only DSCP survives routers")
    expected = fabric.expectations()
    levels = [int(flag) for flag in str(expected["pfc"]).split(",")]
    used = [value for value in (fabric.dscp, fabric.cnp_dscp, fabric.fifo_dscp) if value is not None]
    return {
        "trust": expected["trust"],
        "dscp_to_priority": {str(value): fabric.priority_map[value] for value in sorted(set(used))},
        "pfc": levels,
        "ecn_priorities": expected["ecn_priorities"],
        "cnp_dscp": fabric.cnp_dscp,
        "traffic_class": expected["traffic_class"],
        "cma_tos": expected["rdma_cm_tos"],
        "mtu": fabric.mtu,
    }


def qos_document(
    block: Mapping[str, object],
    devices: Sequence[str],
    *,
    max_read_request_bytes: int | None = None,
    acs_clear: bool = False,
    wait_s: int = 60,
    ofed: bool = True,
) -> dict[str, object]:
    """Return what the boot-time service reads: which PCI functions, and what each must be set to.

    Args:
        block: the fabric block; of another kind than ``roce``, or empty, it leaves the Ethernet settings out.
        devices: PCI addresses of the ports' functions, with domain.
        max_read_request_bytes: PCIe maximum read request of these functions; ``None`` leaves the BIOS's choice.
        acs_clear: whether ACS redirection is switched off on the bridges above them (needs consent, see the role).
        wait_s: how long the service waits for the devices at boot before it fails.
        ofed: whether the ports run with NVIDIA's OFED, so that every setting must be there; the kernel's own driver has
            none of ECN, CNP DSCP and a forced traffic class.
    """
    if max_read_request_bytes is not None and max_read_request_bytes not in _READ_REQUESTS:
        raise ProvisionError(f"max_read_request_bytes={max_read_request_bytes} is none of {_READ_REQUESTS}")
    fabric = read_fabric(block) if block else None
    return {
        "schema": SCHEMA,
        "devices": sorted(set(devices)),
        "roce": roce_settings(fabric) if fabric is not None and fabric.kind == "roce" else None,
        "max_read_request_bytes": max_read_request_bytes,
        "acs_clear": acs_clear,
        "wait_s": wait_s,
        "ofed": ofed,
    }


def select_devices(
    rows: Sequence[Mapping[str, object]],
    *,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    minimum_rate_gbps: float = 0,
) -> list[str]:
    """Return the PCI addresses of the RDMA functions that carry training traffic.

    Args:
        rows: of the module ``rdma_fabric_facts``: ``bdf``, ``virtual_function``, ``default_route``, ``rate_gbps``.
        include: addresses the operator names; then nothing else is taken.
        exclude: addresses never taken.
        minimum_rate_gbps: ports below it are storage or management ports.

    Raises:
        ProvisionError: if a named address has no RDMA device; after a swap that is a card in another slot.
    """
    present = {str(row["bdf"]).lower(): row for row in rows}
    named = [str(bdf).lower() for bdf in include]
    missing = sorted(bdf for bdf in named if bdf not in present)
    if missing:
        raise ProvisionError(
            f"rdma_fabric_devices names {', '.join(missing)}, where this node has no RDMA device; it has "
            f"{', '.join(sorted(present)) or 'none'}"
        )
    left_out = {str(bdf).lower() for bdf in exclude}
    if named:
        return sorted(set(named) - left_out)
    return sorted(
        bdf
        for bdf, row in present.items()
        if bdf not in left_out
        and not row.get("virtual_function")
        and not row.get("default_route")
        and float(str(row.get("rate_gbps") or 0)) >= minimum_rate_gbps
    )


def link_name(index: int, prefix: str) -> str:
    """Return the persistent name of the index-th device; numbered, since the order is that of PCI addresses."""
    return f"{prefix}{index}"


def persistent_names(devices: Sequence[str], prefix: str) -> dict[str, str]:
    """Return PCI address to name, in the order of addresses as numbers, so that ten comes after nine.

    Raises:
        ProvisionError: if an address is not ``domain:bus:device.function`` in hexadecimal.
    """
    return {bdf: link_name(index, prefix) for index, bdf in enumerate(sorted(set(devices), key=_bdf_key))}


def _bdf_key(bdf: str) -> tuple[int, int, int, int]:
    try:
        domain, bus, rest = bdf.split(":")
        device, function = rest.split(".")
        return int(domain, 16), int(bus, 16), int(device, 16), int(function, 16)
    except ValueError as exc:
        raise ProvisionError(f"{bdf!r} is not a PCI address with domain, such as 0000:0c:00.0") from exc
