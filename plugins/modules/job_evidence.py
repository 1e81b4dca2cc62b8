#!/usr/bin/python
"""Collect evidence on one node of a failed or hung job, each collector within its own time limit."""

from __future__ import annotations

import glob
import json
import os
import shutil
import subprocess
import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.rackweave.watch.collect import (
    COLLECTORS,
    Collector,
    command,
    job_processes,
    needs_pid,
    stopped_processes,
    traffic,
)

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
    description: "Process ids of the job's ranks; found by their command where left out."
    type: list
    elements: int
    default: []
  only: {description: "Names of the collectors to run; all where left out.", type: list, elements: str, default: []}
  dumps: {description: "Glob of flight-recorder dumps on this node.", type: str, default: ""}
  counter_seconds:
    description: "Seconds between two readings of port counters; 0 leaves them out."
    type: float
    default: 2.0
  sysfs: {description: "Where sysfs is mounted.", type: path, default: /sys}
  max_bytes: {description: "Most bytes kept of one collector, from its end.", type: int, default: 262144}
  dest:
    description: "Directory for the output (C(evidence/HOST) of the attempt); nothing is written where left out."
    type: path
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
  become: true
"""
RETURN = r"""
collectors:
  description: State (ok, failed, timeout, absent), seconds and a word on each collector.
  returned: always
  type: dict
texts: {description: Output of each collector that has some., returned: always, type: dict}
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


def main() -> None:
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    params = module.params
    unknown = sorted(set(params["only"]) - {collector.name for collector in COLLECTORS} - {"counters"})
    if unknown:
        known = ", ".join([collector.name for collector in COLLECTORS] + ["counters"])
        module.fail_json(msg=f"only: no collector is named {', '.join(unknown)}; known are {known}")
    chosen = [collector for collector in COLLECTORS if not params["only"] or collector.name in params["only"]]
    states: dict[str, dict] = {}
    texts: dict[str, str] = {}
    listing = run_limited(["ps", "-eo", "pid,ppid,stat,wchan:32,etimes,rss,args"], 5.0, 1 << 22)[1]
    pids = params["processes"] or job_processes(listing)
    for collector in chosen:
        states[collector.name], text = collect(collector, params, pids)
        if text:
            texts[collector.name] = text
    if params["counter_seconds"] > 0 and (not params["only"] or "counters" in params["only"]):
        states["counters"], text = collect_counters(params)
        if text:
            texts["counters"] = text
    dumps = sorted(glob.glob(params["dumps"])) if params["dumps"] else []
    states["dumps"] = {"state": "ok" if dumps else "absent", "seconds": 0.0, "detail": f"{len(dumps)} dumps"}
    files: list[str] = []
    if params["dest"] and not module.check_mode:
        files = write(Path(params["dest"]), texts, states, dumps)
    stopped = {str(pid): state for pid, state in stopped_processes(listing).items() if pid in set(pids)}
    module.exit_json(changed=bool(files), collectors=states, texts=texts, dumps=dumps, stopped=stopped, files=files)


if __name__ == "__main__":
    main()
