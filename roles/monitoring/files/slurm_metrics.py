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
NODE_STATES = (
    "idle", "allocated", "mixed", "completing", "planned", "reserved",
    "drained", "draining", "down", "fail", "maint", "unknown",
)  # fmt: skip
# A job that asks for such a node would wait; rackweave/slurm/nodes.py has the same words, of sinfo(1).
UNUSABLE = ("down", "drain", "fail", "unknown", "maint", "reboot", "power", "future", "perfctrs", "block")
JOB_STATES = ("PENDING", "RUNNING", "COMPLETING", "SUSPENDED")
# How the reasons of all drains of ours begin, and the one that takes itself back (rackweave/slurm/drains.py).
OURS, PASSING = ("rackweave:", "rackweave-rebuild"), "rackweave: restart of slurmd"
HOUR_S = 3600
SINFO = ["sinfo", "--Node", "--noheader", "--format=%N|%T|%H|%E"]
SQUEUE = ["squeue", "--noheader", "--format=%j|%T"]


def render(sinfo: str, squeue: str, now: float) -> str:
    """Return the text file for the answers of `SINFO` and `SQUEUE`; ``now`` is seconds of the epoch."""
    nodes = {}
    for line in sinfo.splitlines():
        name, state, since, reason = [*line.strip().split("|", 3), "", "", ""][:4]
        if name and state:
            ours = reason.startswith(OURS) and not reason.startswith(PASSING)
            nodes[name] = (state.rstrip("*~#!%$@^-+").lower(), state.endswith("*"), ours and is_out(state), since)
    counts = collections.Counter(state for state, _, _, _ in nodes.values())
    drained = [since for _, _, ours, since in nodes.values() if ours]
    jobs = collections.Counter(line.rpartition("|")[2].strip() for line in squeue.splitlines() if "|" in line)
    lines = []
    add(lines, "nodes", "Nodes by state", [({"state": s}, counts[s]) for s in ordered(NODE_STATES, counts)])
    add(lines, "node_usable", "Whether a job can start on the node", [
        ({"node": name}, int(not silent and not any(word in state for word in UNUSABLE)))
        for name, (state, silent, _, _) in sorted(nodes.items())
    ])  # fmt: skip
    add(lines, "node_drained_by_us", "Whether a drain of the node is ours", [
        ({"node": name}, int(ours)) for name, (_, _, ours, _) in sorted(nodes.items())
    ])  # fmt: skip
    recent = sum(age_s(since, now) < HOUR_S for since in drained)
    add(lines, "drains_last_hour", "Nodes that we drained within an hour and that still are", [({}, recent)])
    add(lines, "jobs", "Jobs by state", [({"state": s}, jobs[s]) for s in ordered(JOB_STATES, jobs)])
    add(lines, "answer_time_seconds", "When Slurm last answered, seconds of the epoch", [({}, round(now, 3))])
    return "\n".join(lines) + "\n"


def is_out(state):
    return state.lower().startswith(("drain", "down"))


def age_s(since, now):
    """Seconds since a time of sinfo, which is local; 0 where it is none."""
    try:
        return now - time.mktime(time.strptime(since, "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return 0


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
