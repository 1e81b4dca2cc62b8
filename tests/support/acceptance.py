"""Figures of made-up nodes, all alike unless a test changes one."""

import json
from pathlib import Path

from rackweave.accept.figures import read_observations
from rackweave.hardware.document import read_document

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "inventory/hardware/examples/prod-8hca"
GPU_BDF = "0000:1b:00.0"


def node(host, **changed):
    return {
        "schema": "rackweave.acceptance_node/1",
        "host": host,
        "memlock_soft_bytes": -1,
        "memlock_hard_bytes": -1,
        "shm_bytes": 2**40,
        "hypervisor_flag": False,
        "virtualization": "none",
        "cpu_work_bytes_per_second": 1e9,
        "steal": 0.0,
        "round_trip": {"p50_s": 5e-5, "p99_s": 9e-5, "max_s": 2e-4, "count": 100},
        "write": {"bytes": 4 * 10**9, "start": 0.0, "end": 1.0, "direct": True},
        "read": {"bytes": 4 * 10**9, "start": 2.0, "end": 3.0, "direct": True},
        "links": {GPU_BDF: {"width": 16, "max_width": 16, "speed_gts": 2.5, "max_speed_gts": 32.0}},
        "nvlink": None,
        "dcgm": None,
        "errors": {},
        **changed,
    }


def collective(host, hosts, gigabytes_per_second, p99_s=0.0105, backend="nccl", **changed):
    size = {
        "message_bytes": 2**33,
        "calls": 10,
        "p50_s": 0.01,
        "p99_s": p99_s,
        "max_s": 0.02,
        "bus_bytes_per_second": gigabytes_per_second * 1e9,
    }
    return {
        "schema": "rackweave.acceptance_collective/1",
        "host": host,
        "hosts": hosts,
        "ranks": 8 * len(hosts),
        "backend": backend,
        "steal": 0.0,
        "sizes": [size],
        "links": {GPU_BDF: {"width": 16, "max_width": 16, "speed_gts": 32.0, "max_speed_gts": 32.0}},
        "error": None,
        **changed,
    }


def observations(nodes, collectives=(), rails=(), pending=None, log=""):
    return read_observations(
        {
            "nodes": list(nodes),
            "collectives": list(collectives),
            "rails": list(rails),
            "pending": pending or {},
            "log": log,
        }
    )


def document(host, **changed):
    values = json.loads((EXAMPLES / "trn01.json").read_text())
    return read_document({**values, "host": host, "origin": "measured", **changed})


def verdicts(report, host):
    """Return test name to test of one host."""
    return {test.name: test for result in report.hosts if result.host == host for test in result.tests}
