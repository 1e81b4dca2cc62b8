"""Runs torchrun on one node to its end, whatever the end is; called by launch.sh, stdlib only.

It hands signals on, notices ranks that vanish, stand still or make no progress, writes down what it saw, leaves no
process of the attempt behind, and maps the results of its ranks to one status.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from launch import (
    DONE,
    LAUNCHER,
    RETRY,
    SAVED,
    STOP,
    Refusal,
    attempt_dir,
    communication,
    differences,
    environment_of,
    host_file,
    keep_layer,
    kept_layers,
    now,
    own_host,
    planned_hosts,
    planned_ranks,
    processes,
    read_json,
    refuse,
    say,
    status_of,
    sweep,
    worst,
    write_exit,
)

POLL_S = 0.1  # short, so that of several ranks the first to go is seen going first
SLOW_POLL = 5  # every fifth look also searches /proc and reads the ranks' phases
STOPPED_S = 5.0  # a rank in state T for this long is reported
RESUMED_S = 30.0  # and forgotten after running for this long
LONELY_S = 60.0  # torchrun without a living rank for this long is stuck: its own clean-up takes up to 30 s
PEER_WAIT_S = 8.0  # after a failure: how long the other nodes may take to write down what they saw
TERM_GRACE_S = 15.0  # Slurm kills 30 s after its SIGTERM
BEAT_S = 3.0  # seconds between two signs of life
STEP_PHASES = ("forward", "backward", "optimizer_step")
SLOW_PHASE_FACTOR = 10  # loading, saving and compiling may take that much longer than a step


class Ranks:
    """What is known of this host's ranks: their processes, when each was last seen, and what they wrote."""

    def __init__(self, local: list[int]) -> None:
        self.local = local
        self.looks = 0
        self.pid: dict[int, int] = {}
        self.gone: dict[int, str] = {}
        self.state: dict[int, str] = {}
        self.stopped_since: dict[int, float] = {}
        self.stopped: dict[int, str] = {}
        self.resumed_since: dict[int, float] = {}
        self.progress: dict[int, tuple[object, float]] = {}
        self.told: set[tuple[int, str]] = set()
        self.inside_told = False

    def look(self) -> None:
        """Find the processes of ranks (once), then notice the ones that vanish or stand still."""
        self.looks += 1
        if self.looks % SLOW_POLL == 0:
            self.tell_inside()
        if len(self.pid) < len(self.local) and self.looks % SLOW_POLL == 0:
            self._find()
        for rank, pid in self.pid.items():
            if rank in self.gone:
                continue
            if self.looks % SLOW_POLL == 0:
                self._compare(rank, pid)
            state, _ = status_of(pid)
            if state in ("", "Z", "X"):
                self.gone[rank] = now()
                if self.result(rank) is None:
                    say(
                        f"rank {rank} (pid {pid}) ended without a result: it was killed, or died before it could report"
                    )
            elif state in ("T", "t"):
                self._stopped(rank, pid)
            elif rank in self.stopped_since:
                self._resumed(rank)
            self.state[rank] = state

    def _find(self) -> None:
        for pid in processes():
            environment = environment_of(pid)
            rank = environment.get("RANK", "")
            # Children of a rank inherit RANK; the rank itself is the child of torchrun, which has none.
            if rank.isdigit() and int(rank) in self.local and "RANK" not in environment_of(status_of(pid)[1]):
                self.pid.setdefault(int(rank), pid)

    def tell_inside(self) -> None:
        """Say what the first rank of this host found inside its runtime, where it is not what was planned."""
        report = None if self.inside_told else read_json(attempt_dir() / "logs" / own_host() / "inside.json")
        if report is None:
            return
        self.inside_told = True
        if report.get("findings") or not report.get("possible", True):
            say(report["sentence"])

    def _compare(self, rank: int, pid: int) -> None:
        """Say once where a rank's environment is not its host's file: a wrapper or the program may have changed it.

        /proc shows what the program was started with; what it changed itself, our trainer writes into placement.
        """
        seen = environment_of(pid)
        if not seen:
            return
        record = read_json(attempt_dir() / "placement" / f"{rank}.json") or {}
        own = {name: entry.get("value") for name, entry in record.get("environment", {}).items() if name in host_file()}
        seen = {name: value for name, value in {**seen, **own}.items() if value is not None}
        for line in differences(seen):
            if (rank, line) not in self.told:
                self.told.add((rank, line))
                say(f"rank {rank} {line}")

    def _stopped(self, rank: int, pid: int) -> None:
        self.resumed_since.pop(rank, None)
        since = self.stopped_since.setdefault(rank, time.monotonic())
        if rank not in self.stopped and time.monotonic() - since > STOPPED_S:
            say(f"rank {rank} (pid {pid}) is stopped (process state T) and takes no part in the job")
            self.stopped[rank] = now()

    def _resumed(self, rank: int) -> None:
        """Forget a stop only after a while: whoever ends the job lets stopped processes run first, to end them."""
        since = self.resumed_since.setdefault(rank, time.monotonic())
        if time.monotonic() - since > RESUMED_S:
            for known in (self.stopped_since, self.stopped, self.resumed_since):
                known.pop(rank, None)

    def over(self) -> bool:
        """Whether the ranks have been here and none of them lives any more."""
        if self.pid:
            return len(self.gone) == len(self.pid)
        return all(self.result(rank) is not None for rank in self.local)  # too short-lived to be seen

    def result(self, rank: int) -> dict | None:
        return read_json(attempt_dir() / "result" / f"{rank}.json")

    def stalled_for(self, stall_s: float) -> str:
        """Return a sentence once no rank of this host has made progress for too long, else an empty text."""
        clock = time.monotonic()
        youngest, phases = float("inf"), set()
        for rank in self.local:
            if rank in self.gone:
                continue
            mark, phase = self._mark(rank)
            seen, since = self.progress.get(rank, (None, clock))
            if seen != mark:
                since = clock
            self.progress[rank] = (mark, since)
            youngest = min(youngest, clock - since)
            phases.add(phase)
        limit = stall_s if phases and phases <= set(STEP_PHASES) else stall_s * SLOW_PHASE_FACTOR
        if youngest == float("inf") or youngest <= limit:
            return ""
        return f"no rank of this host has made progress for {youngest:.0f} s (phase {', '.join(sorted(phases))})"

    def _mark(self, rank: int) -> tuple[object, str]:
        """What must change while a rank works: its phase file, or its output where a program writes no phases."""
        phase = read_json(attempt_dir() / "phase" / f"{rank}.json")
        if phase is not None:
            return tuple(sorted((key, str(value)) for key, value in phase.items())), str(phase.get("phase"))
        log = attempt_dir() / "logs" / own_host() / str(rank)
        sizes = tuple(
            (log / name).stat().st_size if (log / name).exists() else 0 for name in ("stdout.log", "stderr.log")
        )
        return sizes, "not reported"

    def exit_codes(self) -> dict[int, int]:
        """Return the exit codes that torchrun's table of failures gives, which only a parent process can know."""
        log = attempt_dir() / "logs" / own_host() / "launch.log"
        text = log.read_text(errors="replace") if log.exists() else ""
        by_pid = {int(pid): int(code) for code, pid in re.findall(r"exitcode\s*:\s*(-?\d+)\s*\(pid:\s*(\d+)\)", text)}
        return {rank: by_pid[pid] for rank, pid in self.pid.items() if pid in by_pid}

    def describe(self) -> list[dict]:
        codes = self.exit_codes()
        return [
            {
                "rank": rank,
                "pid": self.pid.get(rank),
                "gone": self.gone.get(rank),
                "exit_code": codes.get(rank),
                "state": self.state.get(rank) or None,
                "stopped": self.stopped.get(rank),
                "result": self.result(rank) is not None,
            }
            for rank in self.local
        ]


def torchrun_words() -> list[str]:
    """Return torchrun's command line: static rendezvous, since node ranks come from the plan."""
    env = os.environ
    attempt = str(attempt_dir())
    words = []
    for word in shlex.split(env["RACKWEAVE_COMMAND"]):
        if word == "{megatron_args}":
            words += (attempt_dir() / "megatron.args").read_text().split("\n")[:-1]
        else:
            words.append(word.replace("{attempt}", attempt).replace("{run_dir}", env["RACKWEAVE_RUN_DIR"]))
    return [
        "torchrun",
        f"--nnodes={env['RACKWEAVE_NNODES']}",
        f"--nproc-per-node={env['RACKWEAVE_NPROC']}",
        f"--node-rank={env['RACKWEAVE_NODE_RANK']}",
        f"--master-addr={env['RACKWEAVE_MASTER_ADDR']}",
        f"--master-port={env['RACKWEAVE_MASTER_PORT']}",
        "--max-restarts=0",
        f"--log-dir={attempt}/logs/{own_host()}/torchrun",
        "--no-python",
        "bash",
        f"{attempt}/launch.sh",
        "rank",
        *words,
    ]


def keep_own_variables() -> None:
    """Write down the communication variables that launch.sh set beside the host's file, so that no rank wonders."""
    known = set(host_file()).union(*kept_layers().values())
    own = {name: value for name, value in communication(os.environ).items() if name not in known}
    keep_layer(LAUNCHER, own)


def check_port() -> None:
    """On the master: refuse early, with a sentence, where the rendezvous port is taken."""
    if os.environ["RACKWEAVE_NODE_RANK"] != "0":
        return
    number = int(os.environ["RACKWEAVE_MASTER_PORT"])
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", number))
        except OSError as error:
            raise Refusal(f"the rendezvous port {number} is taken on {own_host()} ({error.strerror})", RETRY) from error


class Beat(threading.Thread):
    """Writes a sign of life of this node, so that a node which vanishes without a word is missed within seconds.

    A thread of its own: a shared file system that does not answer holds up this file, and nothing that matters more.
    What counts is that the number goes up; nobody compares the clocks of two nodes.
    """

    def __init__(self, ranks: Ranks) -> None:
        super().__init__(daemon=True)
        self.ranks, self.told, self.longest = ranks, False, 0

    def run(self) -> None:
        path = attempt_dir() / "alive" / f"{own_host()}.json"
        for count in itertools.count(1):
            try:
                path.parent.mkdir(exist_ok=True)
                self.write(path, json.dumps(self.document(count)))
            except OSError as error:  # a full disk is no reason to end a node; it says so once
                self.tell(error)
            time.sleep(BEAT_S)

    def write(self, path: Path, text: str) -> None:
        """Write over the last sign, in one piece.

        In place: a new name each time would cost the metadata server of a thousand nodes much more. Nothing is cut off
        before, since whoever reads then, or after our end, would find an empty file; the rest of a longer sign is
        covered with spaces.
        """
        self.longest = max(self.longest, len(text))
        file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
        try:
            os.pwrite(file, (text.ljust(self.longest) + "\n").encode(), 0)
        finally:
            os.close(file)

    def tell(self, error: OSError) -> None:
        if not self.told:
            say(f"the sign of life of this node cannot be written: {error}")
        self.told = True

    def document(self, count: int) -> dict:
        """The number, and the ranks of this node that stand still (process state T), which only the node can see."""
        document = {"schema": "rackweave.alive/1", "host": own_host(), "count": count, "every_s": BEAT_S, "time": now()}
        return {**document, "stopped": sorted(self.ranks.stopped)}


class Supervisor:
    """Runs torchrun to its end, whatever the end is."""

    def __init__(self) -> None:
        self.ranks = Ranks([row["rank"] for row in planned_ranks() if row["host"] == own_host()])
        self.stall_s = float(os.environ.get("RACKWEAVE_STALL_S", "600"))
        self.signal_at: float | None = None
        self.term_sent = False
        self.child: subprocess.Popen | None = None

    def on_signal(self, number: int, frame: object) -> None:
        if self.signal_at is None:
            self.signal_at = time.monotonic()

    def run(self) -> int:
        """Start torchrun, follow it, clean up, and return the status of this node."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self.on_signal)
        words = torchrun_words()
        env = os.environ
        keep_own_variables()
        Beat(self.ranks).start()
        place = f"node rank {env['RACKWEAVE_NODE_RANK']} of {env['RACKWEAVE_NNODES']}, {env['RACKWEAVE_NPROC']} ranks"
        master = f"{env['RACKWEAVE_MASTER_ADDR']}:{env['RACKWEAVE_MASTER_PORT']}"
        say(f"{place}, master {master}: {shlex.join(words[words.index('rank') + 1 :])}")
        try:
            self.child = subprocess.Popen(words)
        except OSError as error:
            raise Refusal(f"torchrun cannot be started ({error}); is the trainer's environment installed?") from error
        stuck = self.follow(self.child)
        described = self.ranks.describe()  # before anything is killed
        if left := sweep():
            say(f"ended {left} process(es) of this attempt that torchrun had left")
        launcher_code = self.child.wait()
        code, reason = self.classify(launcher_code, stuck)
        write_exit(code, reason, launcher_code, self.signal_at is not None, described)
        say(f"ended with status {code}: {reason}")
        if code not in (DONE, SAVED) and self.signal_at is None:
            self.wait_for_peers()
        return code

    def follow(self, child: subprocess.Popen) -> str:
        """Wait for torchrun's end; return why it had to be given up, or an empty text."""
        lonely_since: float | None = None
        while child.poll() is None:
            self.ranks.look()
            if self.signal_at is not None and self.terminate(child):
                return ""
            if self.ranks.looks % SLOW_POLL:
                time.sleep(POLL_S)
                continue
            if stalled := self.ranks.stalled_for(self.stall_s):
                return stalled
            if self.ranks.over():
                lonely_since = lonely_since or time.monotonic()
                if time.monotonic() - lonely_since > LONELY_S:
                    return f"torchrun did not end in {LONELY_S:.0f} s after its last rank"
            time.sleep(POLL_S)
        self.ranks.look()
        self.ranks.tell_inside()
        return ""

    def terminate(self, child: subprocess.Popen) -> bool:
        """Hand a termination on; return True once the grace is over. A save that was asked for may finish first."""
        assert self.signal_at is not None
        waited = time.monotonic() - self.signal_at
        saving = (attempt_dir() / "save-and-exit").exists()
        if not saving and not self.term_sent:
            self.term_sent = True
            say("asked to end: " + json.dumps(self.ranks.describe()))
            child.send_signal(signal.SIGTERM)
        return waited > TERM_GRACE_S

    def classify(self, launcher_code: int, stuck: str) -> tuple[int, str]:
        """Map what the ranks wrote, and what torchrun returned, to one status and a phrase."""
        results = {rank: self.ranks.result(rank) for rank in self.ranks.local}
        written = {rank: result for rank, result in results.items() if result}
        codes = {rank: int(result.get("code", RETRY)) for rank, result in written.items()}
        missing = [rank for rank in self.ranks.local if rank not in written]
        if stuck:
            return worst([RETRY, *codes.values()]), stuck
        if launcher_code == 0 and not written:
            return DONE, "the program ended well and wrote no results"
        if written and not missing and worst(list(codes.values())) in (DONE, SAVED):
            return worst(list(codes.values())), "every rank ended well"
        if self.signal_at is not None:
            return worst([RETRY, *codes.values()]), "ended from outside (by Slurm, or because another node failed)"
        if not written and not any((attempt_dir() / "phase").iterdir()):
            return foreign_code(launcher_code, self.ranks.exit_codes())
        code = worst([*codes.values(), *([RETRY] if missing else [])])
        speaker = next((rank for rank in written if codes[rank] == code), None)
        if speaker is None or (missing and code == RETRY):
            return code, self.missing_phrase(missing)
        return code, f"rank {speaker}: {written[speaker].get('reason') or written[speaker].get('exit')}"

    def missing_phrase(self, missing: list[int]) -> str:
        """Name the ranks that wrote nothing, the first to go first: torchrun ends the others (-15) after it."""
        codes = self.ranks.exit_codes()
        first, *others = sorted(missing, key=lambda rank: (codes.get(rank) == -15, self.ranks.gone.get(rank, "~")))
        how = f" (exit code {codes[first]})" if first in codes else ""
        then = f", then rank(s) {', '.join(map(str, others))}" if others else ""
        return f"rank {first} ended without a result{how}{then}"

    def wait_for_peers(self) -> None:
        """Let the other nodes notice the failure by themselves: srun kills them as soon as this one returns."""
        others = [host for host in planned_hosts(planned_ranks()) if host != own_host()]
        deadline = time.monotonic() + PEER_WAIT_S
        while time.monotonic() < deadline and self.signal_at is None:
            if all((attempt_dir() / "logs" / host / "exit.json").exists() for host in others):
                return
            time.sleep(POLL_S)


def foreign_code(launcher_code: int, exit_codes: dict[int, int]) -> tuple[int, str]:
    """Status of a program that writes no results: a rank killed by a signal may be tried again, an error may not."""
    if launcher_code < 0:
        return RETRY, f"torchrun was killed by signal {-launcher_code}"
    killed = {rank: code for rank, code in exit_codes.items() if code < 0 and code != -15}
    if killed:
        rank, code = min(killed.items())
        return RETRY, f"rank {rank} was killed by signal {-code}"
    return STOP, f"torchrun ended with status {launcher_code} and no rank wrote a result"


def main() -> int:
    try:
        check_port()
        return Supervisor().run()
    except Refusal as refusal:
        return refuse(refusal)


if __name__ == "__main__":
    sys.exit(main())
