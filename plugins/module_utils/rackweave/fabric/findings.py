"""What a check found: one dataclass for every check of the fabric, and the table of how severe each kind is."""

from __future__ import annotations

from dataclasses import asdict, dataclass

BLOCK, WARN, NOTE = "block", "warn", "note"

# A finding blocks the launch where it makes a job hang, fail or run at a fraction of its speed without an error;
# it warns where it costs time or will cost it later; a note is for the report.
SEVERITIES = {
    "acs": WARN,
    "accepted-difference": WARN,
    "clock-limit": WARN,
    "compute-nic-address": BLOCK,
    "compute-nic-count": BLOCK,
    "compute-nic-extra": BLOCK,
    "compute-nic-firmware": WARN,
    "compute-nic-link": BLOCK,
    "compute-nic-model": WARN,
    "compute-nic-mtu": BLOCK,
    "compute-nic-rate": BLOCK,
    "cpu": WARN,
    "cuda": WARN,
    "fabric-manager": BLOCK,
    "gdr": BLOCK,
    "gid": BLOCK,
    "gid-gap": WARN,
    "gid-moved": WARN,
    "gpu-count": BLOCK,
    "gpu-ecc": WARN,
    "gpu-memory": BLOCK,
    "gpu-model": BLOCK,
    "gpu-nvlink": BLOCK,
    "gpu-power-limit": WARN,
    "gpu-vbios": NOTE,
    "harmful-variable": WARN,
    "hca-list": WARN,
    "iommu": WARN,
    "job-devices": BLOCK,
    "kernel": WARN,
    "max-read-request": WARN,
    "memlock": BLOCK,
    "memory": WARN,
    "nccl-plugin": BLOCK,
    "nccl-version": BLOCK,
    "nvidia-driver": BLOCK,
    "nvidia-userspace": BLOCK,
    "ofed": WARN,
    "no-rdma": BLOCK,
    "operating-system": NOTE,
    "origin": BLOCK,
    "peermem-unseen": WARN,
    "planes": WARN,
    "rail-map": BLOCK,
    "rail-subnet": BLOCK,
    "rdma-open": BLOCK,
    "roce-cnp": WARN,
    "roce-dscp-map": BLOCK,
    "roce-ecn": BLOCK,
    "roce-pfc": BLOCK,
    "roce-tos": WARN,
    "roce-traffic-class": BLOCK,
    "roce-trust": BLOCK,
    "roce-unknown": WARN,
    "shadowed": BLOCK,
    "shm": BLOCK,
    "slurm-version": WARN,
    "socket-interface": BLOCK,
    "topology-differs": WARN,
    "topology-file": BLOCK,
    "unplanned-variable": WARN,
    "virtualization": WARN,
}


@dataclass(frozen=True)
class Finding:
    """One fault of one host; `kind` is a key of `SEVERITIES`, `message` a sentence with the way out."""

    kind: str
    host: str
    message: str

    @property
    def severity(self) -> str:
        return SEVERITIES[self.kind]

    def as_dict(self) -> dict[str, str]:
        return {**asdict(self), "severity": self.severity}


def ordered(findings: list[Finding]) -> tuple[Finding, ...]:
    """Return findings with the worst first, then by host, kind and message; duplicates once."""
    rank = {BLOCK: 0, WARN: 1, NOTE: 2}
    return tuple(sorted(set(findings), key=lambda it: (rank[it.severity], it.host, it.kind, it.message)))
