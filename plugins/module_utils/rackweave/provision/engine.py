"""Settings of the container engines, and what a probe inside a container must show."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..errors import ProvisionError

_STACK_BYTES = 67108864
_SHM_FLOOR_BYTES = 16 * 1024**3  # NCCL extends its segments with the number of ranks; 64 MB ends in a bus error
_PROBE_KEYS = ("shm_bytes", "memlock_kb", "uverbs", "gpus", "gpu_peers", "ipc", "net")

_PEERS = re.compile(r"(?P<allowed>\d+)/(?P<pairs>\d+)")


def docker_daemon(options: Mapping[str, object], *, gpus: bool) -> dict[str, object]:
    """Return the content of ``daemon.json``: our defaults, over them the operator's options.

    Limits are set here as well as on our own command line, so that a container somebody starts by hand does not fail in
    memory registration. ``live-restore`` keeps containers alive while the daemon restarts.

    Raises:
        ProvisionError: if an option takes away what training containers need.
    """
    document: dict[str, object] = {
        "default-ulimits": {
            "memlock": {"Name": "memlock", "Hard": -1, "Soft": -1},
            "stack": {"Name": "stack", "Hard": _STACK_BYTES, "Soft": _STACK_BYTES},
        },
        "default-shm-size": "16G",
        "exec-opts": ["native.cgroupdriver=systemd"],
        "live-restore": True,
        "log-driver": "local",
    }
    if gpus:
        document["runtimes"] = {"nvidia": {"path": "nvidia-container-runtime", "args": []}}
    for key, value in options.items():
        base = document.get(key)
        document[key] = {**base, **value} if isinstance(base, dict) and isinstance(value, Mapping) else value
    memlock = _limits(document).get("memlock", {})
    if memlock.get("Hard") != -1 or memlock.get("Soft") != -1:
        raise ProvisionError(
            "container_runtime_docker_options lowers the default memlock limit: RDMA memory registration would fail in "
            "every container; leave default-ulimits.memlock at -1"
        )
    return document


def _limits(document: Mapping[str, object]) -> Mapping[str, Mapping[str, object]]:
    """Return the default limits; with any other form Docker, already stopped for the change, would not start again."""
    limits = document["default-ulimits"]
    if not isinstance(limits, Mapping) or not all(isinstance(limit, Mapping) for limit in limits.values()):
        raise ProvisionError(
            f"container_runtime_docker_options: default-ulimits must be a mapping such as "
            f"{{nofile: {{Name: nofile, Hard: 1048576, Soft: 1048576}}}}, not {limits!r}"
        )
    return limits


def enroot_lines(options: Mapping[str, object]) -> list[str]:
    """Return the lines of ``enroot.conf``; paths are per user, since two users on one node must not share them."""
    settings: dict[str, object] = {
        "ENROOT_RUNTIME_PATH": "/run/enroot/user-$(id -u)",
        "ENROOT_CACHE_PATH": "/var/lib/enroot/cache/user-$(id -u)",
        "ENROOT_DATA_PATH": "/var/lib/enroot/data/user-$(id -u)",
        "ENROOT_MOUNT_HOME": "no",
        "ENROOT_RESTRICT_DEV": "no",
        "ENROOT_ROOTFS_WRITABLE": "yes",
    }
    settings.update({str(key): value for key, value in options.items()})
    wrong = sorted(key for key in settings if not key.startswith("ENROOT_"))
    if wrong:
        raise ProvisionError(f"container_runtime_enroot_options: {', '.join(wrong)} is no setting of enroot (ENROOT_…)")
    return [f"{key} {settings[key]}" for key in sorted(settings)]


def parse_probe(text: str) -> dict[str, str]:
    """Return the ``key=value`` lines that the probe printed inside the container.

    Raises:
        ProvisionError: if a line is missing, so that a probe that died half-way is not taken for a good one.
    """
    values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    missing = [key for key in _PROBE_KEYS if key not in values]
    if missing:
        raise ProvisionError(f"the probe in the container did not print {', '.join(missing)}: {text.strip()[-160:]!r}")
    return values


def probe_findings(inside: Mapping[str, str], outside: Mapping[str, str]) -> list[str]:
    """Return what a training container lacks, compared with the same probe on the node itself.

    Args:
        inside: :func:`parse_probe` of the container.
        outside: of the node.
    """
    findings = []
    if int(inside["shm_bytes"]) < min(_SHM_FLOOR_BYTES, int(outside["shm_bytes"])):
        findings.append(f"/dev/shm has {int(inside['shm_bytes']) // 2**20} MiB; use the node's IPC namespace")
    if inside["memlock_kb"] != "unlimited" and inside["memlock_kb"] != outside["memlock_kb"]:
        findings.append(f"memlock is {inside['memlock_kb']} kB, on the node {outside['memlock_kb']}")
    for key, what in (("uverbs", "RDMA devices"), ("gpus", "GPUs")):
        if int(inside[key]) < int(outside[key]):
            findings.append(f"{inside[key]} {what} inside, {outside[key]} on the node")
    findings += _peer_findings(inside["gpu_peers"], outside["gpu_peers"])
    for key, what in (("ipc", "IPC"), ("net", "network")):
        if inside[key] != outside[key]:
            findings.append(f"its {what} namespace is not the node's")
    return findings


def _peer_findings(inside: str, outside: str) -> list[str]:
    """Return what is wrong with the peer access of GPUs; where either side cannot be asked there is nothing to say."""
    there = _PEERS.fullmatch(outside)
    if there is None or inside.startswith("not possible here"):
        return []
    here = _PEERS.fullmatch(inside)
    if here is None:
        return [f"peer access of GPUs {inside}"]
    if int(here["allowed"]) >= int(there["allowed"]):
        return []
    return [f"peer access of GPUs for {inside} pairs inside, {outside} on the node"]
