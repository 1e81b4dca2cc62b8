#!/usr/bin/python
"""Collect evidence on one node of a failed or hung job, each collector within its own time limit."""

from __future__ import annotations

import glob
import json
import os
import pwd
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.rackweave.watch.collect import (
    COLLECTORS,
    Collector,
    command,
    job_processes,
    needs_pid,
    rank_processes,
    stopped_processes,
    traffic,
)
from ..module_utils.rackweave.watch.reach import peer_line

MAX_PEERS = 256
PROBE_PORTS = (6818, 22)  # slurmd and sshd: where nothing listens, a host that lives refuses
PROBE_S = 2.0
MAX_PROBES = 32  # at a time

DOCUMENTATION = r"""
module: job_evidence
short_description: Collect on a node what explains a hang or a crash
description:
  - Runs NCCL RAS, py-spy, the kernel log, nvidia-smi and Slurm's view of the job side by side with the job, and reads
    port counters twice. It changes nothing of the job and is meant to run before anything is killed.
  - Every collector has its own time limit and reports ok, failed, timeout or absent for itself.
options:
  job: {description: "Slurm job id; empty leaves Slurm's view out.", type: str, default: ""}
  since: {description: "Begin of the job, as C(journalctl --since) takes it.", type: str, default: "-2h"}
  processes:
    description:
      - Process ids of the job's ranks; where left out they are found by the environment that torchrun and Slurm gave
        them, or else by their command.
    type: list
    elements: int
    default: []
  only: {description: "Names of the collectors to run; all where left out.", type: list, elements: str, default: []}
  dumps: {description: "Glob of flight-recorder dumps on this node.", type: str, default: ""}
  peers: {description: Other hosts of the job that this one must reach., type: list, elements: str, default: []}
  search_path: {description: Directories of tools to prefer., type: list, elements: path, default: []}
  counter_seconds:
    description: "Seconds between two readings of port counters; 0 leaves them out."
    type: float
    default: 2.0
  sysfs: {description: "Where sysfs is mounted.", type: path, default: /sys}
  max_bytes: {description: "Most bytes kept of one collector, from its end.", type: int, default: 262144}
  dest:
    description: "Directory for the output (C(evidence/HOST) of the attempt); nothing is written where left out."
    type: path
  owner:
    description: User as whom is written; a shared file system may refuse root, and the attempt belongs to its user.
    type: str
attributes:
  check_mode: {support: full, description: "Collects, writes nothing."}
author: Rackweave
"""
EXAMPLES = r"""
- name: Collect before anything is killed
  rackweave.cluster.job_evidence:
    job: "12"
    since: "2026-08-02 07:00:00"
    dest: "/mnt/shared/runs/demo/attempts/12.0/evidence/{{ inventory_hostname }}"
    owner: hpc
    peers: "{{ groups['gpu_nodes'] | difference([inventory_hostname]) }}"
  become: true
"""
RETURN = r"""
collectors:
  description: State (ok, failed, timeout, absent), seconds and a word on each collector.
  returned: always
  type: dict
texts: {description: Output of each collector that has some; empty where it was written., returned: always, type: dict}
dumps: {description: Flight-recorder dumps found., returned: always, type: list, elements: str}
stopped: {description: "Processes in state T or D, by process id.", returned: always, type: dict}
files: {description: Files written., returned: always, type: list, elements: str}
"""
SPEC = {
    "job": {"type": "str", "default": ""},
    "since": {"type": "str", "default": "-2h"},
    "processes": {"type": "list", "elements": "int", "default": []},
    "only": {"type": "list", "elements": "str", "default": []},
    "dumps": {"type": "str", "default": ""},
    "counter_seconds": {"type": "float", "default": 2.0},
    "sysfs": {"type": "path", "default": "/sys"},
    "max_bytes": {"type": "int", "default": 262144},
    "dest": {"type": "path"},
    "owner": {"type": "str"},
    "peers": {"type": "list", "elements": "str", "default": []},
    "search_path": {"type": "list", "elements": "path", "default": []},
}


def run_limited(argv: list[str], limit_s: float, max_bytes: int) -> tuple[str, str, str]:
    """Return state, output (its end) and a word; at the limit the whole process group is killed."""
    if shutil.which(argv[0]) is None:
        return "absent", "", f"{argv[0]} is not installed"
    process = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        out, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        out = _end(process)
        return "timeout", _tail(out, max_bytes), f"stopped after {limit_s:g} s"
    state = "ok" if process.returncode == 0 else "failed"
    return state, _tail(out, max_bytes), f"exit status {process.returncode}"


def _end(process: subprocess.Popen[bytes]) -> bytes:
    """Kill a group; a process that waits in the kernel cannot be killed and is left behind, not waited for."""
    try:
        os.killpg(process.pid, 9)
        return process.communicate(timeout=1.0)[0] or b""
    except (subprocess.TimeoutExpired, ProcessLookupError, PermissionError):
        return b""


def _tail(data: bytes, limit: int) -> str:
    return data[-limit:].decode("utf-8", "replace")


def collect(collector: Collector, params: dict, pids: list[int]) -> tuple[dict, str]:
    """Run one collector, once or for each process within one common limit."""
    began = time.monotonic()
    if "{job}" in collector.argv and not params["job"]:
        return {"state": "absent", "seconds": 0.0, "detail": "no job id given"}, ""
    targets: list[int | None] = [*pids] if needs_pid(collector) else [None]
    if not targets:
        return {"state": "absent", "seconds": 0.0, "detail": "no process of the job found"}, ""
    state, texts, detail = "ok", [], ""
    for pid in targets:
        left = collector.limit_s - (time.monotonic() - began)
        if left <= 0:
            state, detail = "timeout", f"stopped after {collector.limit_s:g} s"
            break
        argv = command(collector, params["job"], params["since"], pid)
        one, text, detail = run_limited(argv, left, params["max_bytes"])
        state = one if one != "ok" else state
        texts.append((f"== process {pid}\n" if pid is not None else "") + text)
        if one == "absent":
            break
    return {"state": state, "seconds": round(time.monotonic() - began, 3), "detail": detail}, "\n".join(texts).strip()


def read_counters(sysfs: Path) -> dict[str, int]:
    """Return port counters of RDMA devices and byte counters of physical network devices."""
    found = {}
    for kind in ("counters", "hw_counters"):
        for path in sysfs.glob(f"class/infiniband/*/ports/*/{kind}/*"):
            found[f"{path.parts[-5]}:{path.parts[-3]}/{path.name}"] = _number(path)
    for path in sysfs.glob("class/net/*/statistics/[rt]x_bytes"):
        if (path.parents[1] / "device").exists():
            found[f"{path.parents[1].name}/{path.name}"] = _number(path)
    return {name: value for name, value in found.items() if value is not None}


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def collect_counters(params: dict) -> tuple[dict, str]:
    """Read the counters twice and say what moved."""
    sysfs, seconds = Path(params["sysfs"]), params["counter_seconds"]
    before = read_counters(sysfs)
    if not before:
        return {"state": "absent", "seconds": 0.0, "detail": "no port or device counters"}, ""
    began = time.monotonic()
    time.sleep(seconds)
    span = time.monotonic() - began
    moved = traffic(before, read_counters(sysfs), span)
    text = json.dumps(
        {
            "rdma_bytes_per_second": moved.rdma_bytes_per_second,
            "netdev_bytes_per_second": moved.netdev_bytes_per_second,
            "on_sockets": moved.on_sockets,
            "errors": moved.errors,
        }
    )
    return {"state": "ok", "seconds": round(span, 3), "detail": f"{len(before)} counters"}, text


def probe(peer: str) -> str:
    """Say whether another host of the job answers at all: an open or a refused port, or else an echo."""
    began = time.monotonic()
    for port in PROBE_PORTS:
        try:
            socket.create_connection((peer, port), timeout=PROBE_S).close()
            return peer_line(peer, True, f"port {port}, {time.monotonic() - began:.1f} s")
        except ConnectionRefusedError:
            return peer_line(peer, True, f"port {port} refused, {time.monotonic() - began:.1f} s")
        except OSError:
            continue
    state, _, _ = run_limited(["ping", "-n", "-c", "2", "-i", "0.5", "-W", "2", peer], 5.0, 4096)
    how = "ports" if state == "absent" else "ports and echo"
    return peer_line(peer, state == "ok", f"{how}, {time.monotonic() - began:.1f} s")


def collect_peers(peers: list[str]) -> tuple[dict, str]:
    """Ask all other hosts side by side."""
    if not peers:
        return {"state": "absent", "seconds": 0.0, "detail": "no other hosts given"}, ""
    began = time.monotonic()
    with ThreadPoolExecutor(max_workers=MAX_PROBES) as pool:
        lines = list(pool.map(probe, peers[:MAX_PEERS]))
    missed = sum("does not answer" in line for line in lines)
    detail = f"{missed} of {len(lines)} do not answer"
    return {"state": "ok", "seconds": round(time.monotonic() - began, 3), "detail": detail}, "\n".join(lines)


@contextmanager
def acting_as(owner: str | None) -> Iterator[None]:
    """Write as the job's user where root runs this; the identity comes back afterwards."""
    if owner is None or os.geteuid() != 0:
        yield
        return
    account = pwd.getpwnam(owner)
    group = os.getegid()
    os.setegid(account.pw_gid)
    os.seteuid(account.pw_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(group)


def write(dest: Path, texts: dict[str, str], states: dict[str, dict], dumps: list[str]) -> list[str]:
    """Write what was collected; an earlier collection is not overwritten."""
    base, number = dest, 1
    while (base / "collectors.json").exists():
        number += 1
        base = dest / str(number)
    base.mkdir(parents=True, exist_ok=True)
    files = []
    for name, text in texts.items():
        (base / f"{name}.txt").write_text(text + "\n", encoding="utf-8")
        files.append(str(base / f"{name}.txt"))
    for dump in dumps:
        files.append(shutil.copy(dump, base / f"fr_trace_{Path(dump).name}"))
    (base / "collectors.json").write_text(json.dumps(states, indent=2) + "\n", encoding="utf-8")
    return [*map(str, files), str(base / "collectors.json")]


def processes_of(job: str) -> list[int]:
    """Return the processes of the job's ranks on this node, by their environment; none where no job is given."""
    environments: dict[int, dict[str, str]] = {}
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc") if job else ():
        try:
            raw = Path(f"/proc/{entry}/environ").read_bytes() if entry.isdigit() else b""
            status = Path(f"/proc/{entry}/stat").read_text() if raw else ""
        except OSError:  # gone, or not ours to read
            continue
        if status:
            pairs = (item.partition(b"=") for item in raw.split(b"\0"))
            environments[int(entry)] = {key.decode("utf-8", "replace"): value.decode("utf-8", "replace")
                                        for key, _, value in pairs}  # fmt: skip
            parents[int(entry)] = int(status[status.rindex(")") + 2 :].split()[1])
    return rank_processes(environments, parents, job)


def collect_all(params: dict, pids: list[int]) -> tuple[dict[str, dict], dict[str, str]]:
    """Run the chosen collectors; return the state and the output of each."""
    states: dict[str, dict] = {}
    texts: dict[str, str] = {}
    work = {one.name: partial(collect, one, params, pids) for one in COLLECTORS}
    work["peers"] = partial(collect_peers, params["peers"])
    if params["counter_seconds"] > 0:
        work["counters"] = partial(collect_counters, params)
    for name, run in work.items():
        if not params["only"] or name in params["only"]:
            states[name], text = run()
            if text:
                texts[name] = text
    return states, texts


def main() -> None:
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    params = module.params
    known = [*(collector.name for collector in COLLECTORS), "peers", "counters"]
    unknown = sorted(set(params["only"]) - set(known))
    if unknown:
        module.fail_json(msg=f"only: no collector is named {', '.join(unknown)}; known are {', '.join(known)}")
    os.environ["PATH"] = os.pathsep.join([*params["search_path"], os.environ.get("PATH", "/usr/sbin:/usr/bin")])
    listing = run_limited(["ps", "-eo", "pid,ppid,stat,wchan:32,etimes,rss,args"], 5.0, 1 << 22)[1]
    pids = params["processes"] or processes_of(params["job"]) or job_processes(listing)
    states, texts = collect_all(params, pids)
    dumps = sorted(glob.glob(params["dumps"])) if params["dumps"] else []
    states["dumps"] = {"state": "ok" if dumps else "absent", "seconds": 0.0, "detail": f"{len(dumps)} dumps"}
    files: list[str] = []
    if params["dest"] and not module.check_mode:
        try:
            with acting_as(params["owner"]):
                files = write(Path(params["dest"]), texts, states, dumps)
        except (OSError, KeyError) as error:
            module.fail_json(msg=f"what was collected cannot be written: {error}", collectors=states)
    stopped = {str(pid): state for pid, state in stopped_processes(listing).items() if pid in set(pids)}
    # Once written they need not travel, nor stand in the output of a play: command lines can hold secrets.
    texts = {} if files else texts
    module.exit_json(changed=bool(files), collectors=states, texts=texts, dumps=dumps, stopped=stopped, files=files)


if __name__ == "__main__":
    main()
