"""``rackweave calibrate``: learn a cluster's factors from its own runs."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import PlanError
from ..plan.calibration import Calibration, Measurement, calibrate, errors, measure
from .json_files import read_json, read_text, write_files

HELP = "Compare measured steps of runs with their plans and store factors for that kind of cluster."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the subcommand."""
    parser.add_argument(
        "attempts", nargs="+", type=Path, metavar="ATTEMPT_DIR", help="plan.json and events.jsonl in it"
    )
    parser.add_argument("--store", type=Path, default=Path(".state/calibration.json"), help="file of the factors")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Measure the attempts, store the factors, and show the error before and after."""
    measurements = [measure(*read_attempt(directory)) for directory in arguments.attempts]
    known = read_calibration(arguments.store) if arguments.store.exists() else None
    learned = calibrate(measurements, known)
    write_files(str(arguments.store.parent), {arguments.store.name: json.dumps(learned.as_dict(), indent=1) + "\n"})
    result = summary(measurements, learned)
    result["store"] = str(arguments.store)
    sys.stdout.write(json.dumps(result) + "\n" if arguments.json else as_text(result))
    return 0


def read_attempt(directory: Path) -> tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]:
    """Return the plan and the events of an attempt.

    Raises:
        RackweaveError: if a file is missing or not what it should be.
    """
    if not (directory / "plan.json").is_file():
        raise PlanError(f"{directory} is not an attempt directory: it holds no plan.json; name runs/<run>/attempts/<n>")
    plan = read_json(directory / "plan.json")
    lines = read_text(directory / "events.jsonl").splitlines()
    events = []
    for number, line in enumerate(lines, start=1):
        try:
            events.append(json.loads(line))
        except (ValueError, RecursionError) as error:
            if number == len(lines):
                break  # the last line of a running or killed job may be cut off
            raise PlanError(f"{directory}/events.jsonl line {number} is not JSON: {error}") from error
    if not isinstance(plan, dict) or not all(isinstance(event, dict) for event in events):
        raise PlanError(f"{directory}: plan.json and each line of events.jsonl must be JSON objects")
    return plan, events


def read_calibration(path: Path) -> Calibration:
    """Read a calibration file.

    Raises:
        RackweaveError: if it cannot be read, or is not one.
    """
    content = read_json(path)
    try:
        return Calibration.from_mapping(content)
    except PlanError as error:
        raise PlanError(f"{path}: {error}") from error


def summary(measurements: Sequence[Measurement], learned: Calibration) -> dict[str, Any]:
    """Return the error before and after, in percent, and each attempt.

    With several attempts the error after is that of each under the factor of the others, so that it says something
    about runs not yet made; a single attempt is matched exactly, and that is said.
    """
    if len(measurements) > 1:
        others = [
            errors([item], calibrate([other for other in measurements if other is not item])) for item in measurements
        ]
        after, kind = sum(others) / len(others), "each attempt under the factor of the others"
    else:
        after, kind = errors(measurements, learned), "the attempt itself, matched by construction"
    return {
        "before_percent": round(errors(measurements, None), 2),
        "after_percent": round(after, 2),
        "after_means": kind,
        "step_factors": dict(learned.step_factors),
        "memory_factors": dict(learned.memory_factors),
        "attempts": [vars(item) for item in measurements],
    }


def as_text(result: Mapping[str, Any]) -> str:
    """Return the summary for people."""
    lines = [
        f"{item['cluster']}: predicted {item['predicted_s']:.4g} s a step, measured {item['measured_s']:.4g} s"
        for item in result["attempts"]
    ]
    lines += [f"factor for {name}: {value:.3f}" for name, value in result["step_factors"].items()]
    lines.append(f"step time error: {result['before_percent']:.1f} % before")
    lines.append(f"                 {result['after_percent']:.1f} % after ({result['after_means']})")
    return "\n".join([*lines, f"stored in {result['store']}"]) + "\n"
