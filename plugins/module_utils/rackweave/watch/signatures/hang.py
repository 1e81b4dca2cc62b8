"""Hangs: watchdog texts of PyTorch 1.13 to 2.13, gloo time-outs, desync reports, RAS, resiliency launchers."""

from __future__ import annotations

from ..signature import Signature as S

TABLE = (
    S(
        "fact:watchdog",
        "fact:watchdog",
        r"(?:\[(?:PG [^\]]{0,80})?Rank (?P<inline>\d+)\] )?(?:Watchdog caught )?collective operation timeout: "
        r"Work\w+\(SeqNum=(?P<seq>\d+), OpType=(?P<op>\w+)",
        "[rank4]:[E318 07:39:53.792630246 ProcessGroupNCCL.cpp:616] [Rank 4] Watchdog caught collective "
        "operation timeout: "
        "WorkNCCL(SeqNum=610, OpType=COALESCED, NumelIn=5, NumelOut=4, Timeout(ms)=600000) ran for 600086 "
        "milliseconds",
        blame="rank",
    ),
    S(
        "fact:world_size",
        "fact:world_size",
        r"(?i)\bworld[_ ]size[=: ]{1,3}(?P<n>\d{1,6})\b|\bnranks (?P<n2>\d{1,6})\b",
        "using world size: 64, data-parallel size: 8",
    ),
    S(
        "fact:pg_status",
        "fact:pg_status",
        r"\[PG (?:ID )?(?P<pg>\d+)[^\]]*\].*\b[Ll]ast enqueued (?:NCCL )?work: (?P<enqueued>\d+), last completed",
        "[rank4]:[E318 07:39:53.79 ProcessGroupNCCL.cpp:1743] [PG ID 0 PG GUID 0(default_pg) Rank 4] Received a dump "
        "signal due to a collective timeout from rank 2. Last enqueued NCCL work: 611, last completed NCCL work: 611.",
        blame="rank",
    ),
    S(
        "hang.collective_timeout/watchdog",
        "hang.collective_timeout",
        r"collective operation timeout|(?:due to|detected) a collective timeout|Timeout at (?:NCCL work|collective)|"
        r"Some NCCL operations have failed or timed out|failed to pass monitoredBarrier",
        "[rank4]:[E318 07:39:53.79 ProcessGroupNCCL.cpp:1834] [PG ID 2 PG GUID 9 Rank 4] Timeout at NCCL "
        "work: 610, last "
        "enqueued NCCL work: 616, last completed NCCL work: 609.",
        depth=44,
    ),
    S(
        "hang.collective_timeout/gloo",
        "hang.collective_timeout",
        r"Timed out waiting \d+ ?ms for (?:recv|send)",
        "[rank3]: RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 30000ms for "
        "recv operation to complete",
        depth=44,
    ),
    S(
        "fact:gloo_timeout",
        "fact:gloo_timeout",
        r"Timed out waiting \d+ ?ms for (?:recv|send)",
        "[rank3]: RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 30000ms for "
        "recv operation to complete",
        blame="both",
    ),
    S(
        "hang.collective_timeout/barrier",
        "hang.collective_timeout",
        r"Ranks? (?P<ranks>\d+(?:, ?\d+)*) failed to pass monitoredBarrier",
        "RuntimeError: Rank 3 failed to pass monitoredBarrier in 30000 ms",
        depth=43,
    ),
    S(
        "hang.collective_timeout/store",
        "hang.collective_timeout",
        r"retrieving nccl(?:UniqueId|.*unique).* from \[(?P<rank>\d+)\].*wait timeout",
        "[3] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value "
        "store by key '0', but "
        "store->get('0') got error: wait timeout after 600000ms",
        depth=44,
    ),
    S(
        "hang.watchdog_stuck/torch",
        "hang.watchdog_stuck",
        r"watchdog got stuck|Heartbeat monitor timed out|due to ProcessGroup\w+ watchdog hang|Could not "
        r"acquire GIL within|"
        r"possible GIL induced hang",
        "[rank1]:[E ProcessGroupNCCL.cpp:1316] [PG 0 Rank 1] Heartbeat monitor timed out! Process will be terminated",
        blame="rank",
        depth=42,
    ),
    S(
        "hang.no_progress/resiliency",
        "hang.no_progress",
        r"(?i)(?:\brank(?:MonitorServer)?[ =:]+(?P<rank>\d+)\b.{0,60})?did not get (?:subsequent|initial) heartbeat|"
        r"\bhang (?:was )?detected\b|no progress (?:for|in|within) [\d.]+|"
        r"section\(s\)? .*time[d-]* ?out",
        "[2026-03-01 10:00:00] [ERROR] [host2] Did not get subsequent heartbeat. Waited 120.00 seconds.",
        blame="both",
        depth=46,
        unless=r"(?i)no hang detected|hang_?detect(?:ion|or)|not detected",
    ),
    S(
        "hang.desync/detail",
        "hang.desync",
        # Each rank compares itself with rank 0, 1, 2 … and tells the first that differs: where two or more before it
        # agree, that one is odd.
        r"(?i)mismatch between collectives on ranks(?:.*but Rank (?P<rank>[2-9]|\d{2,}) is running)?|"
        r"mismatched collectives?\b(?:.{0,80}\baround rank (?P<rank2>\d+))?|collective (?:type |op )"
        r"?mismatch|collectives are mismatched|"
        r"desync(?:hronization)? detected|NET/Socket ?: .*message truncated ?: receiv(?:ing|ed) \d+ bytes instead of",
        "RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running collective: "
        "CollectiveFingerPrint(SequenceNumber=7, OpType=ALLGATHER), but Rank 0 is running collective: ALLREDUCE",
        depth=41,
        unless=r"(?i)no (?:desync|mismatch)",
    ),
    S(
        "hang.desync/lagging",
        "hang.desync",
        r"ranks? \[(?P<ranks>[\d, ]+)\] are the lagging|\[(?P<rank>\d+)\] (?:has |have )?never joined any|"
        r"[Rr]anks? (?P<ranks2>\d+(?:(?:, ?| and )\d+)*) (?:did not|didn't|never|has not|have not) join(?:ed)?\b|"
        r"Rank (?P<rank2>\d+) (?:is|was) lagging",
        "\t - To our best knowledge, ranks [4] are the lagging ranks that caused this timeout. They never "
        "joined any collectives",
        depth=40,
    ),
    S(
        "hang.desync/missing",
        "hang.desync",
        r"(?i)missing[ _]ranks?['\"]?\s*[:=]\s*[\[{(]?(?P<ranks>\d+(?:, ?\d+)*)",
        "Not all ranks joining collective 5 at entry 3, missing ranks: {3}",
        depth=40,
    ),
    S(
        "hang.process_dead/text",
        "hang.process_dead",
        r"(?i)\bpeer (?P<host>[\w.:%-]{1,64}?)(?:<\d+>)? is (?:considered )?dead\b|\b(?:global )?rank (?P<rank>\d+) "
        r"(?:is |was "
        r")?(?:considered |declared )dead\b",
        "host1:5:5 [0] NCCL WARN RAS peer 192.0.2.9 is considered dead",
        depth=38,
    ),
)
