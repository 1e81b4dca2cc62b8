#!/usr/bin/python3 -IS
"""What slurmd runs on a node: prolog, epilog and health check. The name under which it is called says which.

``slurm-prolog`` and ``slurm-epilog`` run every executable of a directory and call no Slurm command; ``slurm-health``
looks at the node and, with consent, drains it; ``slurm-health wait`` waits until the GPUs are there. Whatever hangs is
left behind: nothing here waits longer than its limit, not even for a process that cannot be killed. A check that hangs
or ends in another way than "pass" or "fail" says nothing about the node, so it never drains one.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import syslog
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

SETTINGS = Path(os.environ.get("RACKWEAVE_NODE_SETTINGS", "/etc/rackweave/slurm-node.json"))
HOOKS = Path(os.environ.get("RACKWEAVE_HOOKS", "/etc/rackweave"))
STATUS = Path(os.environ.get("RACKWEAVE_HEALTH_STATUS", "/run/rackweave/health.json"))
SYSFS = Path(os.environ.get("RACKWEAVE_SYSFS", "/sys"))
PROC = Path(os.environ.get("RACKWEAVE_PROC", "/proc"))
PROGRAMS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PREFIX = "rackweave: health:"
# How the reasons of all drains of ours begin, and the one that takes itself back (rackweave/slurm/drains.py).
OURS, PASSING = ("rackweave:", "rackweave-rebuild"), "rackweave: restart of slurmd"
WITHHELD = "not drained: the cap of drains per hour is reached, or unknown; look for a common cause"
PASS, FAIL, ERROR = "pass", "fail", "error"
CODES = {0: PASS, 1: FAIL}
# Seconds. Slurm kills a health program after 60: 25 for all checks together and 6 for each of three calls of Slurm.
CHECK_LIMIT_S, CLIENT_LIMIT_S, HOOK_LIMIT_S = 25.0, 6.0, 25.0
POLL_S = 0.02
# At most one node, or two per cent of the cluster, is drained per hour: a fault of all nodes is not one of a node. The
# watcher of jobs counts the same drains.
DRAIN_SHARE, DRAIN_WINDOW_S = 0.02, 3600
SMI_FAILURES = re.compile(
    r"Driver/library version mismatch|No devices were found|GPU is lost|fallen off the bus"
    r"|Unable to determine the device handle",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Outcome:
    """How a command ended: `code` is None if it was left behind; `output` is the beginning of what it printed."""

    code: int | None
    output: str


def run_bounded(commands: Mapping[str, Sequence[str]], limit_s: float) -> dict[str, Outcome]:
    """Run commands at the same time, each in a session of its own; after the limit they are killed and left behind."""
    deadline = time.monotonic() + limit_s
    with contextlib.ExitStack() as stack:
        # Files, for a pipe could be held open by a grandchild.
        outputs = {name: stack.enter_context(tempfile.TemporaryFile()) for name in commands}
        started: dict[str, subprocess.Popen[bytes]] = {}
        results: dict[str, Outcome] = {}
        for name, command in commands.items():
            try:
                started[name] = start(command, outputs[name])
            except OSError as error:
                results[name] = Outcome(127, f"{command[0]}: {error.strerror}")
        while any(process.poll() is None for process in started.values()) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        for name, process in started.items():
            code = process.poll()
            if code is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            outputs[name].seek(0)
            results[name] = Outcome(code, outputs[name].read(4096).decode(errors="replace").strip())
    return results


def start(command: Sequence[str], output: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start a command in a session of its own, with everything it prints in a file."""
    return subprocess.Popen(
        list(command), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
    )


def settings() -> dict[str, object]:
    """Return what Ansible wrote about this node; nothing if that is not there or cannot be read."""
    try:
        values = json.loads(SETTINGS.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}


def executables(directory: Path) -> list[Path]:
    """Return the programs of a directory by name; hidden files and what an editor leaves are none."""
    try:
        entries = sorted(directory.iterdir())
    except OSError:
        return []
    plain = [entry for entry in entries if not entry.name.startswith(".") and not entry.name.endswith("~")]
    return [entry for entry in plain if entry.is_file() and os.access(entry, os.X_OK)]


def say(text: str) -> None:
    """Write one line to the journal."""
    syslog.openlog("rackweave-slurm")
    syslog.syslog(text)


def hooks(kind: str) -> int:
    """Run ``<kind>.d`` in the order of names; the result is 1 if one of them ended with anything but 0."""
    deadline, status = time.monotonic() + HOOK_LIMIT_S, 0
    for program in executables(HOOKS / f"{kind}.d"):
        left = deadline - time.monotonic()
        if left <= 0:
            say(f"{kind}: no time is left for {program.name}")
            continue
        outcome = run_bounded({program.name: [str(program)]}, left)[program.name]
        if outcome.code is None:
            say(f"{kind}: {program.name} did not end within {left:.0f} s and was left behind")
        elif outcome.code:
            status = 1
            say(f"{kind}: {program.name} ended with {outcome.code}: {outcome.output[:200]}")
    return status


def _texts(values: Mapping[str, object], key: str) -> list[str]:
    found = values.get(key)
    return [str(item) for item in found] if isinstance(found, list) else []


def gpu_files(values: Mapping[str, object]) -> str:
    """Return why the GPUs are not all there; empty if they are."""
    missing = [name for name in _texts(values, "gpu_files") if not Path(name).exists()]
    gone = [bdf for bdf in _texts(values, "gpu_bdfs") if not (SYSFS / "bus/pci/devices" / bdf).exists()]
    parts = [f"GPU {', '.join(gone)} is gone from the bus"] if gone else []
    parts += [f"{', '.join(missing)} is missing"] if missing else []
    return "; ".join(parts)


def rdma_ports(values: Mapping[str, object]) -> str:
    """Return which RDMA ports are not active."""
    wanted = values.get("rdma_ports")
    down = []
    for bdf, ports in wanted.items() if isinstance(wanted, dict) else ():
        for port in ports:
            found = list((SYSFS / "bus/pci/devices" / bdf / "infiniband").glob(f"*/ports/{port}/state"))
            if not any("ACTIVE" in state.read_text() for state in found):
                down.append(f"{bdf} port {port}")
    return f"RDMA {', '.join(down)} is not active" if down else ""


def modules(values: Mapping[str, object]) -> str:
    """Return which kernel modules are not loaded."""
    missing = [name for name in _texts(values, "modules") if not (SYSFS / "module" / name).exists()]
    return f"kernel module {', '.join(missing)} is not loaded" if missing else ""


def memory(values: Mapping[str, object]) -> str:
    """Return whether memory has gone since the node was described to Slurm."""
    wanted = values.get("memory_mib")
    match = re.search(r"^MemTotal:\s+(\d+) kB", (PROC / "meminfo").read_text(), re.MULTILINE)
    if not isinstance(wanted, int) or match is None or int(match[1]) // 1024 >= wanted:
        return ""
    return f"{int(match[1]) // 1024} MiB of memory, Slurm was told {wanted}"


def driver(values: Mapping[str, object]) -> str:
    """Return what nvidia-smi says is wrong; a failure of the tool itself is an error, not a fault of the node."""
    if not values.get("driver"):
        return ""
    command = ["nvidia-smi", "--query-gpu=pci.bus_id", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=CHECK_LIMIT_S)
    text = done.stdout + done.stderr
    if match := SMI_FAILURES.search(text):
        return f"nvidia-smi: {match[0]}"
    if done.returncode:
        raise OSError(f"nvidia-smi ended with {done.returncode}: {text.strip()[:120]}")
    found, wanted = len(done.stdout.split()), len(_texts(values, "gpu_files"))
    return f"nvidia-smi sees {found} GPUs of {wanted}" if found < wanted else ""


def directories(values: Mapping[str, object]) -> str:
    """Return which directories of the shared storage are not there; one that hangs ends as an error."""
    missing = [name for name in _texts(values, "directories") if not os.path.isdir(name)]
    return f"{', '.join(missing)} is not there" if missing else ""


CHECKS: dict[str, Callable[[Mapping[str, object]], str]] = {
    "gpus": gpu_files,
    "rdma": rdma_ports,
    "modules": modules,
    "memory": memory,
    "driver": driver,
    "directories": directories,
}


def check(name: str) -> int:
    """Run one check in this process: print the reason and return 1 if it fails, 2 if it cannot be made."""
    try:
        reason = CHECKS[name](settings())
    except (OSError, subprocess.TimeoutExpired) as error:
        sys.stdout.write(f"{error}\n")
        return 2
    if reason:
        sys.stdout.write(f"{reason}\n")
    return 1 if reason else 0


def results_of(values: Mapping[str, object]) -> dict[str, tuple[str, str]]:
    """Return the state and the reason of every check, those of the site included."""
    skipped = set(_texts(values, "skip"))
    me = os.path.abspath(__file__)
    commands: dict[str, Sequence[str]] = {
        name: [sys.executable, "-IS", me, "check", name] for name in CHECKS if name not in skipped
    }
    commands.update(
        {item.name: [str(item)] for item in executables(HOOKS / "health.d") if item.name not in {*skipped, *CHECKS}}
    )
    outcomes = run_bounded(commands, CHECK_LIMIT_S)
    return {name: judged(outcome) for name, outcome in outcomes.items()}


def judged(outcome: Outcome) -> tuple[str, str]:
    """Return pass, fail or error, and the first line that was printed."""
    if outcome.code is None:
        return ERROR, f"no answer within {CHECK_LIMIT_S:.0f} s"
    line = outcome.output.splitlines()[0][:160] if outcome.output else ""
    return CODES.get(outcome.code, ERROR), line or ("" if outcome.code == 0 else f"exit code {outcome.code}")


def client(*command: str) -> str | None:
    """Return what a Slurm command printed; None if it failed or did not answer in time."""
    outcome = run_bounded({"client": list(command)}, CLIENT_LIMIT_S)["client"]
    return outcome.output if outcome.code == 0 else None


def act(values: Mapping[str, object], failed: Sequence[str]) -> str:
    """Drain or resume this node where that is allowed and due; return what was done, in words."""
    node = str(values.get("node", ""))
    if not (values.get("drain_ok") if failed else values.get("resume_ok")):
        return "reported only: draining is switched off" if failed else "nothing to do"
    shown = client("scontrol", "--oneliner", "show", "node", node)
    if shown is None:
        return "Slurm does not answer; nothing was done"
    state = match[1] if (match := re.search(r"\sState=(\S+)", shown)) else ""
    reason = match[1] if (match := re.search(r"\sReason=(.*?)(?:\s\[|\s[A-Z][A-Za-z]+=|$)", shown)) else ""
    if not failed:
        if "DRAIN" not in state or not reason.startswith(PREFIX):
            return "nothing to do"
        done = client("scontrol", "update", f"nodename={node}", "state=resume")
        return "resumed" if done is not None else "Slurm did not take the resume"
    if "DRAIN" in state or "DOWN" in state:
        return f"already {state}: {reason}"
    text = client("sinfo", "--noheader", "--Node", "--format=%N|%H|%E")
    if text is None or not room(text, time.time()):
        return WITHHELD
    done = client("scontrol", "update", f"nodename={node}", "state=drain", f"reason={PREFIX} {'; '.join(failed)}"[:400])
    return "drained" if done is not None else "Slurm did not take the drain"


def room(text: str, now: float) -> bool:
    """Return whether one more node may be drained within this hour, from lines ``node|time of reason|reason``."""
    rows = {line.split("|", 1)[0]: line.split("|") for line in text.splitlines() if line.count("|") >= 2}
    recent = 0
    for row in rows.values():
        reason = "|".join(row[2:])
        if not reason.startswith(OURS) or reason.startswith(PASSING):
            continue
        try:
            recent += now - time.mktime(time.strptime(row[1], "%Y-%m-%dT%H:%M:%S")) < DRAIN_WINDOW_S
        except ValueError:
            recent += 1
    return recent < max(1, int(len(rows) * DRAIN_SHARE))


def health() -> int:
    """Look at the node, write what was found, and drain it if that is allowed; 1 if a check failed."""
    values = settings()
    if not values:
        say(f"health: {SETTINGS} says nothing about this node; nothing was checked")
        return 0
    results = results_of(values)
    failed = [f"{name}: {reason}" for name, (state, reason) in sorted(results.items()) if state == FAIL]
    done = act(values, failed)
    record = {
        "schema": "rackweave.health/1",
        "node": values.get("node"),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "checks": {name: {"state": state, "reason": reason} for name, (state, reason) in sorted(results.items())},
        "action": done,
    }
    write(STATUS, json.dumps(record) + "\n")
    if path := values.get("metrics_file"):
        write_metrics(Path(str(path)), metrics(results, done == WITHHELD, time.time()))
    for name, (state, reason) in sorted(results.items()):
        if state != PASS:
            say(f"health: {name}: {state}: {reason}")
    if failed:
        say(f"health: {done}")
    return 1 if failed else 0


def write(path: Path, text: str, mode: int | None = None) -> None:
    """Write a file so that a reader sees the old or the new one; without a mode it gets the usual one."""
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        temporary = path.with_suffix(".new")
        temporary.write_text(text, encoding="utf-8")
        if mode is not None:
            temporary.chmod(mode)
        temporary.replace(path)
    except OSError as error:
        say(f"health: {path}: {error.strerror}")


def metrics(results: Mapping[str, tuple[str, str]], withheld: bool, now: float) -> str:
    """Return the state of this node in Prometheus' text format; ``now`` is seconds of the epoch."""
    lines = ["# TYPE rackweave_node_check_failed gauge"]
    for name, (state, _) in sorted(results.items()):
        label = name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        lines.append(f'rackweave_node_check_failed{{check="{label}"}} {int(state == FAIL)}')
    lines += ["# TYPE rackweave_node_drain_withheld gauge", f"rackweave_node_drain_withheld {int(withheld)}"]
    lines += ["# TYPE rackweave_node_health_time_seconds gauge", f"rackweave_node_health_time_seconds {now:.0f}"]
    return "\n".join(lines) + "\n"


def write_metrics(path: Path, text: str) -> None:
    """Write what the node exporter reads; where its directory is not there (yet), there is no exporter."""
    if path.parent.is_dir():
        write(path, text, 0o644)


def wait(limit_s: float) -> int:
    """Wait until the GPUs are there, so that slurmd does not count them too early; 1 if they are not."""
    deadline = time.monotonic() + limit_s
    while (reason := gpu_files(settings())) and time.monotonic() < deadline:
        time.sleep(0.5)
    if reason:
        say(f"start of slurmd: {reason}")
    return 1 if reason else 0


def main(arguments: Sequence[str]) -> int:
    """Choose by the name of the program and its first argument."""
    os.environ["PATH"] = ":".join(filter(None, (os.environ.get("PATH"), PROGRAMS)))  # slurmd may hand over none
    name, words = Path(arguments[0]).name, list(arguments[1:])
    if words[:1] == ["check"]:
        return check(words[1])
    if words[:1] == ["wait"]:
        return wait(float(words[1]))
    kind = name.rpartition("-")[2]
    return hooks(kind) if kind in ("prolog", "epilog") else health()


if __name__ == "__main__":
    sys.exit(main(sys.argv))
