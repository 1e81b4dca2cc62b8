"""`python -m trainer.checkpoint list|verify|compare`: look at checkpoints without a job."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ..errors import StopError
from .directory import LATEST_FILE, STATE_FILE, CheckpointDirectory, Published, read_small_json
from .verify import check_published, differences, files_of, manifests


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 0, 1 if something is wrong with a checkpoint, 2 if the request makes no sense."""
    values = _parse(arguments)
    action: Callable[[argparse.Namespace], int] = values.action
    try:
        return action(values)
    except (StopError, OSError) as error:
        sys.stderr.write(f"trainer.checkpoint: {error}\n")
        return 2


def list_checkpoints(values: argparse.Namespace) -> int:
    """Show what lies in a checkpoint directory, newest first."""
    directory = _directory(values.directory)
    pointer = directory.latest()
    rows = [_describe(checkpoint, pointer) for checkpoint in directory.published()]
    if values.json:
        _print_json(rows)
        return 0
    for row in rows:
        marks = [name for name in (LATEST_FILE, "validated") if row[name]]
        size = f"{row['bytes'] / 2**20:.1f} MiB" if row["bytes"] is not None else "damaged"
        saved = f"{row['saved'] or '?':25}"
        sys.stdout.write(f"step {row['step']:>9}  {saved}  {size:>12}  {row['layout']:24}  {', '.join(marks)}\n")
    if not rows:
        sys.stdout.write(f"no checkpoint in {values.directory}\n")
    return 0


def verify(values: argparse.Namespace) -> int:
    """Read every byte of one checkpoint, or of all in a directory, and say which are whole."""
    path: Path = values.path
    chosen = [path] if (path / STATE_FILE).exists() else [found.path for found in _directory(path).published()]
    if not chosen:
        raise StopError(f"{path} is no checkpoint and holds none")
    verdicts = []
    for checkpoint in chosen:
        try:
            check_published(checkpoint)
            verdicts.append({"path": str(checkpoint), "whole": True, "problem": None})
        except (StopError, OSError) as error:
            verdicts.append({"path": str(checkpoint), "whole": False, "problem": str(error)})
    if values.json:
        _print_json(verdicts)
    else:
        for verdict in verdicts:
            sys.stdout.write(f"{verdict['path']}: {'whole' if verdict['whole'] else verdict['problem']}\n")
    return 0 if all(verdict["whole"] for verdict in verdicts) else 1


def compare(values: argparse.Namespace) -> int:
    """Compare all tensors of two checkpoints bitwise, whatever their layouts."""
    for path in (values.first, values.second):
        if not (path / ".metadata").is_file():
            raise StopError(f"{path} is no published checkpoint")
    found = list(differences(values.first, values.second))
    if values.json:
        _print_json({"equal": not found, "differences": found})
    else:
        sys.stdout.write("\n".join(found or ["equal in every tensor"]) + "\n")
    return 1 if found else 0


def _describe(checkpoint: Published, pointer: str | None) -> dict[str, Any]:
    row: dict[str, Any] = {
        "step": checkpoint.step,
        "path": str(checkpoint.path),
        "validated": checkpoint.validated,
        LATEST_FILE: checkpoint.path.name == pointer,
        "saved": None,
        "bytes": None,
        "layout": "?",
    }
    try:
        sizes = read_small_json(checkpoint.path / STATE_FILE).get("sizes", {})
        files = [
            facts for manifest in manifests(checkpoint.path) for facts in files_of(manifest, checkpoint.path).values()
        ]
    except StopError as error:
        return {**row, "problem": str(error)}
    if not isinstance(sizes, dict) or not all(isinstance(facts.get("bytes"), int) for facts in files):
        return {**row, "problem": f"{checkpoint.path} has a damaged state or manifest"}
    when = (checkpoint.path / STATE_FILE).stat().st_mtime
    row["saved"] = datetime.fromtimestamp(when, timezone.utc).isoformat(timespec="seconds")
    row["bytes"] = sum(facts["bytes"] for facts in files)
    axes = {"TP": "tensor_parallel_size", "PP": "pipeline_parallel_size", "DP": "data_parallel_size"}
    row["layout"] = " ".join(f"{short} {sizes.get(name, '?')}" for short, name in axes.items())
    row["layout"] += f" ZeRO {sizes.get('zero_stage', '?')}"
    return row


def _directory(path: Path) -> CheckpointDirectory:
    if not path.is_dir():
        raise StopError(f"{path} is no directory")
    return CheckpointDirectory(path, run="")


def _print_json(content: object) -> None:
    sys.stdout.write(json.dumps(content, indent=2) + "\n")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m trainer.checkpoint", description=__doc__)
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    commands = parser.add_subparsers(required=True, metavar="list|verify|compare")
    listing = commands.add_parser("list", help="checkpoints in a directory, newest first")
    listing.add_argument("directory", type=Path)
    listing.set_defaults(action=list_checkpoints)
    verifying = commands.add_parser(
        "verify", help="read back and compare hashes: one checkpoint, or a directory of them"
    )
    verifying.add_argument("path", type=Path)
    verifying.set_defaults(action=verify)
    comparing = commands.add_parser("compare", help="are two checkpoints equal in every tensor?")
    comparing.add_argument("first", type=Path)
    comparing.add_argument("second", type=Path)
    comparing.set_defaults(action=compare)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
