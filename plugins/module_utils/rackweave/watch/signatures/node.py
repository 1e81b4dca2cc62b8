"""The host's processors and kernel."""

from __future__ import annotations

from ..signature import FINE, report
from ..signature import Signature as S
from .storage import KERNEL_THREADS

TABLE = (
    S(
        "node.cpu_lockup/kernel_thread",
        "node.cpu_lockup",
        r"\btask (?:" + KERNEL_THREADS + r")\S* ?blocked for more than \d+ seconds",
        "host4 kernel: INFO: task kcompactd1:1177 blocked for more than 120 seconds.",
        blame="host",
        depth=20,
    ),
    S(
        "node.cpu_lockup/kernel",
        "node.cpu_lockup",
        r"\bBUG: soft lockup|(?:detected )?hard (?:LOCKUP|lockup) on cpu|rcu\w*:? .{0,40}(?:self-)?detected "
        r"(?:expedited )?stalls?\b|"
        r"Machine Check Exception|\[Hardware Error\]: .*Machine Check|Kernel panic - not syncing",
        "host2 kernel: watchdog: BUG: soft lockup - CPU#18 stuck for 27s! [python3:2254956]",
        blame="host",
        depth=16,
        unless=r"(?i)corrected error|softlockup_panic|soft lockup detector",
    ),
    S(
        "node.cpu_lockup/report",
        "node.cpu_lockup",
        report(r"\b(?:soft|hard)[ -]?lock-?ups?\b|\bCPU (?:stall|hang)\b|\bkernel panic\b"),
        "host3 health: ERROR soft lockup on 3 CPUs",
        blame="host",
        depth=16,
        whole=True,
        unless=FINE + r"|panic=|lockup_panic|detector",
    ),
)
