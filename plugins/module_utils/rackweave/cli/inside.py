"""``rackweave nccl --inside``: run by a rank inside its container; compares what is there with its host's file."""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping

from ..errors import ParseError
from ..fabric.findings import Finding, ordered
from ..fabric.gate import apply_waivers, read_waivers
from ..fabric.inside import TORCHRUN, device_findings, limit_findings, shadow_findings, trace_values
from ..fabric.nccl_conf import parse_conf
from ..hardware.kernel import memlock_bytes
from .json_files import read_json, read_text
from .system import LocalSystem

SCHEMA = "rackweave.inside/1"
VERBS_CLASS = "/sys/class/infiniband_verbs"


def inspect_rank(
    conf_path: str,
    before_path: str | None,
    system: LocalSystem,
    waivers_path: str | None = None,
    today: datetime.date | None = None,
) -> dict[str, object]:
    """Return what this process sees of the plan for its host.

    Args:
        conf_path: ``nccl/<host>.conf``.
        before_path: JSON with the environments before ours was exported, by the name of their origin.
        waivers_path: JSON with waivers (docs/fabric.md).
        today: the day they are judged on.
    """
    host = os.path.basename(conf_path)[: -len(".conf")] if conf_path.endswith(".conf") else os.path.basename(conf_path)
    planned = parse_conf(read_text(conf_path, newline=""))
    layers = {**_before(before_path), "torchrun": TORCHRUN}
    traced = trace_values(planned, os.environ, layers, _files(system))
    devices = openable_devices(system)
    limits = system.read("/proc/self/limits") or ""
    shm = system.capacity_bytes("/dev/shm")
    rdma = planned.get("NCCL_IB_DISABLE") == "0"
    findings: list[Finding] = [*shadow_findings(host, traced), *device_findings(host, planned, devices)]
    findings += limit_findings(host, rdma, _memlock(limits), shm)
    waivers = read_waivers(read_json(waivers_path)) if waivers_path else ()
    verdict = apply_waivers(ordered(findings), waivers, today, (host,))
    return {
        "schema": SCHEMA,
        "host": host,
        "values": [it.as_dict() for it in traced],
        "rdma_devices": devices,
        "memlock_bytes": _memlock(limits),
        "shm_bytes": shm,
        "findings": [finding.as_dict() for finding in verdict.findings],
        "waived": verdict.as_dict()["waived"],
        "blocked": verdict.blocked,
    }


def openable_devices(system: LocalSystem) -> dict[str, bool]:
    """Return for each RDMA device whether this process can open it."""
    found = {}
    for name in system.names(VERBS_CLASS):
        device = system.read(f"{VERBS_CLASS}/{name}/ibdev")
        if device:
            found[device] = system.can_open(f"/dev/infiniband/{name}")
    return found


def _before(path: str | None) -> dict[str, dict[str, str]]:
    values = read_json(path) if path else {}
    if not isinstance(values, dict) or not all(isinstance(layer, dict) for layer in values.values()):
        raise ParseError(f"{path}: an object of environments by origin is expected")
    return {str(name): {str(key): str(value) for key, value in layer.items()} for name, layer in values.items()}


def _files(system: LocalSystem) -> Mapping[str, Mapping[str, str]]:
    user = os.environ.get("NCCL_CONF_FILE") or os.path.join(os.path.expanduser("~"), ".nccl.conf")
    return {path: parse_conf(system.read(path) or "") for path in (user, "/etc/nccl.conf")}


def _memlock(limits: str) -> int | None:
    try:
        return memlock_bytes(limits)
    except ParseError:
        return None
