"""``rackweave report RUN_DIR``: write the page of a run from its directory."""

from __future__ import annotations

import argparse
import json
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ..errors import DocumentError
from ..report.run_page import RunReport, render_run_page
from ..run.attempt import parse_end, parse_job, sort_attempts
from ..run.events import parse_events
from ..run.outcome import judge_end
from ..run.plan_file import RunPlan, parse_plan
from ..run.progress import Progress
from ..run.schema import read_json
from ..run.train_file import parse_train

HELP = "Write the HTML report of a run from its directory (runs/<run>)."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of this subcommand."""
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="directory with attempts/")
    parser.add_argument("--output", type=Path, metavar="FILE", help="where to write (default: RUN_DIR/report.html)")
    parser.add_argument("--json", action="store_true", help="print what the page shows instead of writing it")


def run(arguments: argparse.Namespace) -> int:
    """Write the page, or print its figures.

    Raises:
        DocumentError: if the directory is no run directory or its files break their schema.
    """
    report = load_report(arguments.run_dir)
    if arguments.json:
        json.dump(_summary(report), sys.stdout, indent=2)
        sys.stdout.write("\n")
        return 0
    output = arguments.output or arguments.run_dir / "report.html"
    try:
        output.write_text(render_run_page(report), encoding="utf-8")
    except OSError as error:
        raise DocumentError(
            f"{output} cannot be written ({error.strerror}); name another file with --output"
        ) from error
    sys.stdout.write(f"{output}\n")
    return 0


def load_report(run_dir: Path) -> RunReport:
    """Read a run directory.

    Raises:
        DocumentError: if it has no attempt, or a file breaks its schema.
    """
    attempts_dir = run_dir / "attempts"
    names = sort_attempts([path.name for path in attempts_dir.iterdir()]) if attempts_dir.is_dir() else ()
    if not names:
        raise DocumentError(f"{run_dir} holds no attempt; name the directory of a run that was launched (runs/<run>)")
    newest = attempts_dir / names[-1]
    target, reference = _training(newest)
    end_file = newest / "end.json"
    end = parse_end(end_file.read_text(encoding="utf-8"), str(end_file)) if end_file.is_file() else None
    verdict = _optional(newest / "verdict.json")
    submission_file = run_dir / "job.json"
    submission = parse_job(submission_file.read_text(encoding="utf-8")) if submission_file.is_file() else None
    state = verdict["state"] if verdict else judge_end("UNKNOWN", None, end).state if end else "UNKNOWN"
    return RunReport(
        run=run_dir.resolve().name,
        made_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        attempts=tuple(_progress(attempts_dir / name, target if name == names[-1] else None) for name in names),
        plan=_plan(newest),
        state=str(state),
        verdict=verdict,
        submission=submission,
        reference_loss=reference,
        incidents=_incidents(attempts_dir, names),
    )


def _incidents(attempts_dir: Path, names: tuple[str, ...]) -> tuple[dict[str, Any], ...]:
    """Return the verdicts of attempts that ended badly, as far as a watch kept them."""
    found = (_optional(attempts_dir / name / "verdict.json") for name in names)
    return tuple(item for item in found if item is not None and item.get("severity") != "info")


def _progress(attempt: Path, target: int | None) -> Progress:
    progress = Progress(attempt.name, target)
    events = attempt / "events.jsonl"
    if events.is_file():
        batch = parse_events(events.read_bytes())
        progress.add(batch.events)
        progress.unreadable_lines = batch.unreadable_lines
    return progress


def _plan(attempt: Path) -> RunPlan | None:
    path = attempt / "plan.json"
    return parse_plan(path.read_text(encoding="utf-8"), str(path)) if path.is_file() else None


def _training(attempt: Path) -> tuple[int | None, tuple[str, float] | None]:
    """Return the target step, and the unigram entropy of the validation split where its data.json is readable."""
    path = attempt / "train.json"
    if not path.is_file():
        return None, None
    train = parse_train(path.read_text(encoding="utf-8"), str(path))
    for item in train["data"]["validation"][:1]:
        entropy = (_optional(Path(item["prefix"]).parent / "data.json") or {}).get(
            "validation_byte_unigram_entropy_nats"
        )
        if isinstance(entropy, (int, float)) and train["data"]["tokenizer"]["kind"] == "byte":
            return train["steps"], ("byte unigram entropy", float(entropy))
    return train["steps"], None


def _optional(path: Path) -> dict[str, Any] | None:
    return read_json(path.read_text(encoding="utf-8"), str(path)) if path.is_file() else None


def _summary(report: RunReport) -> dict[str, Any]:
    newest = report.attempts[-1]
    return {
        "run": report.run,
        "state": report.state,
        "attempts": [one.attempt for one in report.attempts],
        "step": newest.last.step if newest.last else None,
        "target_step": newest.target_step,
        "loss": newest.last.loss if newest.last else None,
        "evaluations": [list(item) for item in newest.evaluations],
        "checkpoints": [item._asdict() for item in newest.checkpoints],
        "verdict": report.verdict,
    }
