"""File systems: errno texts of Python, kernel messages of block devices, NFS, Lustre, GPFS, Ceph, BeeGFS."""

from __future__ import annotations

from ..signature import Signature as S

# Threads of the kernel that wait for no file system: a stall of theirs is one of the host.
KERNEL_THREADS = (
    r"kcompactd|khugepaged|kswapd|migration/|rcu_|ksoftirqd|cpuhp|kthreadd|watchdog|nv_queue|nvidia-modeset"
)

TABLE = (
    S(
        "storage.io_error/errno",
        "storage.io_error",
        r"\[Errno (?:5|121|30)\] (?:Input/output error|Remote I/O error|Read-only file system)|(?:^|: "
        r")Input/output error\b|\(os error 5\)|(?:errno|error|failed with|rc)\W{1,3}-?EIO\b|: Read-only "
        r"file system\b",
        "[rank22]: OSError: [Errno 5] Input/output error",
        blame="both",
        depth=18,
    ),
    S(
        "storage.io_error/kernel",
        "storage.io_error",
        r"(?:Buffer )?I/O error(?:,| on) dev|blk_update_request: .*I/O error|EXT4-fs error|XFS \(\S+\): "
        r".*(?:I/O error|[Cc]orruption|[Ss]hutting down)|nvme\d* ?nvme\d+: .*(?:controller is down|I/O "
        r"\d+ .*timeout|Device not ready)|"
        r"Remounting filesystem read-only|critical (?:medium|target) error",
        "host4 kernel: blk_update_request: I/O error, dev nvme0n1, sector 1234 op 0x0:(READ)",
        blame="host",
        depth=17,
        unless=r"completion polled",
    ),
    S(
        "storage.quota/errno",
        "storage.quota",
        r"(?i:disk quota exceeded)|\[Errno 122\]|\bEDQUOT\b|(?i:quota (?:limit )?(?:has been )?(?:exceeded|reached))|"
        r"(?i:no space left on device).*(?:/tmp/|/var/|\.cache|/wandb|triton|inode)|(?i:(?:out of|no free|"
        r"no more) inodes|inodes? (?:usage|use)?.{0,20}100 ?%)",
        "[rank0]: OSError: [Errno 122] Disk quota exceeded: '/home/user/ckpt/iter_100'",
        blame="both",
        depth=17,
        unless=r"/dev/shm|/torch_\d",
    ),
    S(
        "storage.stale_handle/errno",
        "storage.stale_handle",
        r"(?i:stale (?:nfs )?file handle)|\[Errno 116\]|\bESTALE\b",
        "[rank17]: OSError: [Errno 116] Stale file handle",
        blame="both",
        depth=17,
    ),
    S(
        "fact:mount_lost",
        "fact:mount_lost",
        r"nfs: server (?P<target>\S+) not responding|(?P<target2>[\w-]+): Connection to \S+ \(at [^)]*\) was lost|"
        r"ceph: (?P<target3>mds\d+) (?:hung|caps stale)|Lustre\w*: .*Request sent has (?:timed out|failed)",
        "host4 kernel: nfs: server 192.0.2.30 not responding, still trying",
        blame="host",
    ),
    S(
        "fact:mount_back",
        "fact:mount_back",
        r"nfs: server (?P<target>\S+) OK\b|(?P<target2>[\w-]+): Connection restored to|ceph: (?P<target3>mds\d+)"
        r" (?:came back|recovered|recovery completed)",
        "host4 kernel: nfs: server 192.0.2.30 OK",
        blame="host",
    ),
    S(
        "storage.unresponsive/hung_task",
        "storage.unresponsive",
        r"\btask \S+ ?blocked for more than \d+ seconds|task \S+:\d+ blocked for more than",
        "host4 kernel: INFO: task python3:12345 blocked for more than 122 seconds.",
        blame="host",
        depth=20,
        unless=r"task (?:" + KERNEL_THREADS + r")",
    ),
    S(
        "storage.unresponsive/other",
        "storage.unresponsive",
        r"(?i:(?:mmfs\w*|GPFS)\b.{0,120}(?:expelled|lease (?:is )?(?:overdue|expired)|not responding|unresponsive|"
        r"long waiters?|stale mount))|"
        r"(?i:beegfs\b.{0,120}(?:unreachable|not responding|timed out|communication error))|"
        r"Transport endpoint is not connected|\[Errno 110\] Connection timed out: '/|"
        r"(?i:(?:mount|file ?system|/\S+)\b.{0,40}\b(?:is hung|hangs|not responding|unresponsive|stalled))",
        "host4 mmfs: [N] GPFS: disk lease is overdue, node host4 will be expelled",
        blame="both",
        depth=20,
        unless=r"(?i)nfs: server|slurm|Nodes? \S+ not responding|watchdog|rdzv|rendezvous|socket|NCCL|GPU",
    ),
    S(
        "storage.lustre_evicted/kernel",
        "storage.lustre_evicted",
        r"This client was evicted by|(?:was|been) evicted by \S+; in progress operations|Lustre\w*:.{0,120}\bevict(?"
        r":ed|ing) (?:this |client )",
        "host7 kernel: LustreError: 167-0: lustre-OST0003-osc-ffff9d0c: This client was evicted by lustre-OST0003; "
        "in progress "
        "operations using this service will fail.",
        blame="host",
        depth=14,
    ),
)
