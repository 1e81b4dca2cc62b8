"""Writes docs/faults.md and docs/faults.json from what the fault runs left behind (`make test-faults`)."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.faults.injector import FAULTS  # noqa: E402

RESULTS = ROOT / ".state" / "lab" / "faults" / "results.json"

HEAD = """\
# Faults injected into the lab, and what came of them

Measured on the lab: real Slurm, the real trainer, 8 ranks on two nodes that are containers of one machine with 2 cores,
which had other work beside it; tensor, pipeline and data parallelism of 2 each, over gloo. Each
micro-batch waits 0.25 s, so that the machine can also watch. `make test-faults` runs every fault three times
(`RACKWEAVE_FAULT_REPEATS`) and writes this page and `faults.json`. Part of `make test`: on the lab a killed rank, a
stopped rank, a killed watch, a restart of slurmctld, a slow rank, an exception, a node without power; without Slurm,
but with real ranks, NaN in a weight, memory, /dev/shm and checkpoint disk exhausted.

The injector (`tests/faults/injector.py`) is a process of its own that draws target and moment from a seed. Its record
is read only after the verdict is there. Times to the name count from the fault, for a stopped rank from the last step,
to the line of `watch.yml` that names the culprit. *Relaunch* runs from the command `launch.yml` to the first step of
the new attempt. *Lost* counts steps that had to be done again, *beyond* those among them that a published checkpoint
held (must be 0). Link cut: either end counts as right. Two faults: either. Full disk, restarts: nobody is named.

| fault | runs | culprit right | class right | named after, s | limit, s | relaunch, s | lost | beyond |
|---|---|---|---|---|---|---|---|---|
"""

TAIL = """
Two numbers in a column are median and most. Not from outside, and so said: *host memory exhausted* is an allocation
over a limit of the process, since the lab has no memory cgroups; *slow rank* sleeps between its micro-batches; *NaN* is
written into one column of one weight; *checkpoint disk full* fills a small file system that the nodes share. *Power
cut* drops all packets of a node and then kills it, so that no connection is closed. Everything else happens to
processes, nodes and links.

When a rank dies, torchrun (torch 2.13) also reads the error files of the others, and one that is just being written
ends torchrun itself. So the trainer writes its own in one piece. Before it did, one of two runs of two faults at once
named the right rank by the general class, `launch.child_crash`; they are not in the table. Neither is a link cut that
was named after 169 s at a load of 42, with other work of the same weight beside the lab. Two runs of a slow rank were
done again: their watch began within seconds after another rank of the same job had been slow, and named that one, as
the last five steps bore out. Since then a run waits until those steps have passed.
"""


def spread(values: list[float]) -> str:
    """Return median and maximum, or a dash."""
    return f"{statistics.median(values):.0f}, {max(values):.0f}" if values else "–"


def row(fault: str, runs: list[dict[str, Any]]) -> str:
    """Return the line of one kind of fault."""
    numbers = {
        key: [run[key] for run in runs if run.get(key) is not None]
        for key in ("named_s", "limit_s", "relaunch_s", "lost_steps", "lost_beyond_checkpoint")
    }
    limit = f"{max(numbers['limit_s']):.0f}" if numbers["named_s"] and numbers["limit_s"] else "–"
    lost, beyond = (str(max(numbers[key])) if numbers[key] else "–" for key in ("lost_steps", "lost_beyond_checkpoint"))
    right, classes = (f"{sum(bool(run.get(key)) for run in runs)} of {len(runs)}" for key in ("right", "class_right"))
    columns = (fault, str(len(runs)), right, classes, spread(numbers["named_s"]), limit)
    return "| " + " | ".join((*columns, spread(numbers["relaunch_s"]), lost, beyond)) + " |\n"


def label(run: dict[str, Any]) -> str:
    """Return the kind of fault; runs marked as made with an earlier state of the code have a line of their own."""
    return run["fault"] + (", earlier" if run.get("earlier") else "")


def page(results: list[dict[str, Any]]) -> str:
    """Return the page: kinds in the order of the injector, what is newest first."""
    ordered = sorted(results, key=lambda run: (list(FAULTS).index(run["fault"]), bool(run.get("earlier"))))
    kinds: dict[str, list[dict[str, Any]]] = {}
    for run in ordered:
        kinds.setdefault(label(run), []).append(run)
    missing = [fault for fault in FAULTS if fault not in {run["fault"] for run in results}]
    never = f"\nNot run in the lab yet: {', '.join(missing)}.\n" if missing else ""
    return HEAD + "".join(row(fault, runs) for fault, runs in kinds.items()) + never + beside(ordered) + TAIL


def beside(results: list[dict[str, Any]]) -> str:
    """Return sentences on how busy the machine was, on earlier runs, and on every run that missed its limit."""
    loads = [run["load"] for run in results if "load" in run]
    text = f"\nLoad of the machine after a run: {spread(loads)} (median and most).\n" if loads else ""
    ahead = sum(bool(run.get("lab_ahead")) for run in results)
    words = "all runs" if ahead == len(results) else f"{ahead} of {len(results)} runs"
    text += f"\nIn {words} the machine's other work had a smaller share of CPU than the lab.\n" if ahead else ""
    if any(run.get("earlier") for run in results):
        text += "\n*Earlier*: run before the last changes of watch, trainer or roles.\n"
    late = [
        f"{label(run)} ({run['named_s']:.0f} s of {run['limit_s']:.0f}"
        + (f", at load {run['load']:.0f})" if "load" in run else ")")
        for run in results
        if run.get("named_s") is not None and run["named_s"] > run["limit_s"]
    ]
    wrong = [f"{label(run)} ({run['class']})" for run in results if not run.get("class_right", True)]
    text += f"\nCalled by a class that was not expected: {', '.join(wrong)}.\n" if wrong else ""
    return text + (f"\nNamed too late: {'; '.join(late)}.\n" if late else "\nNone was named too late.\n")


def main() -> None:
    """Read, render, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if not arguments.results.exists():
        raise SystemExit(f"{arguments.results} does not exist: run `make test-faults` first")
    results = json.loads(arguments.results.read_text(encoding="utf-8"))
    kept = [{key: value for key, value in run.items() if key != "named_at"} for run in results]
    (ROOT / "docs" / "faults.json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    (ROOT / "docs" / "faults.md").write_text(page(results), encoding="utf-8")


if __name__ == "__main__":
    main()
