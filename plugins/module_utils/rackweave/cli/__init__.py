"""The ``rackweave`` command: the only place of the package with input and output."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from ..errors import RackweaveError

INTERRUPTED = 130  # as a shell reports a program that was ended by SIGINT
CUT_OFF = 141  # and one that wrote to a reader which had gone (SIGPIPE)
# One module per subcommand: it offers HELP, add_arguments(parser) and run(arguments) -> exit status.
# They are imported only when called, so that each command starts fast and needs no more than it uses.
COMMANDS = ("plan", "score", "calibrate", "nccl", "diagnose", "report", "operate")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; a user's error is one sentence on stderr and exit status 2."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] not in COMMANDS:
        _parser().parse_args(words[:1])
        return 2
    _spell_what_the_terminal_lacks()
    command = import_module(f".{words[0]}", __name__)
    subparser = argparse.ArgumentParser(prog=f"rackweave {words[0]}", description=command.HELP)
    command.add_arguments(subparser)
    arguments = subparser.parse_args(words[1:])
    status = CUT_OFF
    try:
        status = int(command.run(arguments))
        sys.stdout.flush()
    except RackweaveError as error:
        return _refuse(words[0], str(error))
    except BrokenPipeError:
        # The reader (head, a pager) has seen enough. That is no verdict: an alarm stays one, and a command that was cut
        # off has found nothing good.
        _leave_nothing_to_flush()
    except OSError as error:
        if error.filename is None:  # nothing was opened by name, so it is the output
            _leave_nothing_to_flush()
        return _refuse(words[0], f"{error.filename or 'standard output'}: {error.strerror or error}")
    except KeyboardInterrupt:
        return INTERRUPTED
    return status


def _parser() -> argparse.ArgumentParser:
    """Return the parser of the command alone; its help has one line for each subcommand."""
    lines = [f"  {name:10} {import_module(f'.{name}', __name__).HELP}" for name in COMMANDS]
    parser = argparse.ArgumentParser(
        prog="rackweave",
        description="Plan, check, diagnose and report training jobs.",
        epilog="\n".join(["commands (each has --help):", *lines]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=COMMANDS, metavar="command", help="one of those below")
    return parser


def _refuse(command: str, sentence: str) -> int:
    print(f"rackweave {command}: {sentence}", file=sys.stderr)  # noqa: T201
    return 2


def _spell_what_the_terminal_lacks() -> None:
    """Write characters that the locale has no code for as escapes, instead of ending with an error."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _leave_nothing_to_flush() -> None:
    """Let the interpreter's own flush at the end go nowhere, since it would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
