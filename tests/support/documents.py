"""Node documents for tests: those of the reference deployment, cloned into fleets and changed in one respect."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

from rackweave.fabric.block import Fabric, read_fabric
from rackweave.fabric.environment import render_environment, render_environments
from rackweave.fabric.gate import GateVerdict, judge_fleet
from rackweave.fabric.request import EnvironmentRequest, NodeEnvironment
from rackweave.hardware.document import read_document
from rackweave.hardware.node import Gid, Nic, NodeDocument, Port, Roce

EXAMPLES = Path(__file__).parents[2] / "inventory/hardware/examples"
FABRICS = Path(__file__).parents[1] / "fixtures/fabric"
ROCE = json.loads((FABRICS / "roce.json").read_text())


@cache
def reference(host: str = "trn01", hcas: int = 8) -> NodeDocument:
    """Return a document of the reference deployment, as if it had been measured."""
    values = json.loads((EXAMPLES / f"prod-{hcas}hca" / f"{host}.json").read_text())
    return replace(read_document(values), origin="measured")


def fleet(count: int, hcas: int = 8) -> list[NodeDocument]:
    """Return equal nodes hgx-01, hgx-02 and so on."""
    return [replace(reference(hcas=hcas), host=f"hgx-{number:02d}") for number in range(1, count + 1)]


def fabric(**changes: object) -> Fabric:
    """Return the reference fabric with some keys changed (None takes a key away)."""
    values = {**ROCE, **changes}
    return read_fabric({key: value for key, value in values.items() if value is not None})


def request(nccl: str | None = "2.22.3", **changes: object) -> EnvironmentRequest:
    """Return a request; keys of the fabric block are changed by ``fabric=``."""
    values: dict[str, object] = {"fabric": fabric(), "nccl_version": nccl, **changes}
    return EnvironmentRequest(**values)  # type: ignore[arg-type]


def environment(document: NodeDocument, nccl: str | None = "2.22.3", **changes: object) -> NodeEnvironment:
    return render_environment(document, request(nccl, **changes))


def judge(documents: list[NodeDocument], nccl: str | None = "2.22.3", **changes: object) -> GateVerdict:
    """Return the gate's verdict on documents under the reference fabric."""
    asked = request(nccl, **changes)
    return judge_fleet(documents, render_environments(documents, asked), asked)


def with_nic(document: NodeDocument, device: str, /, **changes: object) -> NodeDocument:
    """Return the document with one NIC changed."""
    return replace(
        document, nics=tuple(_changed(nic, changes) if nic.device == device else nic for nic in document.nics)
    )


def _changed(nic: Nic, changes: dict[str, object]) -> Nic:
    return replace(nic, **changes)  # type: ignore[arg-type]


def with_port(document: NodeDocument, device: str, /, **changes: object) -> NodeDocument:
    """Return the document with the first port of one NIC changed."""
    nic = next(nic for nic in document.nics if nic.device == device)
    port: Port = replace(nic.ports[0], **changes)  # type: ignore[arg-type]
    return with_nic(document, device, ports=(port,))


def with_roce(document: NodeDocument, device: str, /, **changes: object) -> NodeDocument:
    """Return the document with the QoS settings of one NIC changed."""
    nic = next(nic for nic in document.nics if nic.device == device)
    return with_nic(document, device, roce=replace(nic.roce or Roce(), **changes))  # type: ignore[arg-type]


def gids(*addresses: str, first: int = 0) -> tuple[Gid, ...]:
    """Return two rows for each address, version 1 before version 2."""
    rows = [(address, kind) for address in addresses for kind in ("IB/RoCE v1", "RoCE v2")]
    return tuple(Gid(first + index, address, kind) for index, (address, kind) in enumerate(rows))


def kinds(verdict: GateVerdict) -> set[tuple[str, str]]:
    """Return kind and host of every finding."""
    return {(finding.kind, finding.host) for finding in verdict.findings}
