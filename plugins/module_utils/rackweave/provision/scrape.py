"""Where Prometheus finds exporters: by what the inventory says of each host that is scraped, not of Prometheus' own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .of_hosts import is_on, row_of

EVERYWHERE = ("0.0.0.0", "::", "[::]")


@dataclass(frozen=True)
class Exporter:
    """Variables that say whether a host has an exporter (none: every host), on which address and on which port."""

    port: str
    addresses: tuple[str, ...]
    enabled: str = ""


EXPORTERS = {
    "node": Exporter("monitoring_node_exporter_port", ("monitoring_listen_address",)),
    "dcgm": Exporter(
        "monitoring_dcgm_exporter_port", ("monitoring_listen_address",), "monitoring_dcgm_exporter_enabled"
    ),
    # Which host has rank 0 is a matter of the plan, so every host is a target.
    "trainer": Exporter(
        "monitoring_prometheus_trainer_port", ("training_job_prometheus_address", "monitoring_listen_address")
    ),
}


def scrape_targets(
    exporter: str, hosts: Sequence[str], variables: Mapping[str, Any], own: Mapping[str, Any], here: str
) -> list[dict[str, Any]]:
    """Return the static targets of one job of Prometheus.

    Args:
        exporter: a key of `EXPORTERS`.
        variables: host to its variables, as the inventory has them.
        own: the same of Prometheus' host, defaults of the roles included; they hold for a host that does not say,
            addresses excepted.
        here: Prometheus' own host, the one that reaches an exporter on the loopback address.
    """
    found = EXPORTERS[exporter]
    rows = []
    for host in hosts:
        row = row_of(variables, host)
        if found.enabled and not is_on(_said(found.enabled, row, own)):
            continue
        # An address of Prometheus' host is nobody else's.
        address = _address(found, row, own if host == here else {})
        if address in EVERYWHERE or not address or (is_loopback(address) and host != here):
            address = str(_said("ansible_host", row, {}) or host)
        rows.append({"targets": [f"{_bracketed(address)}:{_said(found.port, row, own)}"], "labels": {"instance": host}})
    return rows


def out_of_reach(hosts: Sequence[str], variables: Mapping[str, Any], own: Mapping[str, Any], here: str) -> list[str]:
    """Return the hosts whose exporters listen for themselves alone, Prometheus' own host excepted."""
    node = EXPORTERS["node"]
    others = [host for host in hosts if host != here]
    return [host for host in others if is_loopback(_address(node, row_of(variables, host), own))]


def is_loopback(address: str) -> bool:
    """Whether only the host itself reaches an address."""
    return address in ("localhost", "::1", "[::1]") or address.startswith("127.")


def _address(exporter: Exporter, row: Mapping[str, Any], own: Mapping[str, Any]) -> str:
    """Return where a host's exporter listens: the first variable that the host sets, else what ``own`` says."""
    for source in (row, own):
        said = [str(value) for name in exporter.addresses if (value := _said(name, source, {}))]
        if said:
            return said[0]
    return ""


def _said(name: str, row: Mapping[str, Any], own: Mapping[str, Any]) -> Any:
    return row[name] if name in row else own.get(name)


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address and not address.startswith("[") else address
