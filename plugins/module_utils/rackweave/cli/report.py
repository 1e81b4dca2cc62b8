"""``rackweave report RUN_DIR``: write the page of a run from its directory."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeVar

from ..errors import DocumentError
from ..report.run_page import RunReport, render_run_page
from ..run.attempt import parse_end, parse_job, sort_attempts
from ..run.events import Event, job_is_silent, parse_events
from ..run.outcome import judge_end
from ..run.plan_file import parse_plan
from ..run.progress import Progress
from ..run.schema import read_json
from ..run.train_file import parse_train
from ..watch.attempt_verdict import parse_verdict
from ..watch.log_steps import step_records
from .json_files import read_text, replace_file

Read = TypeVar("Read")
# Of each log; a foreign program that trains for weeks may print far more.
LOG_TAIL_BYTES = 16 << 20
HELP = "Write the HTML report of a run from its directory (runs/<run>)."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of this subcommand."""
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="directory with attempts/")
    parser.add_argument("--output", type=Path, metavar="FILE", help="where to write (default: RUN_DIR/report.html)")
    parser.add_argument("--json", action="store_true", help="print what the page shows instead of writing it")


def run(arguments: argparse.Namespace) -> int:
    """Write the page, or print its figures.

    Raises:
        DocumentError: if the directory is no run directory, or the page cannot be written.
    """
    report = load_report(arguments.run_dir)
    for sentence in report.unread:
        sys.stderr.write(f"rackweave report: not shown, since it cannot be read: {sentence}\n")
    if arguments.json:
        json.dump(_summary(report), sys.stdout, indent=2)
        sys.stdout.write("\n")
        return 0
    output = arguments.output or arguments.run_dir / "report.html"
    try:
        replace_file(output, render_run_page(report))
    except DocumentError as error:
        raise DocumentError(f"{error}; name another file with --output") from error
    sys.stdout.write(f"{output}\n")
    return 0


def load_report(run_dir: Path) -> RunReport:
    """Read a run directory; a file that cannot be read is named on the page, and the rest is shown.

    Raises:
        DocumentError: if it has no attempt.
    """
    attempts_dir = run_dir / "attempts"
    names = sort_attempts(_names(attempts_dir))
    if not names:
        raise DocumentError(f"{run_dir} holds no attempt; name the directory of a run that was launched (runs/<run>)")
    files = Files(run_dir)
    newest = attempts_dir / names[-1]
    verdicts = [files.read(attempts_dir / name / "verdict.json", parse_verdict) for name in names]
    end = files.read(newest / "end.json", parse_end)
    state = verdicts[-1]["state"] if verdicts[-1] else judge_end("UNKNOWN", None, end).state if end else "UNKNOWN"
    target, reference = _training(files, newest)
    return RunReport(
        run=run_dir.resolve().name,
        made_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        attempts=tuple(_progress(files, attempts_dir / name, target if name == names[-1] else None) for name in names),
        plan=files.read(newest / "plan.json", parse_plan),
        state=str(state),
        verdict=verdicts[-1],
        submission=files.read(run_dir / "job.json", parse_job),
        reference_loss=reference,
        incidents=tuple(item for item in verdicts if item is not None and item["severity"] != "info"),
        unread=tuple(files.unread),
    )


class Files:
    """Reads the files of a run, and keeps the sentences on those that it could not read."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.unread: list[str] = []

    def read(self, path: Path, parse: Callable[[str, str], Read]) -> Read | None:
        """Return what a file holds, None where it is absent or cannot be read."""
        if not os.path.lexists(path):
            return None
        try:
            return parse(read_text(path), _below(path, self.run_dir))
        except DocumentError as error:
            self.unread.append(str(error))
            return None

    def printed_steps(self, attempt: Path) -> tuple[Event, ...]:
        """Return the steps that the logs of a program without events report: those of the rank that got furthest."""
        furthest: list[dict[str, Any]] = []
        for path in sorted(attempt.glob("logs/*/*/std*.log")):
            content = self.content(path, LOG_TAIL_BYTES)
            if content is None:
                continue
            lines = content.decode("utf-8", errors="replace").splitlines()
            found = step_records(lines, -1, _changed(path))
            if found and (not furthest or found[-1]["step"] > furthest[-1]["step"]):
                furthest = found
        return parse_events("".join(json.dumps(record) + "\n" for record in furthest).encode()).events

    def content(self, path: Path, most: int | None = None) -> bytes | None:
        """Return a file, or its last ``most`` bytes; None where it is absent or cannot be read."""
        try:
            with path.open("rb") as stream:
                if most is not None:
                    stream.seek(max(0, os.fstat(stream.fileno()).st_size - most))
                return stream.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            self.unread.append(f"{_below(path, self.run_dir)}: {error.strerror or error}")
            return None


def _changed(path: Path) -> str:
    return datetime.fromtimestamp(path.stat().st_mtime, timezone.utc).isoformat(timespec="milliseconds")


def _below(path: Path, run_dir: Path) -> str:
    return str(path.relative_to(run_dir)) if path.is_relative_to(run_dir) else str(path)


def _names(directory: Path) -> list[str]:
    """Return the names of the directories in a directory; none where it cannot be read."""
    try:
        return [path.name for path in directory.iterdir() if path.is_dir()]
    except OSError:
        return []


def _progress(files: Files, attempt: Path, target: int | None) -> Progress:
    progress = Progress(attempt.name, target)
    content = files.content(attempt / "events.jsonl") or b""
    batch = parse_events(content)
    progress.add(batch.events)
    progress.unreadable_lines = batch.unreadable_lines
    if job_is_silent(content):
        progress.add(files.printed_steps(attempt))
    return progress


def _training(files: Files, attempt: Path) -> tuple[int | None, tuple[str, float] | None]:
    """Return the target step, and the unigram entropy of the validation split where its data.json is readable."""
    train = files.read(attempt / "train.json", parse_train)
    if train is None:
        return None, None
    for item in train["data"]["validation"][:1]:
        data = files.read(Path(item["prefix"]).parent / "data.json", read_json) or {}
        entropy = data.get("validation_byte_unigram_entropy_nats")
        if isinstance(entropy, (int, float)) and train["data"]["tokenizer"]["kind"] == "byte":
            return train["steps"], ("byte unigram entropy", float(entropy))
    return train["steps"], None


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
        "unread": list(report.unread),
    }
