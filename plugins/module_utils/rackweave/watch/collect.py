"""What to collect on a node before anything is killed: commands with their own time limits, and how to read them.

Each collector reports ``ok``, ``failed``, ``timeout`` or ``absent`` for itself: a verdict on partial evidence says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# Port counters that count payload: names below ports/<n>/counters; data counters are in 4-byte words.
WORD_BYTES = 4
# Over this much traffic of a network device per byte of RDMA, the job is not on RDMA.
SOCKET_SHARE = 0.5
# Below this rate, in bytes per second, nothing can be said of a transport.
QUIET_BYTES_PER_SECOND = 1e6


@dataclass(frozen=True)
class Collector:
    """One command on a node.

    Attributes:
        name: also the file name of its output.
        argv: the command; ``{pid}`` runs it once for each process of the job, ``{job}`` and ``{since}`` are replaced.
        limit_s: seconds after which it is stopped and reported as ``timeout``.
        shows: what a reader finds in it.
    """

    name: str
    argv: tuple[str, ...]
    limit_s: float
    shows: str


# In the order of their worth: the first ones answer before a time-out does and are lost with the process.
COLLECTORS = (
    Collector(
        "ncclras", ("ncclras", "-v"), 10.0, "NCCL's own view of ranks (2.24 and later): lagging, incomplete, dead"
    ),
    # Without --nonblocking it would pause each process while it reads: what hangs stands still anyway, and a rank that
    # does not hang is not to be touched.
    Collector(
        "stacks",
        ("py-spy", "dump", "--nonblocking", "--pid", "{pid}"),
        20.0,
        "Python stack of each process of the job; some tenths of a second for each",
    ),
    Collector(
        "processes",
        ("ps", "-eo", "pid,ppid,stat,wchan:32,etimes,rss,args:200", "--sort=pid"),
        5.0,
        "states; D is a wait in the kernel, T is stopped",
    ),
    Collector(
        "kernel",
        ("journalctl", "-k", "-o", "short-iso", "--no-pager", "--since", "{since}"),
        10.0,
        "Xid, SXid, mlx5, oom, lockups since the job began",
    ),
    Collector("dmesg", ("dmesg", "-T"), 5.0, "the same where there is no journal"),
    Collector(
        "gpus",
        (
            "nvidia-smi",
            "--query-gpu=index,uuid,pci.bus_id,memory.used,utilization.gpu,clocks_event_re"
            "asons.active,ecc.errors.uncorrected.volatile.total",
            "--format=csv",
        ),
        10.0,
        "state of the GPUs; hangs where a GPU is lost",
    ),
    Collector(
        "gpu_processes",
        ("nvidia-smi", "--query-compute-apps=pid,gpu_uuid,used_memory", "--format=csv"),
        10.0,
        "who holds memory on which GPU",
    ),
    Collector("slurm_job", ("scontrol", "--oneliner", "show", "job", "{job}"), 10.0, "Slurm's view of the job"),
    Collector(
        "slurm_reasons",
        ("sinfo", "-R", "-h", "-o", "%50E %12U %19H %N"),
        10.0,
        "nodes that are drained or down, and why",
    ),
)

BY_NAME = {collector.name: collector for collector in COLLECTORS}


def command(collector: Collector, job: str, since: str, pid: int | None = None) -> list[str]:
    """Fill in a collector's command; each word stays one word, so no shell can misread it."""
    values = {"{job}": job, "{since}": since, "{pid}": str(pid) if pid is not None else ""}
    return [values.get(word, word) for word in collector.argv]


def needs_pid(collector: Collector) -> bool:
    """Whether it runs once for each process."""
    return "{pid}" in collector.argv


def job_processes(
    listing: str, marks: Sequence[str] = ("trainer", "pretrain", "torchrun", "torch.distributed")
) -> list[int]:
    """Process ids of the job's ranks in a ``ps`` listing with columns pid, ppid, stat, wchan, etimes, rss, args.

    A rank is a Python process whose command names one of ``marks`` and that is no launcher itself.
    """
    found = []
    for line in listing.splitlines():
        columns = line.split(None, 6)
        if len(columns) < 7 or not columns[0].isdigit():
            continue
        text = columns[6]
        launcher = "torchrun" in text or "torch.distributed.run" in text or "torch.distributed.launch" in text
        if "python" in text and any(mark in text for mark in marks) and not launcher:
            found.append(int(columns[0]))
    return found


def rank_processes(environments: Mapping[int, Mapping[str, str]], parents: Mapping[int, int], job: str) -> list[int]:
    """Process ids of a job's ranks, whatever program they run, by what torchrun and Slurm gave them.

    Args:
        environments: environment by process id.
        parents: parent by process id; a child of a rank inherits RANK, the rank itself has a launcher above it.
        job: Slurm's number of the job.
    """
    ranks = {
        pid
        for pid, environment in environments.items()
        if environment.get("RANK", "").isdigit() and _belongs(environment, job)
    }
    return sorted(pid for pid in ranks if parents.get(pid) not in ranks)


def _belongs(environment: Mapping[str, str], job: str) -> bool:
    attempt = environment.get("RACKWEAVE_ATTEMPT", "").rsplit("/", 1)[-1]
    return job in (environment.get("SLURM_JOB_ID"), attempt.partition(".")[0])


def stopped_processes(listing: str) -> dict[int, str]:
    """Processes that cannot run: ``T`` (stopped by a signal) or ``D`` (waiting in the kernel), by process id."""
    states = {}
    for line in listing.splitlines():
        columns = line.split(None, 6)
        if len(columns) == 7 and columns[0].isdigit() and columns[2][:1] in ("T", "D"):
            states[int(columns[0])] = columns[2][:1]
    return states


@dataclass(frozen=True)
class Traffic:
    """What moved through a node's ports between two readings; bytes per second."""

    rdma_bytes_per_second: float
    netdev_bytes_per_second: float
    errors: tuple[str, ...]

    @property
    def on_sockets(self) -> bool:
        """Whether the job's traffic goes through network devices instead of RDMA."""
        if self.netdev_bytes_per_second < QUIET_BYTES_PER_SECOND:
            return False
        return self.netdev_bytes_per_second > SOCKET_SHARE * max(self.rdma_bytes_per_second, 1.0)


# Counters that must not move while a job runs.
ERROR_COUNTERS = (
    "symbol_error",
    "link_downed",
    "link_error_recovery",
    "port_rcv_errors",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "local_ack_timeout_err",
    "packet_seq_err",
    "out_of_sequence",
    "rnr_nak_retry_err",
    "rx_discards_phy",
    "roce_adp_retrans_to",
)


def traffic(before: Mapping[str, int], after: Mapping[str, int], seconds: float) -> Traffic:
    """Compare two readings of port and device counters.

    Args:
        before: counters by ``device:port/name`` (RDMA) and ``interface/tx_bytes`` or ``rx_bytes``.
        after: the same, later; a counter that went back (reset) counts as nothing.
        seconds: between the readings.
    """
    span = max(seconds, 1e-3)
    moved = {name: after[name] - before[name] for name in after if name in before and after[name] >= before[name]}
    rdma = sum(
        delta * WORD_BYTES for name, delta in moved.items() if name.endswith(("/port_xmit_data", "/port_rcv_data"))
    )
    plain = sum(delta for name, delta in moved.items() if name.endswith(("/tx_bytes", "/rx_bytes")))
    errors = tuple(
        f"{name} +{delta}"
        for name, delta in sorted(moved.items())
        if delta and name.rsplit("/", 1)[-1] in ERROR_COUNTERS
    )
    return Traffic(rdma / span, plain / span, errors)
