"""Run by the first rank of a host, inside the job's runtime and just before its program: did the plan arrive?

`rackweave nccl --inside` compares this process's environment with the host's file, opens every RDMA device and reads
the limits that hold here. The answer goes to `logs/HOST/inside.json` and, in one sentence, to this rank's own log;
rank 0 of the world also leaves an event. Standard library only; what blocks a launch ends the job here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from launch import RETRY_ELSEWHERE, STOP, attempt_dir, layers_file, now, own_host, write_json

TIMEOUT_S = 30.0  # a check of a fraction of a second; a file system that hangs must not hang the start as well
SHOWN = 3  # messages in the one sentence; the file has all of them


def inspect() -> dict:
    """Return the report of `rackweave nccl --inside`, or one that says why there is none."""
    conf = attempt_dir() / "nccl" / f"{own_host()}.conf"
    words = [sys.executable, "-m", "rackweave", "nccl", "--inside", str(conf), "--before", str(layers_file())]
    waivers = attempt_dir() / "waivers.json"
    if waivers.exists():
        words += ["--waivers", str(waivers)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        report = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return unknown(f"it took more than {TIMEOUT_S:.0f} s")
    except ValueError:
        last = done.stderr.strip().split("\n")[-1]
        return unknown(last or f"the command ended with status {done.returncode}")
    return {**report, "possible": True}


def unknown(why: str) -> dict:
    return {"schema": "rackweave.inside/1", "host": own_host(), "possible": False, "reason": why, "findings": []}


def sentence(report: dict) -> str:
    """Say in one line what reached this rank."""
    place = f"inside rank {os.environ['RANK']} on {own_host()}"
    if not report["possible"]:
        return f"{place}: what arrived cannot be compared with the plan: {report['reason']}"
    messages = [it["message"] for it in report["findings"]]
    if not messages:
        planned = sum(it["planned"] is not None for it in report["values"])
        return f"{place}: all {planned} values of the host's file arrived, and no other communication variable is set"
    more = f" (and {len(messages) - SHOWN} more in inside.json)" if len(messages) > SHOWN else ""
    return f"{place}: {'; '.join(messages[:SHOWN])}{more}"


def leave_event(report: dict) -> None:
    """Append the one event before the trainer, which this process becomes, opens the file."""
    event = {"schema": "rackweave.event/1", "time": now(), "kind": "environment", "rank": 0, "host": own_host()}
    event |= {"sentence": report["sentence"], "findings": [it["message"] for it in report["findings"]]}
    with (attempt_dir() / "events.jsonl").open("a") as file:
        file.write(json.dumps(event) + "\n")


def refuse(report: dict) -> int:
    """Write the result of this rank where a finding forbids to start; a lost device speaks of this node alone.

    The status is `STOP` for launch.sh alone: any other, a fault of this check itself, does not keep a job from running.
    """
    blocking = [it for it in report["findings"] if it["severity"] == "block"]
    elsewhere = all(it["kind"] == "job-devices" for it in blocking)
    rank = int(os.environ["RANK"])
    result = {
        "schema": "rackweave.result/1",
        "rank": rank,
        "host": own_host(),
        "exit": "retry_elsewhere" if elsewhere else "stop",
        "code": RETRY_ELSEWHERE if elsewhere else STOP,
        "reason": "; ".join(it["message"] for it in blocking),
        "phase": None,
        "step": None,
    }
    write_json(attempt_dir() / "result" / f"{rank}.json", result)
    return STOP


def main() -> int:
    report = inspect()
    report["sentence"] = sentence(report)
    write_json(attempt_dir() / "logs" / own_host() / "inside.json", report)
    sys.stdout.write(f"{now()} rackweave: {report['sentence']}\n")
    if os.environ["RANK"] == "0":
        leave_event(report)
    return refuse(report) if report.get("blocked") else 0


if __name__ == "__main__":
    sys.exit(main())
