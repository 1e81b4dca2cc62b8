"""A swap in the lab: a node's container made anew with another network card, and parts in a simulated tree."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

from tests.support.lab import BIN, ROOT, STATE, Lab

# Below the shared directory, so that every node sees the trees of all; `/mnt/shared` inside the nodes.
TREES = STATE / "shared/hardware"
OVERLAY = {"node_hardware_overlay": "/mnt/shared/hardware/{{ inventory_hostname }}"}
RUN = "swap"
BUSES = ("0f", "2d", "44", "5b")


def write_tree(host: str, serial: str, gpus: int = 4, nic: str = "mlx5_0") -> None:
    """Write the parts that a node is to show: GPUs by the driver's files, one RDMA device with its MAC address."""
    root = TREES / host
    shutil.rmtree(root, ignore_errors=True)
    for minor, bus in enumerate(BUSES[:gpus]):
        made_up = uuid.uuid5(uuid.NAMESPACE_DNS, f"{host}/{serial}/{minor}")
        text = f"Model: simulated\nGPU UUID: GPU-{made_up}\nBus Location: 0000:{bus}:00.0\nDevice Minor: {minor}\n"
        _write(root / f"proc/driver/nvidia/gpus/0000:{bus}:00.0/information", text)
    device = root / "sys/devices/pci0000:0c/0000:0c:01.0/0000:0c:00.0"
    for name, value in (("class", "0x020000"), ("vendor", "0x15b3"), ("device", "0x1021"), ("numa_node", "0")):
        _write(device / name, value)
    link = root / "sys/bus/pci/devices/0000:0c:00.0"
    link.parent.mkdir(parents=True)
    link.symlink_to("../../../devices/pci0000:0c/0000:0c:01.0/0000:0c:00.0")
    digest = hashlib.sha256(f"{host}/{serial}".encode()).hexdigest()
    base = root / "sys/class/infiniband" / nic
    _write(base / "node_guid", ":".join(digest[start : start + 4] for start in (0, 4, 8, 12)))
    for name, value in (("state", "4: ACTIVE"), ("rate", "400 Gb/sec (4X NDR)"), ("link_layer", "InfiniBand")):
        _write(base / "ports/1" / name, value)
    (base / "device").symlink_to("../../../devices/pci0000:0c/0000:0c:01.0/0000:0c:00.0")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def recreate(lab: Lab, host: str, interface: str = "") -> str:
    """Destroy the node's container and make it anew, its network card renamed if asked; return its host key."""
    name = lab.container(host)
    command = json.loads(lab.podman("inspect", "--format", "{{json .Config.CreateCommand}}", name))
    arguments = command[command.index("run") :]
    if interface:
        arguments = _with_interface(arguments, interface)
    lab.podman("rm", "--force", "--time", "2", name)
    lab.podman(*arguments)
    # A machine announces its card when it boots; a container does not, and its neighbours would send to the old one.
    flush = ["ip", "neigh", "flush", "to", lab.addresses[host]]
    subprocess.run(flush, check=True)
    for other in ("ctl", "gpu01"):
        lab.podman("exec", lab.container(other), *flush)
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        try:
            return " ".join(lab.podman("exec", name, "cat", "/etc/ssh/ssh_host_ed25519_key.pub").split()[:2])
        except subprocess.CalledProcessError:
            time.sleep(0.2)
    raise AssertionError(f"{name} has no host key after 180 s")


def _with_interface(arguments: list[str], interface: str) -> list[str]:
    """Say the three options of the network in one, which can name the interface too."""
    left, values = [], {}
    words = iter(arguments)
    for word in words:
        if word in ("--network", "--ip", "--network-alias"):
            values[word] = next(words)
        else:
            left.append(word)
    options = f"ip={values['--ip']},alias={values['--network-alias']},interface_name={interface}"
    return [left[0], "--network", f"{values['--network']}:{options}", *left[1:]]


def variables(**more: object) -> list[str]:
    """Return the arguments that give these variables to a playbook."""
    return ["-e", json.dumps({"training_job_run": RUN, **more})]


def rebuild_process(*arguments: str, log: Path) -> subprocess.Popen[bytes]:
    """Start a rebuild in a session of its own, so that it can be killed as a whole."""
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "ANSIBLE_NOCOLOR": "1"}
    command = [str(BIN / "ansible-playbook"), "-i", "inventory/lab", "playbooks/rebuild.yml", *arguments]
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=log.open("wb"), stderr=subprocess.STDOUT, start_new_session=True
    )


def kill_after(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Kill a process and all its children after some time; say whether it still ran."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)
        return True
    return False


def end_state(lab: Lab, host: str, files: Sequence[str]) -> dict[str, str]:
    """Return what a rebuild leaves behind, in Slurm, in its files, and on the controller."""
    node = lab.ssh("ctl", f"scontrol --oneliner show node {host}")
    words = [word for word in node.split() if word.startswith(("State=", "Reason=", "Gres="))]
    state = {
        "node": " ".join(words),
        "reservations": lab.ssh("ctl", "scontrol --oneliner show reservation", check=False),
    }
    state["comments"] = lab.ssh("ctl", "scontrol --oneliner show job | grep -o 'AdminComment=rackweave[^ ]*' || true")
    state["slurm"] = lab.ssh("ctl", "sha256sum /etc/slurm/*.conf")
    for path in files:
        state[path] = (ROOT / path).read_text() if (ROOT / path).exists() else "absent"
    return state
