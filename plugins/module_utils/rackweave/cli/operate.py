"""``rackweave operate RUN``: keep a long run going with nobody there. The one command that needs ansible-runner."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ..errors import DocumentError, RackweaveError
from ..run.batch import check_run_name
from ..run.plan_file import RunPlan, parse_plan
from ..watch.journal import Journal, entry_line, parse_journal
from ..watch.operation import GAVE_UP, Field, Operation, OperationSettings, Played
from ..watch.strikes import from_json, to_json
from . import STANDARD_OUTPUT
from .json_files import ReadError, WriteError, append_lines, make_directory, read_text, replace_file
from .notify import Notices, notices_from
from .playbooks import Screen, load_runner, player, setting
from .stopping import STOPPED, StopAsked, Stopping
from .told import Told

HELP = "Keep a run going unattended: watch, decide by policy, drain, plan and submit again; with a journal of why."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("run_name", metavar="RUN", help="name of the run (training_job_run)")
    parser.add_argument(
        "--inventory", type=Path, default=Path("inventory/lab"), help="inventory (default: inventory/lab)"
    )
    parser.add_argument("--checkout", type=Path, default=Path(), help="directory of the checkout (default: this one)")
    parser.add_argument(
        "--dry-run", action="store_true", help="watch one job and say what would be done; change nothing"
    )
    parser.add_argument("--json", action="store_true", help="print the journal's lines too, as they are written")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a variable for every playbook; may be repeated",
    )
    parser.add_argument("--verbose", action="store_true", help="show what the playbooks print")


def run(arguments: argparse.Namespace) -> int:
    """Operate to the end; 0 the run is done, 1 a person has to look, 3 this program could not go on, 143 it was ended.

    Raises:
        DocumentError: if a setting is wrong, another operation of the run is at work, or its memory is damaged.
    """
    notices = notices_from(os.environ)
    told = Told.of(os.environ)
    try:
        with Witness(arguments, notices, told):
            return _operate(arguments, notices, told)
    except (WriteError, ReadError, OSError) as error:
        if not may_be_cured(error):
            raise
        return GAVE_UP


class Witness:
    """Tells somebody why an operation ends that could not say so itself: nobody may be there to read its output."""

    def __init__(self, arguments: argparse.Namespace, notices: Notices, told: Told) -> None:
        self.run, self.silent = arguments.run_name, arguments.dry_run
        self.notices, self.told = notices, told

    def __enter__(self) -> None:
        """Nothing is done at the beginning."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Show and send what went wrong, each cause once; whoever asked for the end needs no notice."""
        if not isinstance(error, Exception):
            return
        named = isinstance(error, (RackweaveError, OSError))
        cause = str(error) if named else f"{type(error).__name__}: {error} (a fault of this program)"
        words = f"the operation of {self.run} cannot go on, the job goes on without it: {cause}"
        if may_be_cured(error):
            sys.stdout.write(f"{words}\n")
        if not self.silent and self.told.is_news(words):
            sys.stderr.write("".join(f"rackweave operate: {line}\n" for line in self.notices.send(words, words)))


def may_be_cured(error: Exception) -> bool:
    """Say whether another start can help: without its memory an operation must not act, but a disk may have room then.

    It cannot where nobody reads what it says.
    """
    return isinstance(error, (WriteError, ReadError, OSError)) and getattr(error, "filename", "") != STANDARD_OUTPUT


def _operate(arguments: argparse.Namespace, notices: Notices, told: Told) -> int:
    check_run_name(arguments.run_name)
    checkout, inventory = arguments.checkout.resolve(), arguments.inventory.resolve()
    if not (checkout / "playbooks" / "operate.yml").is_file():
        raise DocumentError(f"{checkout} is no checkout of Rackweave; name one with --checkout")
    if not inventory.exists():
        raise DocumentError(f"inventory {inventory} does not exist; name one with --inventory")
    variables, runner = variables_of(arguments.set), load_runner()
    state = Path(setting(runner, checkout, inventory, "rackweave_state_dir"))
    screen = Screen(sys.stdout, arguments.verbose)
    echo = sys.stdout.write if arguments.json else _silent
    memory = Memory(state, arguments.run_name, arguments.dry_run, echo, told)
    notify = Notify(notices, memory, told)
    with memory.alone(), Stopping() as stopping:
        screen.line(f"operating {arguments.run_name}; notices by {', '.join(notices.ways()) or 'nobody (none set up)'}")
        play = player(runner, checkout, inventory, screen, variables, stopping)
        field = Field(
            play=_noticing(play, memory),
            write=memory.write,
            journal=memory.journal,
            plan=memory.plan,
            notify=notify.send,
            forgive=memory.forgive,
            say=screen.line,
            sleep=stopping.sleep,
        )
        try:
            return Operation(field, OperationSettings(arguments.run_name, arguments.dry_run)).run()
        except StopAsked:
            memory.write("note", "the operation was ended by a signal; the job goes on")
            screen.line("ended by a signal; the job goes on, and whoever operates the run again attaches to it")
            return STOPPED


def _noticing(play: Callable[..., Played], memory: Memory) -> Callable[..., Played]:
    """Return the function that plays; the memory learns which rounds came to a decision."""

    def call(name: str, variables: Mapping[str, Any], limit: str) -> Played:
        played = play(name, variables, limit)
        memory.decided = memory.decided or "recovery_decision" in played.results
        return played

    return call


def variables_of(words: list[str]) -> dict[str, str]:
    """Return the variables of ``--set``.

    Raises:
        DocumentError: for a word without a name or an equals sign.
    """
    for word in words:
        if not word.partition("=")[0].isidentifier() or "=" not in word:
            raise DocumentError(f"--set {word!r} must read NAME=VALUE")
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def _silent(text: str) -> int:
    return len(text)


class Notify:
    """Sends, and journals by which way and what went wrong; a notice that is lost must not end the operation."""

    def __init__(self, notices: Notices, memory: Memory, told: Told) -> None:
        self.notices, self.memory, self.told = notices, memory, told

    def send(self, subject: str, text: str, cause: str = "") -> None:
        """Send a notice; one that names a cause is sent once until the operation works again."""
        if self.memory.dry_run or (cause and not self.told.is_news(cause)):
            return
        for problem in self.notices.send(subject, text):
            self.memory.write("note", problem)
        self.memory.write("notify", subject, ways=self.notices.ways())


class Memory:
    """Journal, ledger and plan of a run on the controller."""

    def __init__(self, state: Path, run_name: str, dry_run: bool, echo: Callable[[str], int], told: Told) -> None:
        self.directory, self.run, self.dry_run, self.echo = state / "recovery", run_name, dry_run, echo
        self.told, self.decided = told, False
        self.plan_file = state / "plan" / run_name / "plan.json"

    def alone(self) -> Lock:
        """Hold the run: two operations of one run would submit it twice."""
        make_directory(self.directory)
        return Lock(self.directory / f".operate-{self.run}.lock", self.run)

    def write(self, kind: str, why: str, **details: Any) -> None:
        """Append an entry; it is on disk before what it announces is done."""
        now = time.time()
        moment = datetime.fromtimestamp(now, timezone.utc).isoformat(timespec="milliseconds")
        line = entry_line(moment, now, self.run, kind, why, dry_run=self.dry_run, **details)
        append_lines(self.directory / "journal.jsonl", line)
        if self.decided:  # a round came to a decision and can be remembered: the operation works
            self.told.forget()
            self.decided = False
        self.echo(line)

    def journal(self) -> Journal:
        path = self.directory / "journal.jsonl"
        return parse_journal(read_text(path), str(path)) if path.is_file() else Journal()

    def plan(self) -> RunPlan | None:
        if not self.plan_file.is_file():
            return None
        return parse_plan(read_text(self.plan_file), str(self.plan_file))

    def forgive(self, host: str) -> None:
        path = self.directory / "strikes.json"
        if path.is_file():
            replace_file(path, to_json(from_json(read_text(path), str(path)).forgive(host)))


class Lock:
    """A file that one process holds; the kernel lets go of it when that process ends, however it ends."""

    def __init__(self, path: Path, run_name: str) -> None:
        self.path, self.run = path, run_name

    def __enter__(self) -> None:
        import fcntl  # not on every system that plans

        try:
            self._stream = self.path.open("w", encoding="utf-8")
        except OSError as error:
            raise WriteError(f"{self.path} cannot be written: {error.strerror or error}") from error
        try:
            fcntl.flock(self._stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._stream.close()
            raise DocumentError(
                f"run {self.run} is operated already by another process ({self.path} is held)"
            ) from error

    def __exit__(self, *problem: object) -> None:
        self._stream.close()
