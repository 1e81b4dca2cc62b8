"""Two virtual machines with Soft-RoCE: are predicted device and GID row really usable? (`make rdma-lab`)

Needs root, qemu-system-x86, mmdebstrap, e2fsprogs and some minutes: the machines are emulated (QEMU TCG), and RDMA in
them is software (`rdma_rxe`). So it proves function, never speed. The image is built once, in `.cache/rdma-lab`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rackweave.fabric.block import read_fabric
from rackweave.fabric.environment import render_environment
from rackweave.fabric.request import EnvironmentRequest, NodeEnvironment
from rackweave.hardware.document import read_document

ROOT = Path(__file__).parents[1]
CACHE = ROOT / ".cache/rdma-lab"
PACKAGES = [
    *("linux-image-amd64", "openssh-server", "python3", "iproute2", "kmod", "rdma-core", "ibverbs-providers"),
    *("ibverbs-utils", "rdmacm-utils", "perftest"),
]
NODES = (1, 2)
SSH_PORTS = {1: 22201, 2: 22202}
LINK_PORT = 22210
BOOT_LIMIT_S = 1800
FABRIC = {"kind": "roce", "mtu": 1500, "rdma_mtu": 1024, "subnets": ["10.40.0.0/24"]}
NCCL_VERSION = "2.22.3"

INIT = """#!/bin/sh
# Instead of an init system: network, Soft-RoCE, ssh. An emulated machine would take minutes for more.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t devtmpfs devtmpfs /dev 2>/dev/null
mkdir -p /dev/pts /dev/shm /run; mount -t devpts devpts /dev/pts; mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /run; mount -t tmpfs tmpfs /tmp
number=$(sed 's/.*rdma_lab_node=\\([0-9]*\\).*/\\1/' /proc/cmdline)
hostname "rxe$number"
modprobe virtio_net
ip link set lo up
ip link set eth0 up; ip address add 10.0.2.15/24 dev eth0; ip route add default via 10.0.2.2
ip link set eth1 up; ip address add "10.40.0.$number/24" dev eth1
modprobe rdma_rxe; modprobe rdma_ucm; rdma link add rxe0 type rxe netdev eth1
ulimit -l unlimited
mkdir -p /run/sshd
echo "rdma-lab: node $number is ready"
/usr/sbin/sshd -D -e &
while :; do wait; sleep 1; done
"""


class LabError(Exception):
    """What did not work, in one sentence."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=Path, metavar="FILE", help="write the report there too (Markdown)")
    arguments = parser.parse_args()
    machines: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory(prefix="rackweave-rdma-lab-") as scratch:
        try:
            build_image()
            started = time.monotonic()
            machines = [boot(number, Path(scratch)) for number in NODES]
            for number, machine in zip(NODES, machines):
                wait_for_ssh(number, machine)
            boot_s = time.monotonic() - started
            report = examine(boot_s)
        except LabError as error:
            sys.stderr.write(f"rdma-lab: {error}\n")
            return 1
        finally:
            for machine in machines:
                machine.kill()
                machine.wait()
    sys.stdout.write(report)
    if arguments.record:
        arguments.record.write_text(report)
    return 0


def say(text: str) -> None:
    sys.stderr.write(f"rdma-lab: {text}\n")


def build_image() -> None:
    """Make disk, kernel and initial RAM disk, once."""
    CACHE.mkdir(parents=True, exist_ok=True)
    key = CACHE / "id_ed25519"
    if not key.exists():
        call("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key))
    if (CACHE / "root.ext4").exists():
        return
    say("building the image (some minutes)")
    with tempfile.TemporaryDirectory(prefix="rackweave-rdma-root-", dir=CACHE) as work:
        init = Path(work, "rdma-lab-init")
        init.write_text(INIT)
        init.chmod(0o755)
        initramfs = "/etc/initramfs-tools/conf.d/rdma-lab"
        modules = "/usr/share/initramfs-tools/modules.d/rdma-lab"
        root = Path(work, "root")
        call(
            "mmdebstrap",
            "--variant=minbase",
            "--mode=root",
            f"--include={','.join(PACKAGES)}",
            f"--essential-hook=mkdir -p $1/etc/initramfs-tools/conf.d $1{Path(modules).parent}",
            f"--essential-hook=echo MODULES=list > $1{initramfs}",
            f"--essential-hook=printf 'virtio_pci\\nvirtio_blk\\next4\\n' > $1{modules}",
            f"--customize-hook=copy-in {init} /sbin",
            "--customize-hook=mkdir -m 700 $1/root/.ssh",
            f"--customize-hook=cp {key}.pub $1/root/.ssh/authorized_keys",
            "--customize-hook=chown -R root:root $1/root/.ssh",
            "bookworm",
            str(root),
        )
        for name in ("vmlinuz", "initrd.img"):
            newest = sorted(root.glob(f"boot/{name}-*"))[-1]
            (CACHE / name).write_bytes(newest.read_bytes())
        disk = CACHE / "root.ext4.new"
        call("mkfs.ext4", "-q", "-F", "-d", str(root), str(disk), "1800M")
        disk.rename(CACHE / "root.ext4")


def boot(number: int, scratch: Path) -> subprocess.Popen[bytes]:
    """Start one machine; its disk changes are thrown away, its console goes to a file."""
    link = f"listen=127.0.0.1:{LINK_PORT}" if number == NODES[0] else f"connect=127.0.0.1:{LINK_PORT}"
    append = (
        "console=ttyS0 root=/dev/vda rw init=/sbin/rdma-lab-init net.ifnames=0 no_timer_check mitigations=off quiet "
        f"rdma_lab_node={number}"
    )
    command = [
        *("qemu-system-x86_64", "-accel", "tcg", "-cpu", "qemu64", "-smp", "1", "-m", "768", "-display", "none"),
        *("-serial", f"file:{scratch / f'console{number}'}", "-device", "virtio-rng-pci", "-no-reboot"),
        *("-kernel", str(CACHE / "vmlinuz"), "-initrd", str(CACHE / "initrd.img"), "-append", append),
        *("-drive", f"file={CACHE / 'root.ext4'},if=virtio,format=raw,snapshot=on"),
        *("-netdev", f"user,id=user,hostfwd=tcp:127.0.0.1:{SSH_PORTS[number]}-:22"),
        *("-device", f"virtio-net-pci,netdev=user,mac=02:00:5e:00:00:0{number}"),
        *("-netdev", f"socket,id=link,{link}"),
        *("-device", f"virtio-net-pci,netdev=link,mac=02:00:5e:00:01:0{number}"),
    ]
    say(f"starting node {number}")
    machine = subprocess.Popen(["nice", "-n", "10", *command], stdin=subprocess.DEVNULL)
    time.sleep(2)  # the first machine listens for the second
    if machine.poll() is not None:
        raise LabError(f"node {number} did not start (exit status {machine.returncode})")
    return machine


def wait_for_ssh(number: int, machine: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + BOOT_LIMIT_S
    while time.monotonic() < deadline:
        if machine.poll() is not None:
            raise LabError(f"node {number} ended while booting (exit status {machine.returncode})")
        if on(number, "rdma link show rxe0/1", check=False, timeout=60).returncode == 0:
            say(f"node {number} answers")
            return
        time.sleep(5)
    raise LabError(f"node {number} did not answer within {BOOT_LIMIT_S} s")


def on(
    number: int, command: str, check: bool = True, timeout: float = 300, given: bytes | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run a command on a node."""
    options = ("StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR", "ConnectTimeout=30")
    words = ["ssh", "-i", str(CACHE / "id_ed25519"), "-p", str(SSH_PORTS[number])]
    for option in options:
        words += ["-o", option]
    try:
        done = subprocess.run([*words, "root@127.0.0.1", command], input=given, capture_output=True, timeout=timeout)
    except subprocess.TimeoutExpired as error:
        if check:
            raise LabError(f"node {number}: {command!r} did not end within {timeout:g} s") from error
        return subprocess.CompletedProcess(words, 124, b"", b"")
    if check and done.returncode:
        raise LabError(f"node {number}: {command!r} failed: {(done.stderr or done.stdout).decode().strip()[-300:]}")
    return done


def examine(boot_s: float) -> str:
    """Collect documents, predict, and carry traffic over exactly the predicted device and row."""
    package = subprocess.run(
        ["tar", "-C", str(ROOT / "plugins/module_utils"), "--exclude=__pycache__", "-c", "rackweave"],
        capture_output=True,
        check=True,
    ).stdout
    request = EnvironmentRequest(fabric=read_fabric(FABRIC), nccl_version=NCCL_VERSION)
    environments: dict[int, NodeEnvironment] = {}
    seconds = {}
    for number in NODES:
        on(number, "tar -x -C /root", given=package)
        began = time.monotonic()
        text = on(number, f"cd /root && python3 -m rackweave nccl --collect rxe{number}").stdout
        seconds[number] = time.monotonic() - began
        environments[number] = render_environment(read_document(json.loads(text)), request)
    for number, environment in environments.items():
        faults = [finding.message for finding in environment.findings if finding.kind in ("gid", "no-rdma")]
        if faults or len(environment.gids) != 1:
            raise LabError(f"node {number}: {'; '.join(faults) or 'not exactly one port was predicted'}")
    results = [carry_rping(), carry_write_bandwidth(environments)]
    return report_text(environments, results, boot_s, seconds)


def carry_rping() -> str:
    server = "rping -s -a 10.40.0.1 -C 5"
    client = "rping -c -a 10.40.0.1 -C 5 -v"
    output = between(server, client, ready=None)
    if "rdma-ping" not in output and "ping data" not in output:
        raise LabError(f"rping said nothing of pings: {output[-200:]}")
    return "rping: 5 pings over the predicted port's address, exit status 0"


def carry_write_bandwidth(environments: dict[int, NodeEnvironment]) -> str:
    server_port, client_port = environments[1].gids[0], environments[2].gids[0]
    size = "-s 65536 -n 200 -F"
    server = f"ib_write_bw -d {server_port.device} -i {server_port.port} -x {server_port.index} {size}"
    client = f"ib_write_bw -d {client_port.device} -i {client_port.port} -x {client_port.index} {size} 10.40.0.1"
    output = between(server, client, ready="ss -ltn | grep -q :18515")
    row = next((line.split() for line in output.splitlines() if line.split()[:2] == ["65536", "200"]), None)
    if row is None:
        raise LabError(f"ib_write_bw printed no result: {output[-200:]}")
    return (
        f"ib_write_bw: {client.removesuffix(' 10.40.0.1')}: {row[3]} MB/s on average (emulated; proves function only)"
    )


def between(server: str, client: str, ready: str | None) -> str:
    """Run a server on node 1 and its client on node 2; return the client's output."""
    on(1, f"nohup {server} > /tmp/server.log 2>&1 &")
    deadline = time.monotonic() + 300
    while ready and on(1, ready, check=False).returncode and time.monotonic() < deadline:
        time.sleep(2)
    if not ready:
        time.sleep(20)
    done = on(2, client, check=False, timeout=600)
    if done.returncode:
        log = on(1, "cat /tmp/server.log", check=False).stdout.decode()
        raise LabError(f"{client!r} ended with {done.returncode}: {done.stderr.decode()[-200:]} server: {log[-200:]}")
    return done.stdout.decode() + done.stderr.decode()


def report_text(
    environments: dict[int, NodeEnvironment], results: list[str], boot_s: float, seconds: dict[int, float]
) -> str:
    today = datetime.datetime.now(datetime.timezone.utc)
    lines = [
        "# Soft-RoCE lane: last output",
        "",
        "Written by `make rdma-lab`: two emulated machines (QEMU TCG) with software RDMA (`rdma_rxe`). It proves that",
        "the predicted device and GID row carry traffic; it says nothing of speed, and nothing of ConnectX hardware.",
        "",
        f"- {today:%Y-%m-%d %H:%M} UTC; both nodes answered after {boot_s:.0f} s",
    ]
    for number, environment in environments.items():
        prediction = environment.gids[0]
        hcas, table = environment.variables["NCCL_IB_HCA"], prediction.as_dict()["table"]
        lines.append(
            f"- rxe{number}: document over ssh in {seconds[number]:.1f} s; `NCCL_IB_HCA={hcas}`; predicted row "
            f"{prediction.index}, `{prediction.gid}`; table: {table}"
        )
    return "\n".join([*lines, *(f"- {result}" for result in results), ""])


def call(*words: str) -> None:
    done = subprocess.run(words, capture_output=True)
    if done.returncode:
        raise LabError(f"{words[0]} failed: {done.stderr.decode().strip()[-300:]}")


if __name__ == "__main__":
    sys.exit(main())
