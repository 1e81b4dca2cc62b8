"""Launchers: torchrun (1.13 to 2.13), DeepSpeed's launcher, accelerate, srun's view of tasks, rendezvous."""

from __future__ import annotations

from ..signature import Signature as S

TABLE = (
    S(
        "launch.child_crash/mpi",
        "launch.child_crash",
        r"noticed that process rank (?P<rank>\d+) with PID \d+ on node (?P<host>[\w.-]+) exited on"
        r"(?! signal (?:9|15)\b)",
        "prterun noticed that process rank 48 with PID 613162 on node host7 exited on signal 11 (Segmentation fault).",
        depth=48,
    ),
    S(
        "launch.sigkill_unconfirmed/mpi",
        "launch.sigkill_unconfirmed",
        r"noticed that process rank (?P<rank>\d+) with PID \d+ on node (?P<host>[\w.-]+) exited on signal 9\b",
        "mpirun noticed that process rank 4 with PID 61 on node host7 exited on signal 9 (Killed).",
        depth=48,
    ),
    S(
        "launch.child_crash/signal",
        "launch.child_crash",
        r"Signal (?:4|6|7|8|11) \(SIG\w+\) received by PID|srun: error: (?P<host>[\w.-]+): tasks? [\d,-]+: "
        r"(?:Segmentation fault|Aborted|Bus error|Illegal instruction|Floating point exception)|"
        r"Fatal Python error: (?:Segmentation fault|Aborted|Bus error|Illegal instruction|Floating)|Caught "
        r"signal (?:4|6|7|8|11)\b|(?:Segmentation fault|Aborted|Bus error|Illegal instruction)\s*\(core "
        r"dumped\)|"
        r"killed by signal: (?:Segmentation fault|Aborted|Bus error)|\bdied with <Signals\.SIG(?:SEGV|"
        r"ABRT|BUS|ILL|FPE)|Signal: Segmentation fault|traps: \S+ .*general protection|\bpython3?\[\d+\]: "
        r"segfault at",
        "[rank3]: Fatal Python error: Segmentation fault",
        blame="both",
        depth=48,
        unless=r"shared memory",
    ),
    S(
        "launch.sigkill_unconfirmed/srun",
        "launch.sigkill_unconfirmed",
        r"srun: error: (?P<host>[\w.-]+): tasks? [\d,-]+: Killed\b|exits with return code = -9\b|\bdied "
        r"with <Signals\.SIGKILL|is killed by signal: Killed|srun: error: (?P<host2>[\w.-]+): tasks? [\d,-]+: "
        r"Exited with exit code 137\b|^\S+: line \d+: +\d+ Killed\b",
        "srun: error: host4: task 3: Killed",
        blame="both",
        depth=49,
    ),
    S(
        "launch.child_failed/srun",
        "launch.child_failed",
        r"srun: error: (?P<host>[\w.-]+): tasks? [\d,-]+: Exited with exit code (?!0\b|137\b|143\b)\d+|"
        r"exits with return code = (?!-|0\b)\d+|CalledProcessError: Command .* returned non-zero exit "
        r"status",
        "srun: error: host2: task 1: Exited with exit code 1",
        blame="host",
        depth=76,
    ),
    S(
        "launch.child_failed/agent",
        "launch.child_failed",
        r"failed \(exitcode: (?:[1-9]\d*)\) local_rank: (?P<local>\d+)",
        "E0802 07:15:59.627000 2606 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: "
        "1) local_rank: 5 "
        "(pid: 14750) of binary: /usr/bin/python3",
        blame="host",
        depth=77,
    ),
    S(
        "launch.sigkill_unconfirmed/agent",
        "launch.sigkill_unconfirmed",
        r"failed \(exitcode: (?:-9|137)\) local_rank: (?P<local>\d+)",
        "E0802 07:15:59.627000 2606 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: "
        "-9) local_rank: 5 "
        "(pid: 14750) of binary: /usr/bin/python3",
        blame="host",
        depth=50,
    ),
    S(
        "launch.child_crash/agent",
        "launch.child_crash",
        r"failed \(exitcode: -(?:4|6|7|8|11)\) local_rank: (?P<local>\d+)|exits with return code = -(?:4|6|7|8|11)\b",
        "E0802 07:15:59.627000 2606 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: "
        "-11) local_rank: 5 "
        "(pid: 14750) of binary: /usr/bin/python3",
        blame="host",
        depth=51,
    ),
    S(
        "launch.rdzv_unreachable/socket",
        "launch.rdzv_unreachable",
        r"client socket has timed out after \d+ ?m?s while trying to connect|client socket has failed "
        r"to connect to any network address|"
        r"(?:^|\.)RendezvousConnectionError|connection to the C10d store has failed|ConnectionRefusedError: "
        r".*(?:rdzv|store|master)|DistNetworkError: .*(?:timed out|failed to connect)|connect\(\) timed "
        r"out\. Original timeout",
        "[E socket.cpp:860] [c10d] The client socket has timed out after 60s while trying to connect "
        "to (host1, 29500).",
        depth=45,
        unless=r"keep-alive|failed to shutdown",
    ),
    S(
        "launch.rdzv_timeout/store",
        "launch.rdzv_timeout",
        r"\d+ ?(?:/|of) ?\d+ (?:nodes|workers|agents|members|participants) (?:have |had )?joined\b.{0,60}time[d "
        r"-]*out|"
        r"time[d -]*out\b.{0,80}\d+ ?(?:/|of) ?\d+ (?:nodes|workers|agents|members|participants) (?:have |had "
        r")?joined|"
        r"(?:^|[ .])RendezvousTimeoutError|waiting for clients\. \d+/\d+ clients joined|in store based "
        r"barrier|Timed out .*store_based_barrier|"
        r"(?i:timed? ?out .{0,60}join(?:ing)? the rendezvous)|DistStoreError: (?:wait timeout|Timed out)"
        r"|wait timeout after \d+ms, keys: \S*(?:init|barrier|rank|default_pg)",
        "torch.distributed.DistStoreError: Timed out after 901 seconds waiting for clients. 1/4 clients joined.",
        depth=46,
        unless=r"keep-alive|failed to shutdown|(?i:timeout in \d)",
    ),
    S(
        "launch.dns_failure/resolve",
        "launch.dns_failure",
        r"gai error: -?\d+|socket\.gaierror|\[Errno -[235]\] |getaddrinfo\S* (?:failed|error|for)|(?i:could "
        r"not resolve host(?:name)?\b)|(?i:temporary failure in name resolution)|Name or service not known|"
        r"No address associated with hostname",
        "[W socket.cpp:601] [c10d] The IPv4 network addresses of (host1, 29500) cannot be retrieved (gai "
        "error: -2 - Name or "
        "service not known).",
        depth=25,
        unless=r"(?i)wandb|huggingface\.co|hf\.co|sentry|telemetry|s3\.|mlflow|pypi|api\.|gai error: -9\b|"
        r"IPv6 network addresses of .*gai error: -[25]\b",
    ),
    S(
        "launch.dns_failure/ipv6",
        "launch.dns_failure",
        # A name without an IPv6 address is looked up for IPv4 next, so this counts only where nothing else is said.
        r"IPv6 network addresses of .{1,300} cannot be retrieved \(gai error: -[25]\b",
        "[W socket.cpp:601] [c10d] The IPv6 network addresses of (host1, 29500) cannot be retrieved (gai error: -2 - "
        "Name or service not known).",
        depth=79,
    ),
    S(
        "launch.port_in_use/bind",
        "launch.port_in_use",
        r"(?i)address already in use|EADDRINUSE|(?:master|rendezvous|rdzv) port \d+ (?:is )?already in "
        r"use|port \d+ is already in use",
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network "
        "address. port: 29500, "
        "useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
        depth=25,
        unless=r"(?i)tensorboard|tries|trying (?:another|next|port)|using (?:port )?\d+ instead|NCCL|RAS|"
        r"prometheus|jupyter|dashboard|ray\b|retry|exporter|profiler|GPU|device",
    ),
    S(
        "launch.gpu_count_mismatch/cuda",
        "launch.gpu_count_mismatch",
        r"device < num_gpus INTERNAL ASSERT|invalid device ordinal|CUDA_ERROR_INVALID_DEVICE\b|"
        r"cudaErrorInvalidDevice\b|[Bb]ut your machine "
        r"only has|No slot '\d+' specified on host|"
        r"(?i:(?:nproc[-_ ]per[-_ ]node|local[_ ]world[_ ]size|local[_ ]rank|processes(?: per node)?)\b.{0,60}\b(?:e"
        r"xceeds?|greater than|larger than|>=?|but only|more than)\b.{0,60}(?:GPUs?|devices?|device_count|"
        r"visible))|"
        r"(?i:only \d+ (?:GPUs?|CUDA devices?) (?:is |are )?(?:visible|available)\b.{0,60}(?:but|needs?|"
        r"requested|required|processes|expected))|(?i:expected (?:to see )?\d+ (?:GPUs?|devices?).{0,20}(?:but "
        r")?(?:found|"
        r"got|see) \d+)",
        "[rank6]: RuntimeError: CUDA error: invalid device ordinal",
        blame="both",
        depth=15,
    ),
    S(
        "fact:node_rank",
        "fact:node_rank",
        r"(?:torchrun|torch\.distributed\.(?:run|launch)|deepspeed|accelerate|launch\.sh|python).*--(?:node[-_]rank|"
        r"machine_rank)[= ](?P<node_rank>\d+)",
        "host2: + torchrun --nnodes 4 --node_rank 0 --nproc_per_node 8",
        blame="host",
    ),
    S(
        "fact:nnodes",
        "fact:nnodes",
        r"--(?:nnodes|num_machines)[= ](?P<nnodes>\d+)",
        "host2: + torchrun --nnodes 4 --node_rank 0 --nproc_per_node 8",
    ),
    S(
        "launch.launcher_orphaned/keepalive",
        "launch.launcher_orphaned",
        r"The node '(?P<node>[^']+)' has failed to send a keep-alive heartbeat|(?i:orphaned (?:launcher|"
        r"torchrun|agent))",
        "[2026-01-01 10:00:00] torch.distributed.elastic.rendezvous.dynamic_rendezvous: [WARNING] The "
        "node 'host3_2606_0' has "
        "failed to send a keep-alive heartbeat to the rendezvous '4412' due to an error of type RendezvousConnectio"
        "nError.",
        depth=52,
    ),
    S(
        "fact:forced_kill",
        "fact:forced_kill",
        r"forcefully exitt?ing via (?:Signals\.SIGKILL|SIGKILL|9\b)|(?i:sent (?:SIG)?KILL|sending (?:SIG)?KILL)|"
        r"(?i:grace "
        r"(?:period|time) (?:exceeded|expired|is over|ended))",
        "W0802 10:00:30.1 2606 torch/distributed/elastic/multiprocessing/api.py:700] Unable to shutdown "
        "process 14750 via "
        "Signals.SIGTERM, forcefully exiting via Signals.SIGKILL",
    ),
    S(
        "fact:sigkill_entry",
        "fact:sigkill_entry",
        r"Signal 9 \(SIGKILL\) received by PID",
        "  traceback : Signal 9 (SIGKILL) received by PID 14750",
    ),
    S(
        "launch.grace_exceeded/text",
        "launch.grace_exceeded",
        r"(?i)\b(?:grace (?:period|time)|kill ?wait)\b.{0,60}\b(?:exceeded|expired|over|ended)\b.{0,80}\b(?:sav|"
        r"checkpoint)|(?:sav|checkpoint)\w*\b.{0,80}\b(?:did not finish|not finished|unfinished|incomplete)"
        r"\b.{0,40}\b(?:within|before|in)\b.{0,40}\b(?:grace|kill|time limit|SIGKILL)",
        "[WARNING] grace period of 30 s exceeded while saving checkpoint at iteration 4200",
        depth=16,
    ),
)
