#!/usr/bin/python3
"""Write what Slurm says of nodes and jobs as a text file for the node exporter; runs on the controller by a timer.

Standard library only. The file is replaced as a whole; if Slurm does not answer, only the time of the last answer grows
old, and an alert tells of that.
"""

import collections
import os
import subprocess
import sys
import time

# sinfo(1) and squeue(1) print these; an unknown word is counted under its own name.
NODE_STATES = ("idle", "allocated", "mixed", "completing", "drained", "draining", "down", "fail", "maint", "unknown")
JOB_STATES = ("PENDING", "RUNNING", "COMPLETING", "SUSPENDED")
OURS = "rackweave: "  # how the reason of a drain of ours begins
SINFO = ["sinfo", "--Node", "--noheader", "--format=%N|%T|%E"]
SQUEUE = ["squeue", "--noheader", "--format=%j|%T"]


def render(sinfo: str, squeue: str, now: float) -> str:
    """Return the text file for the answers of `SINFO` and `SQUEUE`; ``now`` is seconds of the epoch."""
    nodes = {}
    for line in sinfo.splitlines():
        name, _, rest = line.strip().partition("|")
        state, _, reason = rest.partition("|")
        if name and state:
            nodes[name] = (state.rstrip("*~#!%$@^-+").lower(), state.endswith("*"), reason)
    counts = collections.Counter(state for state, _, _ in nodes.values())
    jobs = collections.Counter(line.rpartition("|")[2].strip() for line in squeue.splitlines() if "|" in line)
    lines = []
    add(lines, "nodes", "Nodes by state", [({"state": s}, counts[s]) for s in ordered(NODE_STATES, counts)])
    add(lines, "node_usable", "Whether a job can start on the node", [
        ({"node": name}, int(not silent and state in ("idle", "allocated", "mixed", "completing")))
        for name, (state, silent, _) in sorted(nodes.items())
    ])  # fmt: skip
    add(lines, "node_drained_by_us", "Whether a drain of the node is ours", [
        ({"node": name}, int(reason.startswith(OURS) and state.startswith(("drain", "down"))))
        for name, (state, _, reason) in sorted(nodes.items())
    ])  # fmt: skip
    add(lines, "jobs", "Jobs by state", [({"state": s}, jobs[s]) for s in ordered(JOB_STATES, jobs)])
    add(lines, "answer_time_seconds", "When Slurm last answered, seconds of the epoch", [({}, round(now, 3))])
    return "\n".join(lines) + "\n"


def ordered(known, counts):
    return [*known, *sorted(set(counts) - set(known))]


def add(lines, name, help_text, rows):
    """Append one metric in Prometheus' text format."""
    full = f"rackweave_slurm_{name}"
    lines += [f"# HELP {full} {help_text}.", f"# TYPE {full} gauge"]
    for labels, value in rows:
        words = ",".join(f'{key}="{escape(text)}"' for key, text in labels.items())
        lines.append(f"{full}{{{words}}} {value}" if words else f"{full} {value}")


def escape(text):
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def ask(words):
    done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=True)
    return done.stdout


def main():
    path = sys.argv[1]
    try:
        text = render(ask(SINFO), ask(SQUEUE), time.time())
    except (OSError, subprocess.SubprocessError) as error:
        sys.stderr.write(f"Slurm does not answer: {error}\n")
        return 1
    part = f"{path}.{os.getpid()}"
    with open(part, "w", encoding="utf-8") as stream:
        stream.write(text)
    os.chmod(part, 0o644)
    os.replace(part, path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
