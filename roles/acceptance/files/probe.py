#!/usr/bin/env python3
"""One stage of acceptance on one node, inside a job step; writes its figures into the job's directory.

    probe.py DIRECTORY self|write|read|rails|dcgm

Standard library only and standing alone: it runs on the node as the user who owns the job. It measures, judges nothing;
a stage that cannot be done leaves a sentence instead of a figure.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import mmap
import os
import resource
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

NODE_SCHEMA = "rackweave.acceptance_node/1"
RAILS_SCHEMA = "rackweave.acceptance_rails/1"
CHUNK_BYTES = 4 * 2**20
WORK_WINDOW_S = 0.2  # longer than the period of a CPU quota (100 ms), or a window would not feel it
TOOL_TIMEOUT_S = 60
CLIENT_ATTEMPTS = 20


class StageError(Exception):
    """A stage that cannot be done here, in one sentence."""


def limits():
    """Return the limits that a rank of a job would have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    shm = os.statvfs("/dev/shm")
    return {
        "memlock_soft_bytes": -1 if soft == resource.RLIM_INFINITY else soft,
        "memlock_hard_bytes": -1 if hard == resource.RLIM_INFINITY else hard,
        "shm_bytes": shm.f_frsize * shm.f_blocks,
    }


def virtual():
    """Return what the processor and systemd say of virtualisation."""
    flags = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    tool = shutil.which("systemd-detect-virt")
    kind = subprocess.run([tool], capture_output=True, text=True, check=False).stdout.strip() if tool else None
    return {"hypervisor_flag": " hypervisor" in flags, "virtualization": kind or None}


def stolen():
    """Return (all, stolen) jiffies since boot."""
    fields = [int(text) for text in Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:9]]
    return sum(fields), fields[7] if len(fields) > 7 else 0


def cpu(seconds):
    """Return the work of one thread in its best window, and the steal meanwhile.

    The best window, because other work on the node may take a processor for a moment; a quota or a slow clock takes
    part of every window.
    """
    block, best, before = bytes(64 * 1024), 0.0, stolen()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        start, count = time.monotonic(), 0
        while time.monotonic() < start + WORK_WINDOW_S:
            hashlib.sha256(block).digest()
            count += 1
        best = max(best, count * len(block) / (time.monotonic() - start))
    after = stolen()
    jiffies = after[0] - before[0]
    return {"cpu_work_bytes_per_second": best, "steal": (after[1] - before[1]) / jiffies if jiffies else None}


def spread(times):
    times = sorted(times)
    p99 = times[min(len(times) - 1, int(0.99 * len(times)))]
    return {"p50_s": times[len(times) // 2], "p99_s": p99, "max_s": times[-1], "count": len(times)}


def round_trip(address, count=100):
    """Return the spread of round trips of one small message to the submit host, which sends it back."""
    if not address:
        raise StageError("the submit host answers no echo")
    message, times = bytes(64), []
    try:
        with socket.create_connection(tuple(address), timeout=5) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for _ in range(count):
                start, got = time.perf_counter(), 0
                connection.sendall(message)
                while got < len(message):
                    part = connection.recv(len(message) - got)
                    if not part:
                        raise StageError("the submit host closed the echo")
                    got += len(part)
                times.append(time.perf_counter() - start)
    except OSError as error:
        raise StageError(f"no round trip to the submit host {address[0]}:{address[1]} ({error})") from error
    return spread(times)


def read_links(bdfs, root=Path("/sys/bus/pci/devices")):
    """Return lanes and GT/s of PCIe links, now and at most; devices that do not tell are left out."""
    found = {}
    for bdf in bdfs:
        try:
            texts = {
                name: (root / bdf / name).read_text(encoding="ascii").split()[0]
                for name in ("current_link_width", "max_link_width", "current_link_speed", "max_link_speed")
            }
            found[bdf] = {
                "width": int(texts["current_link_width"]),
                "max_width": int(texts["max_link_width"]),
                "speed_gts": float(texts["current_link_speed"]),
                "max_speed_gts": float(texts["max_link_speed"]),
            }
        except (OSError, ValueError, IndexError):
            continue
    return found


def tool(name, arguments, seconds=TOOL_TIMEOUT_S):
    """Return exit status and output of a tool of the node."""
    path = shutil.which(name)
    if path is None:
        raise StageError(f"{name} is not on the node")
    try:
        done = subprocess.run(
            [path, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StageError(f"{name}: {error}") from error
    return {"code": done.returncode, "text": done.stdout[-200_000:]}


def storage_file(schedule, host):
    return Path(schedule["storage"]["path"]) / f".rackweave-acceptance-{os.environ['SLURM_JOB_ID']}-{host}"


def open_direct(path, flags):
    """Open past the page cache where the file system can; say whether it can."""
    try:
        return os.open(path, flags | os.O_DIRECT, 0o600), True
    except OSError:
        return os.open(path, flags, 0o600), False


def write_file(path, size):
    """Write a file and wait until it is on the storage."""
    buffer = mmap.mmap(-1, CHUNK_BYTES)  # O_DIRECT needs aligned memory
    buffer.write(os.urandom(CHUNK_BYTES))
    descriptor, direct = open_direct(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        start, written = time.time(), 0
        while written < size:
            written += os.write(descriptor, buffer)
        os.fsync(descriptor)
        return {"bytes": written, "start": start, "end": time.time(), "direct": direct}
    finally:
        os.close(descriptor)


def read_file(path):
    """Read the file of another node, so that this node's cache cannot hold it."""
    buffer = mmap.mmap(-1, CHUNK_BYTES)
    descriptor, direct = open_direct(path, os.O_RDONLY)
    try:
        if not direct:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        start, got = time.time(), 0
        while True:
            count = os.readv(descriptor, [buffer])
            if not count:
                return {"bytes": got, "start": start, "end": time.time(), "direct": direct}
            got += count
    finally:
        os.close(descriptor)


def die_with_parent():
    """Let the kernel end a server whose probe was killed: it must not hold its port for the next job."""
    ctypes.CDLL(None).prctl(1, 15)  # PR_SET_PDEATHSIG, SIGTERM


def reaches_gpu_memory(schedule):
    """Return whether ib_write_bw of this node can write from GPU memory: it names only options that it was built with.

    Distributions build it without CUDA; with ``--use_cuda`` it would then end before it measured anything.
    """
    text = tool("ib_write_bw", ["--help"])["text"]
    if "--report_gbits" not in text:  # not the help that we know: the run itself will tell
        return True
    return "--use_cuda=" in text and ("--use_cuda_dmabuf" in text or not schedule["dmabuf"])


def write_command(schedule, rail, port, gpu_memory=True):
    """Return the words of ib_write_bw for one rail of this host, from GPU memory where it can."""
    words = ["-d", rail["device"], "-i", str(rail["port"]), "-F", "--report_gbits", "-D", "5", "-p", str(port)]
    words += ["-q", "4", "-s", "65536"]
    if rail["gid_index"] is not None:
        words += ["-x", str(rail["gid_index"])]
    if rail["traffic_class"] is not None:
        words += ["--tclass", str(rail["traffic_class"])]
    if rail["gpu"] is not None and gpu_memory:
        words += [f"--use_cuda={rail['gpu']}"] + (["--use_cuda_dmabuf"] if schedule["dmabuf"] else [])
    return words


def rails(schedule, host):
    """Run every rail of this host's pairs; the second of a pair serves, the first measures."""
    if shutil.which("ib_write_bw") is None:
        raise StageError("ib_write_bw is not on the node")
    gpu_memory = reaches_gpu_memory(schedule)
    runs, port = [], 18600 + int(os.environ["SLURM_JOB_ID"]) % 400 * 8
    for pairs in schedule["rounds"]:
        pair = next((pair for pair in pairs if host in pair), None)
        for number, rail in enumerate(schedule["rails"].get(host, ())) if pair else ():
            words = write_command(schedule, rail, port + number % 8, gpu_memory)
            if host == pair[1]:
                serve(words)
            else:
                result = connect([*words, pair[1]])
                memory = {} if gpu_memory or rail["gpu"] is None else {"memory": "host"}
                runs.append({"peer": pair[1], "rail": number, "device": rail["device"], **memory, **result})
    return runs


def serve(words):
    try:
        subprocess.run(
            ["ib_write_bw", *words],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=TOOL_TIMEOUT_S, check=False,
            preexec_fn=die_with_parent,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return  # the client says what went wrong


def connect(words):
    """Try until the server of this rail listens."""
    for _ in range(CLIENT_ATTEMPTS):
        result = tool("ib_write_bw", words)
        if result["code"] == 0 or "connect" not in result["text"].lower():
            break
        time.sleep(0.5)
    return result


def attempt(found, errors, stage, action):
    """Add what an action returns; note its sentence where it cannot be done."""
    try:
        found.update(action())
    except StageError as error:
        errors[stage] = str(error)
    except (OSError, ValueError) as error:
        errors[stage] = f"{stage}: {error}"


def stage_self(schedule, host):
    found, errors = {}, {}
    attempt(found, errors, "limits", limits)
    attempt(found, errors, "virtual", virtual)
    attempt(found, errors, "round_trip", lambda: {"round_trip": round_trip(schedule["echo"])})
    attempt(found, errors, "cpu", lambda: cpu(schedule["cpu_s"]))
    attempt(found, errors, "links", lambda: {"links": read_links(schedule["bdfs"].get(host, ()))})
    attempt(found, errors, "nvlink", lambda: {"nvlink": tool("nvidia-smi", ["nvlink", "--status"])})
    # A bare name is looked up inside the image.
    if os.path.isabs(schedule["python"]) and not os.access(schedule["python"], os.X_OK):
        errors["collective"] = f"there is no Python at {schedule['python']}, which the collectives run with"
    return found, errors


def stage_storage(schedule, host, direction):
    found, errors = {}, {}
    hosts = schedule["hosts"]
    other = hosts[(hosts.index(host) + 1) % len(hosts)]
    try:
        if direction == "write":
            found["write"] = write_file(storage_file(schedule, host), schedule["storage"]["bytes"])
        else:
            found["read"] = read_file(storage_file(schedule, other))
    except OSError as error:
        errors["storage"] = f"{direction} in {schedule['storage']['path']}: {error.strerror or error}"
    return found, errors


def stage_dcgm(schedule):
    found, errors = {}, {}
    seconds = schedule["dcgm"]["timeout_s"]
    attempt(
        found,
        errors,
        "dcgm",
        lambda: {"dcgm": tool("dcgmi", ["diag", "-r", str(schedule["dcgm"]["level"]), "-j"], seconds)},
    )
    return found, errors


def write_result(directory, name, content):
    part = directory / "results" / f".{name}"
    part.write_text(json.dumps(content), encoding="utf-8")
    part.rename(directory / "results" / f"{name}.json")


def main(arguments):
    directory, stage = Path(arguments[0]), arguments[1]
    host = os.environ["SLURMD_NODENAME"]
    schedule = json.loads((directory / "schedule.json").read_text(encoding="utf-8"))
    if stage == "rails":
        try:
            write_result(
                directory, f"rails.{host}", {"schema": RAILS_SCHEMA, "host": host, "runs": rails(schedule, host)}
            )
            return
        except StageError as error:
            found, errors = {}, {"rails": str(error)}
    elif stage == "self":
        found, errors = stage_self(schedule, host)
    elif stage == "dcgm":
        found, errors = stage_dcgm(schedule)
    else:
        found, errors = stage_storage(schedule, host, stage)
    write_result(directory, f"node.{stage}.{host}", {"schema": NODE_SCHEMA, "host": host, **found, "errors": errors})


if __name__ == "__main__":
    main(sys.argv[1:])
