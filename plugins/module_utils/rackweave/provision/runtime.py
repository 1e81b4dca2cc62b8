"""The job's runtime: a virtual environment, a Docker container or a pyxis container, as words of a command line.

What is rendered here is data for the shell (arrays in ``runtime.conf``); the shell that uses it is ``runtime.sh``.
A limit is never lowered to what this machine allows: the command says what the job needs.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import ProvisionError

KINDS = ("venv", "docker", "pyxis")
WORKSPACE = "/workspace"
_STACK_BYTES = 67108864  # the value of NVIDIA's own images; "unlimited" would make each thread's stack as large
_IMAGE = re.compile(r"^[\w][\w.\-/:@+]*$")
# Variables of these families reach the container by name; everything else of the node's shell stays outside.
ENVIRONMENT_PREFIXES = (
    "RACKWEAVE_",
    "SLURM_",
    "SLURMD_",
    "NCCL_",
    "GLOO_",
    "TORCH_",
    "TORCHELASTIC_",
    "MASTER_",
    "CUDA_",
    "UCX_",
    "OMP_",
    "TRITON_",
    "DS_",
    "PYTHON",
)


@dataclass(frozen=True)
class Mount:
    """A host directory inside the container."""

    source: str
    target: str
    read_only: bool = False

    def docker(self) -> str:
        return f"{self.source}:{self.target}" + (":ro" if self.read_only else "")

    def pyxis(self) -> str:
        return f"{self.source}:{self.target}" + (":ro" if self.read_only else "")


@dataclass(frozen=True)
class JobRuntime:
    """What the job runs in.

    Args:
        kind: one of :data:`KINDS`.
        image: container image; empty for ``venv``.
        shared: directory of the shared file system; it appears as ``/workspace`` and under its own path as well, since
            the run files name absolute paths.
        mounts: further directories.
        gpus: whether GPUs are handed in.
        rdma: whether ``/dev/infiniband`` is handed in; without it NCCL falls back to sockets silently.
        extra_options: further words for ``docker run`` or ``srun``, as the operator wrote them.
        environment: names of the job's own variables; they are handed in beside the families of
            :data:`ENVIRONMENT_PREFIXES`, and win over the image's.
        modules: Python modules that the image must hold; looked for in it before the job's program starts.
    """

    kind: str
    image: str = ""
    shared: str = ""
    mounts: tuple[Mount, ...] = ()
    gpus: bool = True
    rdma: bool = True
    extra_options: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ProvisionError(f"training_job_runtime={self.kind!r} is none of {', '.join(KINDS)}")
        if self.kind == "venv":
            return
        _check_names(self.environment)
        if not _IMAGE.match(self.image):
            raise ProvisionError(
                f"training_job_runtime={self.kind} needs an image reference such as "
                f"nvcr.io/nvidia/pytorch:24.08-py3, not {self.image!r}"
            )
        if not self.shared.startswith("/"):
            raise ProvisionError(f"the shared directory {self.shared!r} is not an absolute path")
        for mount in self.all_mounts:
            if not (mount.source.startswith("/") and mount.target.startswith("/")) or re.search(
                r"[:,\s]", mount.source + mount.target
            ):
                raise ProvisionError(
                    f"mount {mount.source!r} -> {mount.target!r}: both must be absolute paths "
                    "without colon, comma or space"
                )

    @property
    def all_mounts(self) -> tuple[Mount, ...]:
        """The shared directory under both of its names, then the operator's mounts."""
        own: tuple[Mount, ...] = (Mount(self.shared, WORKSPACE),)
        if self.shared != WORKSPACE:
            own += (Mount(self.shared, self.shared),)
        return own + self.mounts


def _check_names(names: Sequence[str]) -> None:
    wrong = [name for name in names if not re.match(r"^[A-Za-z_][A-Za-z0-9_]*$", name)]
    if wrong:
        raise ProvisionError(f"{', '.join(wrong)}: no names of environment variables")


def container_name(job_id: str) -> str:
    """Return the name of the job's container on each of its nodes."""
    if not re.match(r"^\d+(_\d+)?$", job_id):
        raise ProvisionError(f"{job_id!r} is not a Slurm job id")
    return f"rackweave-{job_id}"


def docker_options(runtime: JobRuntime) -> tuple[str, ...]:
    """Return the words after ``docker run`` that do not depend on the job: namespaces, limits, devices, mounts."""
    words = ["--rm", "--init"]
    if runtime.gpus:
        words += ["--gpus", "all"]
    words += ["--ipc=host", "--network=host", "--ulimit", "memlock=-1", "--ulimit", f"stack={_STACK_BYTES}"]
    if runtime.rdma:
        words += ["--device", "/dev/infiniband", "--cap-add", "IPC_LOCK"]
    for mount in runtime.all_mounts:
        words += ["-v", mount.docker()]
    return tuple(words) + runtime.extra_options


def docker_command(
    runtime: JobRuntime, *, job_id: str, user: str, environment: Sequence[str], command: Sequence[str]
) -> tuple[str, ...]:
    """Return the whole command of one node.

    Args:
        runtime: of kind ``docker``.
        job_id: Slurm's; names and labels the container, so that the epilog finds what a killed launcher left.
        user: ``uid:gid`` the job runs as.
        environment: names of variables; values come from the caller's environment and show in no process list.
        command: what runs inside.
    """
    if runtime.kind != "docker":
        raise ProvisionError(f"runtime {runtime.kind} has no docker command")
    if not re.match(r"^\d+:\d+$", user):
        raise ProvisionError(f"user {user!r} is not uid:gid; a job never runs as an unnamed user")
    names = sorted({*environment, *runtime.environment})
    _check_names(names)
    name = container_name(job_id)
    words = ["docker", "run", "--name", name, "--label", f"rackweave.job={job_id}", "--user", user]
    words += docker_options(runtime)
    for variable in names:
        words += ["--env", variable]
    return (*words, "--workdir", WORKSPACE, runtime.image, *command)


def pyxis_options(runtime: JobRuntime) -> tuple[str, ...]:
    """Return the options of the one ``srun`` that starts the launchers inside a pyxis container.

    enroot keeps the host's network and IPC namespaces; the job asserts that inside (``runtime.sh check``), it is not
    taken for granted. Docker references are translated: pyxis separates registry and path by ``#``.
    """
    if runtime.kind != "pyxis":
        raise ProvisionError(f"runtime {runtime.kind} has no pyxis options")
    mounts = list(runtime.all_mounts)
    if runtime.rdma:
        mounts.append(Mount("/dev/infiniband", "/dev/infiniband"))
    # pyxis lets the image's variables win over the job's, except over those that are named.
    own = (f"--container-env={','.join(sorted(set(runtime.environment)))}",) if runtime.environment else ()
    return (
        f"--container-image={enroot_reference(runtime.image)}",
        f"--container-mounts={','.join(mount.pyxis() for mount in mounts)}",
        f"--container-workdir={WORKSPACE}",
        "--no-container-mount-home",
        "--no-container-remap-root",
        *own,
        *runtime.extra_options,
    )


def enroot_reference(image: str) -> str:
    """Return an image reference in pyxis's form: ``nvcr.io/nvidia/pytorch:1`` -> ``nvcr.io#nvidia/pytorch:1``.

    The first part is a registry if it has a dot or a port, as Docker decides it; a path to a squash file stays.
    """
    if image.startswith("/") or "#" in image:
        return image
    first, slash, rest = image.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return f"{first}#{rest}"
    return image


def runtime_conf(runtime: JobRuntime, allowed: Sequence[str] | None = None) -> str:
    """Return ``runtime.conf``, the settings that ``runtime.sh`` reads: shell assignments, each value quoted.

    Args:
        runtime: the job's runtime.
        allowed: prefixes of variables handed into the container; default :data:`ENVIRONMENT_PREFIXES`.
    """
    values: dict[str, Sequence[str]] = {
        "RACKWEAVE_RUNTIME_OPTIONS": docker_options(runtime) if runtime.kind == "docker" else (),
        "RACKWEAVE_SRUN_OPTIONS": pyxis_options(runtime) if runtime.kind == "pyxis" else (),
        "RACKWEAVE_ENVIRONMENT_PREFIXES": tuple(allowed if allowed is not None else ENVIRONMENT_PREFIXES),
        "RACKWEAVE_ENVIRONMENT_NAMES": tuple(sorted(set(runtime.environment))),
        "RACKWEAVE_MODULES": runtime.modules if runtime.kind != "venv" else (),
    }
    lines = [f"RACKWEAVE_RUNTIME={shlex.quote(runtime.kind)}", f"RACKWEAVE_IMAGE={shlex.quote(runtime.image)}"]
    lines += [f"{name}=({' '.join(shlex.quote(word) for word in words)})" for name, words in values.items()]
    return "\n".join(lines) + "\n"


def job_runtime(settings: Mapping[str, object]) -> JobRuntime:
    """Return the runtime that the variables ``training_job_runtime*`` describe.

    Keys: ``kind``, ``image``, ``shared``, ``mounts`` (list of ``{source, target, read_only}``), ``gpus``, ``rdma``,
    ``extra_options``, ``environment`` (names, or a mapping whose keys are taken), ``modules``.

    Raises:
        ProvisionError: for an unknown key or a value that cannot work.
    """
    known = {"kind", "image", "shared", "mounts", "gpus", "rdma", "extra_options", "environment", "modules"}
    unknown = sorted(set(settings) - known)
    if unknown:
        raise ProvisionError(f"job runtime: unknown key {', '.join(unknown)}; known are {', '.join(sorted(known))}")
    mounts = settings.get("mounts") or ()
    options = settings.get("extra_options") or ()
    if not isinstance(mounts, (list, tuple)) or not isinstance(options, (list, tuple)):
        raise ProvisionError("job runtime: mounts and extra_options must be lists")
    return JobRuntime(
        kind=str(settings.get("kind", "venv")),
        image=str(settings.get("image") or ""),
        shared=str(settings.get("shared") or ""),
        mounts=tuple(_mount(row) for row in mounts),
        gpus=bool(settings.get("gpus", True)),
        rdma=bool(settings.get("rdma", True)),
        extra_options=tuple(str(word) for word in options),
        environment=tuple(str(name) for name in _names(settings.get("environment"))),
        modules=tuple(str(name) for name in _names(settings.get("modules"))),
    )


def _names(given: object) -> Sequence[object]:
    if given is None or isinstance(given, (list, tuple, Mapping)):
        return tuple(given or ())
    raise ProvisionError(f"job runtime: environment and modules must be names or a mapping, not {given!r}")


def _mount(row: object) -> Mount:
    if not isinstance(row, dict) or not {"source", "target"} <= set(row) <= {"source", "target", "read_only"}:
        raise ProvisionError(f"job runtime: mount {row!r} is not a dictionary of source, target and read_only")
    return Mount(str(row["source"]), str(row["target"]), bool(row.get("read_only", False)))
