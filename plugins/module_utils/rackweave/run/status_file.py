"""``status.json`` of a run, and the table that shows all runs side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .progress import Progress, duration
from .schema import Nullable, Number, Record, Text, Whole, read_document

SCHEMA = "rackweave.status/1"

STATUS = Record(
    {
        "schema": Text((SCHEMA,)),
        "run": Text(),
        "job_id": Text(),
        "attempt": Nullable(Text()),
        "state": Text(),
        "phase": Nullable(Text()),
        "step": Nullable(Whole()),
        "target_step": Nullable(Whole()),
        "loss": Nullable(Number()),
        "validation_loss": Nullable(Number()),
        "tokens_per_second": Nullable(Number()),
        "mfu": Nullable(Number()),
        "eta_s": Nullable(Number()),
        "checkpoint_step": Nullable(Whole()),
        "verdict": Nullable(Text()),
        "updated": Text(),
    }
)


def parse_status(text: str, where: str = "status.json") -> dict[str, Any]:
    """Read ``status.json``; DocumentError if it does not follow its schema."""
    return read_document(text, SCHEMA, STATUS, where)


def make_status(
    run: str, job_id: str, state: str, updated: str, progress: Progress, verdict: str | None
) -> dict[str, Any]:
    """Return the status of a run from the progress of its newest attempt."""
    last = progress.last
    checkpoint = progress.last_checkpoint
    return {
        "schema": SCHEMA,
        "run": run,
        "job_id": job_id,
        "attempt": progress.attempt or None,
        "state": state,
        "phase": progress.phase,
        "step": last.step if last else None,
        "target_step": progress.target_step,
        "loss": last.loss if last else None,
        "validation_loss": progress.evaluations[-1].loss if progress.evaluations else None,
        "tokens_per_second": last.tokens_per_second if last else None,
        "mfu": last.mfu if last else None,
        "eta_s": progress.eta_s,
        "checkpoint_step": checkpoint.step if checkpoint else None,
        "verdict": verdict,
        "updated": updated,
    }


def status_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return aligned lines, one a run, under a head; an empty list of runs is said in words."""
    if not rows:
        return ["no run has been launched here"]
    head = ("run", "job", "state", "step", "loss", "tokens/s", "ETA", "verdict")
    cells = [head, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(head))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in cells]


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    step, target = row.get("step"), row.get("target_step")
    loss, speed, eta = row.get("loss"), row.get("tokens_per_second"), row.get("eta_s")
    return (
        str(row["run"]),
        str(row.get("job_id") or "-"),
        str(row.get("state") or "-"),
        "-" if step is None else f"{step}/{target}" if target is not None else str(step),
        "-" if loss is None else f"{loss:.4f}",
        "-" if speed is None else f"{speed:,.0f}",
        "-" if eta is None else duration(eta),
        str(row.get("verdict") or "-"),
    )
