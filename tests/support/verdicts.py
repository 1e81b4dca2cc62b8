"""What a watch would say of an attempt that ran without Slurm: from its files and the output of its ranks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rackweave.run.outcome import blame, judge_end
from rackweave.run.plan_file import RankPlace
from rackweave.watch.attempt_verdict import attempt_sources, verdict_document
from rackweave.watch.verdict import diagnose


def verdict_of(attempt: Path, outputs: Mapping[int, str]) -> dict[str, Any]:
    """Return the verdict; ``outputs`` is what each rank printed."""
    # Of the plan only who is where: the trainer's tests write no more of it.
    places = [
        RankPlace(row["rank"], row["host"], 0, None, None, None, 0, 0, 0, 0)
        for row in json.loads((attempt / "plan.json").read_text())["ranks"]
    ]
    results, phases = (
        {int(path.stem): json.loads(path.read_text()) for path in (attempt / kind).glob("*.json")}
        for kind in ("result", "phase")
    )
    host_of = {place.rank: place.host for place in places}
    logs = {f"logs/{host_of[rank]}/{rank}/stderr.log": text for rank, text in outputs.items()}
    logs |= {f"result/{rank}.json": json.dumps(found) for rank, found in results.items()}
    code = max(found["code"] for found in results.values())
    end = judge_end("FAILED", code, {"code": code, "reason": "the ranks ended"})
    blamed = blame(places, results, {}, phases)
    return verdict_document("run", attempt.name, "1", end, blamed, diagnose(attempt_sources(logs)))
