"""Fit the planner's constants to published measurements; write `plan/fitted.py` and `docs/accuracy.md`."""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields
from pathlib import Path

from accuracy_page import accuracy_page
from rackweave.cli.score import as_text, load_table
from rackweave.plan.constants import Constants
from rackweave.plan.refit import cross_validated, fit_all
from rackweave.plan.scoring import Scored, predict, report, settled

ROOT = Path(__file__).resolve().parent.parent
ROWS = ROOT / "tests/fixtures/planner/planner-validation.csv"
ACCURACY = ROOT / "docs/accuracy.md"
FITTED = ROOT / "plugins/module_utils/rackweave/plan/fitted.py"


def main() -> None:
    """Fit twice, because what memory fits decides which recomputation is assumed where a source is silent."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=Path, default=ROWS)
    arguments = parser.parse_args()
    table = load_table(arguments.rows)
    constants = Constants.shipped()
    for _ in range(2):
        rows = [settled(row, constants) for row in table.rows]
        constants = fit_all(rows, constants)
    rows = [settled(row, constants) for row in table.rows]
    crossed_rows = cross_validated(rows, constants)
    plain = report(table, [predict(row, constants) for row in rows])
    crossed = report(table, crossed_rows)
    band = error_band(crossed_rows)
    FITTED.write_text(fitted_text(constants, len(rows), band, plain, crossed), encoding="utf-8")
    ACCURACY.write_text(accuracy_page(plain, crossed, crossed_rows, constants), encoding="utf-8")
    for name, result in (("shipped", plain), ("cross-validated", crossed)):
        sys.stdout.write(f"{name}\n{as_text({**result, 'seconds': 0.0})}\n")


def error_band(scored: list[Scored]) -> tuple[float, float]:
    """Return the factors between which nine of ten measured steps lie around a prediction that has not seen them."""
    ratios = sorted(
        item.row.step_s / item.step_s for item in scored if item.step_s and item.row.step_s and item.row.group != "vts"
    )
    return ratios[len(ratios) // 20], ratios[-1 - len(ratios) // 20]


def fitted_text(constants: Constants, rows: int, band: tuple[float, float], plain: dict, crossed: dict) -> str:
    """Return the source text of `fitted.py`."""
    values = "\n".join(f'    "{field.name}": {getattr(constants, field.name):.6g},' for field in fields(constants))
    return f'''"""Values of the fitted constants; written by `make fit`, not by hand."""

from __future__ import annotations

VALUES: dict[str, float] = {{
{values}
}}

# How they were found: scripts/fit on tests/fixtures/planner/planner-validation.csv.
RECORD: dict[str, float] = {{
    "rows": {rows},
    "band_low": {band[0]:.3f},
    "band_high": {band[1]:.3f},
    "step_error_percent": {plain["step"]["balanced_mape_without_vts"]},
    "step_error_cross_validated_percent": {crossed["step"]["balanced_mape_without_vts"]},
}}
'''


if __name__ == "__main__":
    main()
