"""Helper of job.sbatch and launch.sh: the parts of a launch that want more than a shell. Runs on nodes, stdlib only.

It is copied into the attempt directory with the other run files and reads nothing but that directory, its own
environment and /proc. Status values: 0 done, 64 stop, 75 retry, 76 retry on other nodes, 77 saved on request.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

DONE, STOP, RETRY, RETRY_ELSEWHERE, SAVED = 0, 64, 75, 76, 77
SEVERITY = (DONE, SAVED, RETRY, RETRY_ELSEWHERE, STOP)

ENVIRONMENT_PREFIXES = ("NCCL_", "TORCH_NCCL_", "TORCH_FR_", "GLOO_")
JOB, IMAGE, NODE, LAUNCHER = "job environment", "image", "node", "launch.sh"
ORIGINS = {
    JOB: "the job environment",
    IMAGE: "the image",
    NODE: "the node (task prolog or Slurm)",
    LAUNCHER: "launch.sh",
}
PROGRAM = "the program, its image or a wrapper"
PORT_BASE, PORT_SPAN = 20000, 12000  # below the kernel's ephemeral range, which begins at 32768


class Refusal(Exception):
    """A launch that must not go on; the text is the sentence for the user, the code says whether to try again."""

    def __init__(self, sentence: str, code: int = STOP) -> None:
        super().__init__(sentence)
        self.code = code


def now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def attempt_dir() -> Path:
    return Path(os.environ["RACKWEAVE_ATTEMPT"])


def own_host() -> str:
    return os.environ.get("SLURMD_NODENAME") or os.environ.get("RACKWEAVE_HOST") or socket.gethostname().split(".")[0]


def say(text: str) -> None:
    """One line in the node's own log, and in the job's log where launch.sh kept it open as descriptor 3."""
    line = f"{now()} rackweave[{own_host()}]: {text}\n"
    sys.stderr.write(line)
    sys.stderr.flush()
    with contextlib.suppress(OSError):  # no descriptor 3: not started by launch.sh, and the line is in the log already
        os.write(3, line.encode())


def write_json(path: Path, document: dict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(json.dumps(document, indent=2) + "\n")
    part.replace(path)


def read_json(path: Path) -> dict | None:
    """Return an object, or None where the file is missing or half written."""
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def worst(codes: list[int]) -> int:
    return max((code if code in SEVERITY else RETRY for code in codes), key=SEVERITY.index, default=DONE)


# --- the plan ------------------------------------------------------------------------------------------------------


def planned_ranks() -> list[dict]:
    plan = read_json(attempt_dir() / "plan.json")
    if plan is None:
        raise Refusal(f"{attempt_dir() / 'plan.json'} cannot be read; launch the run again")
    return plan["ranks"]


def planned_hosts(ranks: list[dict]) -> list[str]:
    """Hosts in node-rank order: the order of their first rank, not the alphabet."""
    return list(dict.fromkeys(row["host"] for row in ranks))


def port(job_id: int, restart: int) -> int:
    """Another port for each job and each of its first eight starts, so that none meets a socket of the last one."""
    return PORT_BASE + (8 * job_id + restart % 8) % PORT_SPAN


def node_settings() -> dict[str, str]:
    ranks = planned_ranks()
    hosts = planned_hosts(ranks)
    if own_host() not in hosts:
        raise Refusal(f"this node is {own_host()}, but the plan is for {', '.join(hosts)}; make a plan for these nodes")
    return {
        "RACKWEAVE_NODE_RANK": str(hosts.index(own_host())),
        "RACKWEAVE_NNODES": str(len(hosts)),
        "RACKWEAVE_NPROC": str(sum(row["host"] == own_host() for row in ranks)),
        "RACKWEAVE_MASTER_ADDR": hosts[0],
        "RACKWEAVE_MASTER_PORT": str(
            port(int(os.environ["SLURM_JOB_ID"]), int(os.environ.get("RACKWEAVE_RESTART", 0)))
        ),
    }


def command_open() -> int:
    """Compare what Slurm allocated with what was planned, and write attempt.json."""
    names = subprocess.run(
        ["scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"]], check=True, capture_output=True, text=True
    ).stdout.split()
    hosts = planned_hosts(planned_ranks())
    write_json(
        attempt_dir() / "attempt.json",
        {
            "schema": "rackweave.attempt/1",
            "run": os.environ["RACKWEAVE_RUN"],
            "job_id": os.environ["SLURM_JOB_ID"],
            "restart": int(os.environ.get("RACKWEAVE_RESTART", 0)),
            "hosts": names,
            "started": now(),
            "world_size": len(planned_ranks()),
        },
    )
    write_json(attempt_dir() / "environment.json", {JOB: communication(os.environ)})
    if set(names) != set(hosts):
        raise Refusal(
            f"Slurm allocated {', '.join(sorted(names))}, but the plan is for {', '.join(sorted(hosts))}; "
            "make a plan for these nodes, or ask Slurm for the planned ones"
        )
    return DONE


def command_node() -> int:
    keep_environment()
    for name, value in node_settings().items():
        sys.stdout.write(f"export {name}={shlex.quote(value)}\n")
    return DONE


# --- what reached the ranks ------------------------------------------------------------------------------------------


def host_file() -> dict[str, str]:
    """Return the pairs of this host's own file as launch.sh exports them."""
    try:
        lines = (attempt_dir() / "nccl" / f"{own_host()}.conf").read_text().split("\n")
    except OSError:
        return {}
    return {name: value for name, equals, value in (line.partition("=") for line in lines if line[:1] != "#") if equals}


def communication(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that decide how ranks communicate."""
    return {name: value for name, value in sorted(environment.items()) if name.startswith(ENVIRONMENT_PREFIXES)}


def layers_file() -> Path:
    return attempt_dir() / "logs" / own_host() / "environment.json"


def kept_layers() -> dict[str, dict[str, str]]:
    """Return the environments that were there before the host's file, by their origin."""
    return read_json(layers_file()) or {}


def keep_layer(origin: str, variables: dict[str, str]) -> None:
    """Write down what one origin brought, and say where it differs from this host's file."""
    write_json(layers_file(), {**kept_layers(), origin: variables})
    if origin == LAUNCHER:
        return
    planned = host_file()
    for name, value in variables.items():
        if name not in planned:
            say(f"{name}={value} comes from {ORIGINS[origin]}; nothing was planned for it")
        elif planned[name] != value:
            say(f"{name}={value} of {ORIGINS[origin]} is replaced by this host's file: {name}={planned[name]}")


def keep_environment() -> None:
    """Write down what was there before this host's file is exported: of the job, or of what came in between.

    srun hands the batch script's environment on. What is another here came from the image where Slurm itself started
    the container (pyxis lets an image's own variables win), from the node elsewhere.
    """
    seen = communication(os.environ)
    job = (read_json(attempt_dir() / "environment.json") or {}).get(JOB, seen)
    keep_layer(JOB, {name: value for name, value in seen.items() if job.get(name) == value})
    other = {name: value for name, value in seen.items() if job.get(name) != value}
    if other:
        keep_layer(IMAGE if os.environ.get("RACKWEAVE_RUNTIME") == "pyxis" else NODE, other)


def command_image() -> int:
    """Inside a container that was started by this node: what is there beside what was handed in is the image's."""
    handed = {name: value for layer in kept_layers().values() for name, value in layer.items()} | host_file()
    keep_layer(IMAGE, {name: value for name, value in communication(os.environ).items() if handed.get(name) != value})
    return DONE


def differences(seen: dict[str, str]) -> list[str]:
    """Return a sentence for each communication variable of a rank that is not what launch.sh gave it.

    To be called below launch.sh, in the environment that it made.
    """
    planned, kept = host_file(), kept_layers()
    lines = []
    for name, value in planned.items():
        if name not in seen:
            lines.append(f"lacks {name}={value} of its host's file")
        elif seen[name] != value:
            known = [ORIGINS[origin] for origin, layer in kept.items() if layer.get(name) == seen[name]]
            origin = known[0] if known else PROGRAM
            lines.append(f"has {name}={seen[name]} from {origin} where its host's file says {value}")
    for name, value in communication(seen).items():
        if name not in planned and os.environ.get(name) != value:
            lines.append(f"has {name}={value} from {PROGRAM}; nothing was planned for it")
    return lines


# --- processes of this attempt ---------------------------------------------------------------------------------------


def environment_of(pid: int) -> dict[str, str]:
    """Return a process's environment, empty for one that is gone or not ours."""
    try:
        pairs = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    return {
        key.decode(errors="replace"): value.decode(errors="replace")
        for key, _, value in (p.partition(b"=") for p in pairs)
    }


def status_of(pid: int) -> tuple[str, int]:
    """Return state letter and parent of a process; ("", 0) for one that is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return "", 0
    state, parent = text[text.rindex(")") + 2 :].split()[:2]
    return state, int(parent)


def processes() -> list[int]:
    """Return the processes of this attempt on this host; this one, its ancestors and a container's init left out."""
    spared = {1}
    pid = os.getpid()
    while pid > 1:
        spared.add(pid)
        pid = status_of(pid)[1]
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) in spared:
            continue
        environment = environment_of(int(entry))
        if (
            environment.get("RACKWEAVE_ATTEMPT") == str(attempt_dir())
            and environment.get("RACKWEAVE_HOST") == own_host()
            and status_of(int(entry))[0] != "Z"
        ):
            found.append(int(entry))
    return found


def sweep() -> int:
    """Kill every process of this attempt on this host, stopped ones included; return how many there were."""
    killed: set[int] = set()
    deadline = time.monotonic() + 10
    while left := processes():
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
        killed.update(left)
        if time.monotonic() > deadline:
            say(f"processes {', '.join(map(str, left))} do not die (state {', '.join(status_of(p)[0] for p in left)})")
            break
        time.sleep(0.1)
    return len(killed)


def command_sweep() -> int:
    count = sweep()
    if count:
        say(f"ended {count} leftover process(es) of this attempt")
    return DONE


# --- how nodes and the job ended


def write_exit(code: int, reason: str, launcher_code: int | None, terminated: bool, ranks: list[dict]) -> None:
    hosts = planned_hosts(planned_ranks())
    write_json(
        attempt_dir() / "logs" / own_host() / "exit.json",
        {
            "schema": "rackweave.exit/1",
            "host": own_host(),
            "node_rank": hosts.index(own_host()) if own_host() in hosts else None,
            "code": code,
            "reason": reason,
            "launcher_code": launcher_code,
            "terminated": terminated,
            "time": now(),
            "ranks": ranks,
        },
    )


def job_code(srun_code: int) -> int:
    """Return the status of the job from what all nodes wrote.

    A node that was ended because another failed speaks only through the results its ranks had written by then.
    """
    exits = [found for path in attempt_dir().glob("logs/*/exit.json") if (found := read_json(path))]
    results = [found for path in attempt_dir().glob("result/*.json") if (found := read_json(path))]
    codes = [int(item["code"]) for item in exits if not item["terminated"]]
    codes += [int(item["code"]) for item in results if "code" in item]
    code = worst(codes)
    if code == DONE and srun_code != 0:
        return STOP if srun_code == STOP else RETRY
    if code == DONE and not exits and not results:
        return RETRY
    return code


def command_close(code: int, srun_code: int | None, requeued: bool, reason: str) -> int:
    exits = [found for path in sorted(attempt_dir().glob("logs/*/exit.json")) if (found := read_json(path))]
    if not reason:
        exits.sort(key=lambda item: item["terminated"])  # who failed by itself speaks before who was ended
        own = [f"{item['host']}: {item['reason']}" for item in exits if item["code"] == code]
        reason = own[0] if own else f"srun ended with status {srun_code}"
    write_json(
        attempt_dir() / "end.json",
        {
            "schema": "rackweave.end/1",
            "code": code,
            "reason": reason,
            "srun_code": srun_code,
            "requeued": requeued,
            "time": now(),
        },
    )
    return DONE


def refuse(refusal: Refusal, terminated: bool = False) -> int:
    """Say why this node does not start, leave it where the watcher finds it, and return the status."""
    say(f"refused: {refusal}")
    write_exit(refusal.code, str(refusal), None, terminated, [])
    return refusal.code


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=["open", "node", "image", "refuse", "sweep", "verdict", "close"])
    parser.add_argument("--code", type=int, default=DONE)
    parser.add_argument("--srun-code", type=int)
    parser.add_argument("--requeue", choices=["yes", "no"], default="no")
    parser.add_argument("--reason", default="")
    parser.add_argument("--terminated", action="store_true")
    arguments = parser.parse_args()
    if arguments.command == "refuse":
        return refuse(Refusal(arguments.reason, arguments.code or STOP), arguments.terminated)
    if arguments.command in ("sweep", "image"):
        return command_sweep() if arguments.command == "sweep" else command_image()
    if arguments.command == "verdict":
        sys.stdout.write(f"{job_code(arguments.srun_code or 0)}\n")
        return DONE
    if arguments.command == "close":
        return command_close(arguments.code, arguments.srun_code, arguments.requeue == "yes", arguments.reason)
    if arguments.command == "node":
        try:
            return command_node()
        except Refusal as refusal:
            return refuse(refusal)
    try:
        return command_open()
    except Refusal as refusal:
        say(f"refused: {refusal}")
        command_close(refusal.code, None, False, str(refusal))
        return refusal.code


if __name__ == "__main__":
    sys.exit(main())
