"""The ``rackweave`` command: the only place of the package with input and output."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from ..errors import RackweaveError

# One module per subcommand: it offers HELP, add_arguments(parser) and run(arguments) -> exit status.
# They are imported only when called, so that each command starts fast and needs no more than it uses.
COMMANDS = ("plan", "score", "calibrate", "nccl", "diagnose", "report", "operate")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; a user's error is one sentence on stderr and exit status 2."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="rackweave", description="Plan, check, diagnose and report training jobs.")
    parser.add_argument("command", choices=COMMANDS)
    if not words or words[0] not in COMMANDS:
        parser.parse_args(words[:1])
        return 2
    command = import_module(f".{words[0]}", __name__)
    subparser = argparse.ArgumentParser(prog=f"rackweave {words[0]}", description=command.HELP)
    command.add_arguments(subparser)
    arguments = subparser.parse_args(words[1:])
    try:
        status = command.run(arguments)
    except RackweaveError as error:
        print(f"rackweave {words[0]}: {error}", file=sys.stderr)  # noqa: T201
        return 2
    return int(status)
