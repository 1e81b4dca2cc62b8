"""Slurm 20 to 25: srun, sbatch, slurmstepd, slurmctld, slurmd, and tables of squeue, sinfo and sacct."""

from __future__ import annotations

from ..signature import Signature as S

TABLE = (
    S(
        "fact:batch_host",
        "fact:batch_host",
        r"\bBatchHost=(?P<hosts>[\w.-]+)",
        "   BatchHost=host7",
    ),
    S(
        "slurm.node_fail/srun",
        "slurm.node_fail",
        r"(?:srun|salloc|sbatch): error: Node failure on (?P<hosts>\S+)|due to failure of node (?P<hosts2>[\w.\[\],-"
        r"]+)|[Nn]odes? (?P<hosts3>[\w.\[\],-]+) not responding, setting DOWN|"
        r"node (?P<hosts4>[\w.\[\],-]+) (?:is )?(?:now )?(?:set(?:ting)? (?:to )?)?DOWN\b(?!\*)|"
        r"JobId=\d+ on failed node (?P<hosts5>[\w.-]+)|[Nn]ode (?P<hosts6>[\w.-]+) (?:has )?"
        r"(?:unexpectedly rebooted|rebooted unexpectedly|crashed|died)\b",
        "srun: error: Node failure on host5",
        depth=28,
    ),
    S(
        "fact:node_failure_line",
        "fact:node_failure_line",
        r"CANCELLED AT \S+ DUE TO NODE FAILURE|\bNODE_FAIL\b",
        "slurmstepd: error: *** STEP 4412.0 ON host1 CANCELLED AT 2026-08-02T03:12:55 DUE TO NODE FAILURE, "
        "SEE SLURMCTLD LOG FOR DETAILS ***",
    ),
    S(
        "fact:not_responding",
        "fact:not_responding",
        r"Nodes? (?P<hosts>[\w.\[\],-]+) (?P<state>not responding|now responding|returned to service)|"
        r"[Nn]ode (?P<hosts2>[\w.\[\],-]+) (?P<state2>now responding|returned to service)",
        "[2026-08-02T03:07:55.120] error: Nodes host5 not responding",
    ),
    S(
        "slurm.time_limit/slurm",
        "slurm.time_limit",
        r"DUE TO TIME LIMIT|(?:Time limit exhausted|exceeded time limit|exhausted its time limit) (?:for "
        r")?(?:JobId=|job )?\d*|^\s*\d+(?:_\d+)?(?:\.\w+)?\s.*\bTIMEOUT\b|JobState=TIMEOUT",
        "slurmstepd: error: *** JOB 4412 ON host1 CANCELLED AT 2026-08-02T09:09:37 DUE TO TIME LIMIT ***",
        depth=32,
    ),
    S(
        "slurm.preempted/slurm",
        "slurm.preempted",
        r"(?i:DUE TO PREEMPTION)|^\s*\d+(?:_\d+)?(?:\.\w+)?\s.*\bPREEMPTED\b|JobState=PREEMPTED|(?:JobId=\d+|"
        r"job \d+)\b.{0,60}\b[Pp]reempted\b|[Pp]reempted (?:JobId=|job )\d+",
        "slurmstepd: error: *** STEP 4412.0 ON host1 CANCELLED AT 2026-08-02T09:09:37 DUE TO PREEMPTION ***",
        depth=32,
    ),
    S(
        "fact:cancelled",
        "fact:cancelled",
        r"CANCELLED AT \S+(?! DUE TO)|DUE TO JOB REQUEUE|Received \d+ death signal|SignalException: Process "
        r"\d+ got signal",
        "slurmstepd: error: *** STEP 4412.0 ON host2 CANCELLED AT 2026-08-02T17:00:00 ***",
        role="teardown",
    ),
    S(
        "slurm.requeued_held/reason",
        "slurm.requeued_held",
        r"\((?:job )?(?:launch (?:failed|failure)(?: limit exceeded)?,? )?requeued(?: and| in)? held(?: "
        r"state)?\)|(?i:requeued (?:in|and) held)|JobHeldAdmin|SPECIAL_EXIT|REQUEUE_HOLD|"
        r"(?i:launch[ _]fail[a-z]*(?:[ _]limit[ _]exceeded)?[ _]requeued[ _]held)|Reason=\w*requeued_held",
        "  4412       gpu   mds-3d     user  PENDING       0:00 1-00:00:00     8 (launch failed requeued held)",
        depth=24,
    ),
    S(
        "slurm.requeued_held/prolog",
        "slurm.requeued_held",
        r"(?i:prolog|job env setup)(?:.{0,30}failure)? on node (?P<hosts>[\w.\[\],-]+), draining|(?i:prolog "
        r"(?:launch )?fail\w*).{0,80}node(?:s|list)?[ =:]+(?P<hosts2>[\w.\[\],-]+)|"
        r"(?i:prolog failed(?:,)? (?:status|rc)\b)|"
        r"slurmd error running JobId=\d+ on node\(s\)=(?P<hosts3>\S+?): Prolog",
        "[2026-08-02T04:00:12.1] error: validate_node_specs: Prolog or job env setup failure on node "
        "host2, draining the node",
        blame="host",
        depth=25,
    ),
    S(
        "fact:drain_row",
        "fact:drain_row",
        r"^(?P<reason>Prolog error|Kill task failed|Not responding|Epilog error|batch job complete failure|"
        r"Node unexpectedly re\w*)\s+\S+\s+\S+\s+(?P<hosts>[\w.\[\],-]+)",
        "Prolog error         slurm     2026-08-02T04:00:12 host2",
    ),
    S(
        "fact:down_row",
        "fact:down_row",
        r"^\S+ +(?:up|down|inact) +\S+ +\d+ +down\*? +(?P<hosts>[\w.\[\],-]+)\s*$",
        "gpu*         up   infinite      1  down* host2",
    ),
    S(
        "fact:node_record",
        "fact:node_record",
        r"^\s*NodeName=(?P<hosts>[\w.-]+) ",
        "NodeName=host2 Arch=x86_64 CoresPerSocket=56",
    ),
    S(
        "fact:node_lost",
        "fact:node_lost",
        r"\bReason=(?:Not responding|Node unexpectedly re)",
        "   Reason=Not responding [slurm@2026-08-02T04:00:12]",
    ),
    S(
        "fact:job_nodes",
        "fact:job_nodes",
        r"\bNodeList=(?P<hosts>(?!None)[\w.\[\],-]+)",
        "   NodeList=host[1-4]",
    ),
    S(
        "slurm.step_launch_failed/srun",
        "slurm.step_launch_failed",
        r"Task launch for (?:StepId=)?\S+ failed on node (?P<hosts>[\w.\[\],-]+)|Application launch failed:|"
        r"Job launch failed|"
        r"Unable to create step for job \d+: (?!.*(?:gres|GRES|generic resource|temporarily unavailable|"
        r"retrying))|Invalid job credential|Munge decode failed: .*(?:Expired|Rewound|Invalid|Replayed)"
        r"|slurmstepd: error: execve\(\)|launch_tasks.*failed",
        "srun: error: Task launch for StepId=4412.0 failed on node host3: Socket timed out on send/recv operation",
        blame="host",
        depth=26,
    ),
    S(
        "slurm.gres_invalid/submit",
        "slurm.gres_invalid",
        r"Invalid generic resource \(gres\)|(?i:requested GRES option unsupported)|Invalid GRES|(?i:gres/\w+ "
        r".{0,40}(?:not (?:configured|found|valid)|invalid|unsupported))|Insufficient GRES available",
        "srun: error: Unable to create step for job 4412: Invalid generic resource (gres) specification",
        depth=22,
    ),
    S(
        "slurm.config_unavailable/source",
        "slurm.config_unavailable",
        r"[Cc]ould not establish a configuration source|fetch_config: DNS SRV lookup failed|"
        r"resolve_ctls_from_dns_srv: res_nsearch error",
        "srun: fatal: Could not establish a configuration source",
        depth=27,
    ),
    S(
        "slurm.config_unavailable/submit",
        "slurm.config_unavailable",
        r"Requested node configuration is not available|Requested partition configuration not available|"
        r"Memory specification can not be satisfied|Node count specification invalid|\(BadConstraints\)|"
        r"More processors requested than permitted",
        "sbatch: error: Batch job submission failed: Requested node configuration is not available",
        depth=22,
    ),
    S(
        "slurm.controller_unreachable/any",
        "slurm.controller_unreachable",
        r"(?i)unable to contact slurm controller|slurm(?:ctld)?(?: primary| backup)? controller\b.{0,30}(?:not "
        r"responding|down|unreachable)|"
        r"slurmctld(?:\(\w+\)|\))? (?:is |at \S+ is )?(?:not responding|DOWN\b|unreachable)"
        r"|error: .*(?:connect|contact).{0,30}slurmctld",
        "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
        depth=70,
        unless=r"(?i)are UP|is UP\b|now responding",
    ),
    S(
        "fact:controller_back",
        "fact:controller_back",
        r"(?i)(?:re-?connected|connection (?:re-?established|restored)|now responding|is UP\b|are UP).{0,40}|"
        r"Submitted batch job \d+|registered with slurmctld",
        "Slurmctld(primary) at head1 is UP",
        unless=r"(?i)Nodes? \S+ now",
    ),
    S(
        "slurm.unkillable_step/stepd",
        "slurm.unkillable_step",
        r"ON (?P<host>\S+) AT \S+ DUE TO JOB NOT ENDING WITH SIGNALS|(?i:not ending with signals)|(?i:unkillable "
        r"step(?! *(?:timeout|program)))|UnkillableStepTimeout (?:reached|expired)|[Uu]nkillable processes|"
        r"Kill task failed\b.{0,60}\bnode (?P<host2>[\w.-]+)|on node\(?s?\)?=(?P<host4>[\w.-]+): Kill "
        r"task failed|(?i:setting node (?P<host3>[\w.-]+).{0,40}kill task failed)|"
        r"[Nn]ode (?P<host5>[\w.-]+) (?:drained|draining|set to drain|state set to|reason set to)\b"
        r".{0,40}[Kk]ill task failed",
        "slurmstepd: error: *** STEP 4412.0 STEPD TERMINATED ON host7 AT 2026-08-02T10:00:00 DUE TO JOB "
        "NOT ENDING WITH SIGNALS ***",
        blame="host",
        depth=27,
    ),
)
