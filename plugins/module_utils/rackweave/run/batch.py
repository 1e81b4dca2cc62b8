"""``job.sbatch``: directives and settings of one run, in front of a static body that no template touches.

What must be expanded on a node stays in ``launch.sh``; here only values of the plan are written, each quoted.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..errors import DocumentError
from .plan_file import RunPlan

JOB_NAME_PREFIX = "rackweave-"

_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")
MOST_S = 60 * (2**31 - 1)  # Slurm keeps limits as whole minutes in 32 bits
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OPTION = re.compile(r"--[a-z][a-z0-9-]*(=\S.*)?")


@dataclass(frozen=True)
class BatchSettings:
    """How a run is submitted; paths are those of the shared file system, durations are in seconds."""

    run: str
    run_dir: str
    venv: str
    command: tuple[str, ...]
    time_limit_s: int
    save_signal_s: int
    stall_s: int
    requeue_ok: bool
    max_restarts: int
    gpus_per_node: int
    gres: str = "gpu"
    exclusive: bool = True
    partition: str = ""
    account: str = ""
    qos: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    sbatch_options: tuple[str, ...] = ()


def job_name(run: str) -> str:
    """Return the Slurm job name of a run, by which a live job is found again."""
    return JOB_NAME_PREFIX + run


def check_run_name(run: str) -> None:
    """Refuse a run name that is no plain directory name.

    Raises:
        DocumentError: naming what is allowed.
    """
    if not _RUN_NAME.fullmatch(run):
        raise DocumentError(
            f"run name {run!r} cannot be used: up to 64 letters, digits, dots, dashes and underscores, "
            "beginning with a letter or digit"
        )


def render_batch(settings: BatchSettings, plan: RunPlan, body: str) -> str:
    """Return the text of ``job.sbatch``: shebang, directives, settings as shell variables, body.

    Raises:
        DocumentError: for a value that would end a line, or a name that Slurm or the shell would misread.
    """
    _check(settings, plan)
    lines = ["#!/bin/bash", *(f"#SBATCH {option}" for option in _options(settings, plan)), ""]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in settings.environment.items()]
    lines += [f"{name}={shlex.quote(value)}" for name, value in _variables(settings).items()]
    return "\n".join(lines) + "\n\n" + body.lstrip("\n")


def _options(settings: BatchSettings, plan: RunPlan) -> list[str]:
    options = [
        f"--job-name={job_name(settings.run)}",
        f"--nodes={len(plan.hosts)}",
        "--ntasks-per-node=1",
        f"--nodelist={','.join(plan.hosts)}",
        f"--time={slurm_duration(settings.time_limit_s)}",
        f"--signal=B:USR1@{settings.save_signal_s}",
        f"--output={settings.run_dir}/slurm-%j.out",
        "--open-mode=append",
        "--requeue" if settings.requeue_ok else "--no-requeue",
    ]
    if settings.gres:
        options.append(f"--gres={settings.gres}:{settings.gpus_per_node}")
    if settings.exclusive:
        options.append("--exclusive")
    for name in ("partition", "account", "qos"):
        if getattr(settings, name):
            options.append(f"--{name}={getattr(settings, name)}")
    return options + list(settings.sbatch_options)


def _variables(settings: BatchSettings) -> dict[str, str]:
    return {
        "RACKWEAVE_RUN": settings.run,
        "RACKWEAVE_RUN_DIR": settings.run_dir,
        "RACKWEAVE_VENV": settings.venv,
        "RACKWEAVE_COMMAND": shlex.join(settings.command),
        "RACKWEAVE_STALL_S": str(settings.stall_s),
        "RACKWEAVE_REQUEUE": "1" if settings.requeue_ok else "0",
        "RACKWEAVE_MAX_RESTARTS": str(settings.max_restarts),
    }


def slurm_duration(seconds: int) -> str:
    """Return a duration as Slurm writes it, ``days-hours:minutes:seconds``, rounded up to whole minutes."""
    minutes = max(1, -(-seconds // 60))
    days, rest = divmod(minutes, 24 * 60)
    return f"{days}-{rest // 60:02d}:{rest % 60:02d}:00"


def _check(settings: BatchSettings, plan: RunPlan) -> None:
    check_run_name(settings.run)
    texts: Sequence[str] = (
        settings.run_dir,
        settings.venv,
        settings.gres,
        settings.partition,
        settings.account,
        settings.qos,
        *settings.command,
        *settings.environment.values(),
        *settings.sbatch_options,
    )
    for text in texts:
        if any(ord(character) < 32 for character in text):
            raise DocumentError(f"{text!r} holds a line break or control character, which a batch script cannot carry")
    for path in (settings.run_dir, settings.venv):
        if not path.startswith("/") or " " in path or "%" in path:
            raise DocumentError(
                f"path {path!r} must be absolute, without blanks and percent signs (Slurm expands them)"
            )
    for host in plan.hosts:
        if not _HOST_NAME.fullmatch(host):
            raise DocumentError(f"host {host!r} of the plan is no name that Slurm's node list can hold")
    for name in settings.environment:
        if not _VARIABLE.fullmatch(name):
            raise DocumentError(f"{name!r} in the job's environment is no variable name")
    for option in settings.sbatch_options:
        if not _OPTION.fullmatch(option):
            raise DocumentError(f"batch option {option!r} must read --name or --name=value")
    _check_command(settings.command)
    uneven = {
        host: len(plan.ranks_on(host)) for host in plan.hosts if len(plan.ranks_on(host)) != settings.gpus_per_node
    }
    if uneven:
        host, count = next(iter(uneven.items()))
        raise DocumentError(
            f"the plan puts {count} ranks on {host}, but {settings.gpus_per_node} GPUs are asked for on each node"
        )
    if settings.time_limit_s > MOST_S:
        raise DocumentError(
            f"a time limit of {settings.time_limit_s} s is more than the {MOST_S} s that Slurm can count"
        )
    if settings.save_signal_s >= settings.time_limit_s:
        raise DocumentError(
            f"the save signal would come {settings.save_signal_s} s before a time limit of {settings.time_limit_s} s; "
            "raise the limit or lower the signal time"
        )


def _check_command(command: Sequence[str]) -> None:
    """Refuse a command that is none, or a whole line given as one word: torchrun would look for a file of that name."""
    if not command or not command[0].strip():
        raise DocumentError("the job has no command to run")
    if len(command) == 1 and len(command[0].split()) > 1:
        words = ", ".join(command[0].split())
        raise DocumentError(f"the command {command[0]!r} is one word; give its words as a list: [{words}]")
