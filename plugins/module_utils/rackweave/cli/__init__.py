"""The ``rackweave`` command: the only place of the package with input and output."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, BinaryIO, cast

from ..errors import RackweaveError

INTERRUPTED = 130  # as a shell reports a program that was ended by SIGINT
CUT_OFF = 141  # and one that wrote to a reader which had gone (SIGPIPE)
STANDARD_OUTPUT = "standard output"
# One module per subcommand: it offers HELP, add_arguments(parser) and run(arguments) -> exit status.
# They are imported only when called, so that each command starts fast and needs no more than it uses.
COMMANDS = ("plan", "score", "calibrate", "nccl", "diagnose", "report", "operate")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; a user's error is one sentence on stderr and exit status 2."""
    if argv is None:
        _prepare_streams()
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] not in COMMANDS:
        return _explain(words)
    empty = _empty_word(words)
    if empty is not None:
        return _refuse(words[0], empty)
    command = import_module(f".{words[0]}", __name__)
    subparser = argparse.ArgumentParser(prog=f"rackweave {words[0]}", description=command.HELP)
    command.add_arguments(subparser)
    arguments = subparser.parse_args(words[1:])
    if sys.stdout is None:
        return _refuse(words[0], f"there is no {STANDARD_OUTPUT}; send it to /dev/null if nobody reads it")
    status = CUT_OFF
    try:
        status = int(command.run(arguments))
        sys.stdout.flush()
    except RackweaveError as error:
        return _refuse(words[0], str(error))
    except OSError as error:
        if error.filename == STANDARD_OUTPUT:
            _leave_nothing_to_flush()
        # The reader (head, a pager) has seen enough. That is no verdict: an alarm stays one, and a command that was cut
        # off has found nothing good.
        if not (isinstance(error, BrokenPipeError) and error.filename == STANDARD_OUTPUT):
            return _refuse(words[0], _sentence(error))
    except KeyboardInterrupt:
        return INTERRUPTED
    return status


def _explain(words: list[str]) -> int:
    """Say how the command is called, where its first word is no subcommand."""
    parser = _parser()
    if not words:
        parser.print_help(sys.stderr)
    elif words[0].startswith("-") and words[0] not in ("-h", "--help"):
        parser.error(f"{words[0]} comes before the command; options follow it, as in: rackweave plan --json")
    else:
        parser.parse_args(words[:1])
    return 2


def _empty_word(words: list[str]) -> str | None:
    """Return a sentence on a word that is empty: it would mean this directory, or that nothing was asked for."""
    for before, word in zip(words, words[1:]):
        option = word.startswith("--") and word.endswith("=") and word.count("=") == 1
        if not word or option:
            name = word.rstrip("=") or (before if before.startswith("-") else "an argument")
            return f"{name} is empty; a variable of the shell that is not set?"
    return None


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


def _sentence(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename is not None else "a file or device failed: "
    return where + (error.strerror or str(error))


class _Output(io.FileIO):
    """Standard output whose errors name it: those of a write or of a read name nothing, so nobody could tell them."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            error.filename = STANDARD_OUTPUT
            raise


def _prepare_streams() -> None:
    """Set up the streams of a program: what cannot be written says where, and what has no code is an escape.

    Characters that the locale has no code for are written as escapes, instead of ending with an error.
    """
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    plain = sys.stdout
    if isinstance(plain, io.TextIOWrapper):
        raw = _Output(plain.fileno(), "wb", closefd=False)
        unbuffered = isinstance(plain.buffer, io.RawIOBase)  # PYTHONUNBUFFERED
        sys.stdout = io.TextIOWrapper(
            cast(BinaryIO, raw) if unbuffered else io.BufferedWriter(raw),
            encoding=plain.encoding,
            errors="backslashreplace",
            line_buffering=plain.line_buffering,
            write_through=plain.write_through,
        )


def _leave_nothing_to_flush() -> None:
    """Let the interpreter's own flush at the end go nowhere, since it would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
