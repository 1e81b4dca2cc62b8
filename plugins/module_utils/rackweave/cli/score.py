"""``rackweave score``: error of the predictions on published measurements."""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
from pathlib import Path
from typing import Any

from ..errors import PlanError
from ..plan.constants import Constants
from ..plan.refit import cross_validated
from ..plan.scoring import Table, predict, read_table, report, settled

HELP = "Score predictions against measured rows (CSV), with the shipped constants or refitted per family."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the subcommand."""
    parser.add_argument("--rows", required=True, type=Path, help="CSV file of measurements")
    parser.add_argument(
        "--cross-validate", action="store_true", help="refit without each (model, TP, PP, CP, EP) family in turn"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print the scores."""
    started = time.perf_counter()
    constants = Constants.shipped()
    table = load_table(arguments.rows)
    rows = [settled(row, constants) for row in table.rows]
    refit = arguments.cross_validate
    scored = cross_validated(rows, constants) if refit else [predict(row, constants) for row in rows]
    result = report(table, scored)
    result["seconds"] = round(time.perf_counter() - started, 3)
    sys.stdout.write(json.dumps(result) + "\n" if arguments.json else as_text(result))
    return 0


def load_table(path: Path) -> Table:
    """Read a CSV file of measurements.

    Raises:
        PlanError: if it cannot be read, or a row is malformed.
    """
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            reader = csv.DictReader(stream)
            return read_table(reader, reader.fieldnames or ())
    except OSError as error:
        raise PlanError(f"{path}: {error.strerror or error}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise PlanError(f"{path} cannot be read as CSV: {error}") from error


def as_text(result: dict[str, Any]) -> str:
    """Return the scores as lines for people."""
    lines = [f"{result['scored']} of {result['rows']} rows scored, {result['inferred']} with inferred inputs"]
    lines += [f"  not scored: {count} because {reason}" for reason, count in result["unscored"].items()]
    lines.append(f"{'step time by source':24} {'rows':>5} {'error %':>9} {'bias %':>8}")
    for name, entry in result["step"]["groups"].items():
        lines.append(f"  {name:22} {entry['n']:5} {entry['mape']:9.2f} {entry['bias']:8.2f}")
    lines.append(f"  {'mean of the sources':22} {'':5} {_text(result['step']['balanced_mape']):>9}")
    lines.append(f"  {'the same without vts':22} {'':5} {_text(result['step']['balanced_mape_without_vts']):>9}")
    for kind, entry in result["memory"].items():
        lines.append(f"memory {kind:17} {entry['n']:5} {_text(entry['mape']):>9} {_text(entry['bias']):>8}")
    labels, ranks = result["oom"], result["ranking"]
    lines.append(f"did not fit: {labels['caught']} of {labels['labels']} caught, {labels['false']} false alarms")
    for job in ranks["jobs"]:
        lines.append(f"ranking {job['job']}: Spearman {job['spearman']:.2f}, regret {job['regret']:.1f} %")
    return "\n".join([*lines, f"{result['seconds']:.1f} s", ""])


def _text(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
