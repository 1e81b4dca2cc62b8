"""The closed list of diagnosis classes: what each means for severity, alarm and the first thing to do."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DiagnosisClass:
    """One class of the list.

    Attributes:
        name: ``family.detail`` (or ``healthy``).
        severity: ``info``, ``warn``, ``error`` or ``fatal``; a signature may override it.
        survivable: training can go on for a while despite the fault, so later steps do not disprove it.
        first_action: one sentence; a signature may have a more exact one.
    """

    name: str
    severity: str
    survivable: bool
    first_action: str

    @property
    def family(self) -> str:
        """The part before the dot."""
        return self.name.split(".", 1)[0]

    @property
    def alarm(self) -> bool:
        """Whether somebody (or the policy) has to act."""
        return self.severity != "info"


_ROWS = (
    ("healthy", "info", True, "Nothing to do: no fault is visible in this evidence."),
    (
        "net.socket_fallback",
        "error",
        True,
        "Traffic runs over TCP: stop the job, find what hid the RDMA devices (NCCL_IB_DISABLE, /dev/infiniband, "
        "image profile) and force NCCL_NET=IB so that it cannot happen silently.",
    ),
    (
        "net.ib_init_failed",
        "error",
        True,
        "Verbs devices are missing or cannot be opened: check /dev/infiniband and CAP_IPC_LOCK in the container, the "
        "NCCL_IB_HCA filter against /sys/class/infiniband, and the link state on that host.",
    ),
    (
        "net.plugin_load_failed",
        "info",
        True,
        "Note only: an external network plugin is absent and the built-in transport works; fix LD_LIBRARY_PATH if "
        "the plugin is required.",
    ),
    (
        "net.gdr_inactive",
        "warn",
        True,
        "RDMA runs without GPUDirect: load nvidia-peermem or enable DMA-BUF, then check ACS, IOMMU and the PCIe "
        "distance of GPU and NIC.",
    ),
    (
        "net.gdr_partial",
        "warn",
        True,
        "Some GPUs use RDMA without GPUDirect: compare nvidia-smi topo -m, ACS and NUMA placement of those GPUs and "
        "NICs with the others.",
    ),
    (
        "net.peermem_invalid_context",
        "warn",
        True,
        "A process died with live GPUDirect registrations: follow up only if a job fails there; re-run a GPUDirect "
        "bandwidth test on that node.",
    ),
    (
        "net.qp_connect_failed",
        "fatal",
        False,
        "A queue pair cannot reach its peer: test route, VLAN, MTU and GID of this pair on every rail "
        "(ib_write_bw -x <gid>).",
    ),
    (
        "net.gid_config",
        "fatal",
        False,
        "The selected GID is wrong or absent: re-read show_gids inside the job and set NCCL_IB_GID_INDEX to the "
        "RoCE v2 / IPv4 entry, or repair the interface address.",
    ),
    (
        "net.retry_exceeded",
        "fatal",
        False,
        "No acknowledgement from the peer: check first whether the peer's process or host died; otherwise its port, "
        "cable and PFC/ECN drops.",
    ),
    (
        "net.local_protection",
        "fatal",
        False,
        "Local protection error: memory registration with GPUDirect on the printing host; check ACS, IOMMU and the "
        "driver there.",
    ),
    (
        "net.flush_cascade",
        "error",
        False,
        "Only flushed work requests are visible: look for the first status 4, 10 or 12 on another node before "
        "blaming this one.",
    ),
    (
        "net.mr_reg_failed",
        "fatal",
        False,
        "Memory registration was refused: ulimit -l inside the step must be unlimited (slurmd LimitMEMLOCK, "
        "container --ulimit memlock=-1).",
    ),
    ("net.link_down", "fatal", True, "A port lost its link: drain the node, re-seat or replace cable and optic."),
    (
        "net.link_flap",
        "error",
        True,
        "A port goes down and up: restart from the last checkpoint without this node, inspect its cable and optic.",
    ),
    (
        "net.link_degraded",
        "warn",
        True,
        "A link runs slower than it should: drain at the next checkpoint, check cable, optic and slot.",
    ),
    ("net.nic_power", "warn", True, "The NIC reports a power shortfall: check the slot's power budget and the PSU."),
    (
        "net.bootstrap_unreachable",
        "fatal",
        False,
        "The TCP bootstrap cannot reach a peer: set NCCL_SOCKET_IFNAME (and GLOO_SOCKET_IFNAME) to the right "
        "interface, check firewall and routes.",
    ),
    (
        "net.peer_closed",
        "error",
        False,
        "Cascade: the peer went away; read the peer's own log just before this moment for the cause.",
    ),
    (
        "nccl.duplicate_gpu",
        "fatal",
        False,
        "Two ranks share one GPU: check LOCAL_RANK, torch.cuda.set_device and the GPU binding of the step.",
    ),
    (
        "nccl.version_mismatch",
        "fatal",
        False,
        "Ranks load different NCCL versions: start every rank from one image and one library path.",
    ),
    (
        "nccl.segfault",
        "fatal",
        False,
        "Crash inside the communication library: keep the core, check library version, plugin ABI and driver.",
    ),
    (
        "hang.collective_timeout",
        "fatal",
        False,
        "A collective timed out: read the flight recorder for the missing rank, py-spy it, read its kernel log.",
    ),
    (
        "hang.watchdog_stuck",
        "fatal",
        False,
        "The watchdog or heartbeat thread itself is stuck: a CUDA call or the GIL blocks on that rank; check Xid and "
        "take a py-spy --native dump.",
    ),
    (
        "hang.desync",
        "fatal",
        False,
        "Ranks disagree on sequence or operation: py-spy the lagging rank and compare its last collective.",
    ),
    (
        "hang.process_dead",
        "fatal",
        False,
        "RAS reports dead or unreachable peers: read kernel log and job log of that node first.",
    ),
    (
        "hang.no_progress",
        "fatal",
        True,
        "Silence beyond the limit and no error text: collect ncclras, flight recorder, py-spy and kernel log on "
        "every node before anything is killed.",
    ),
    (
        "mem.cuda_oom",
        "fatal",
        False,
        "GPU memory is exhausted: act by the phase in which it happened.",
    ),
    (
        "mem.host_oom",
        "fatal",
        False,
        "Host memory (cgroup) is exhausted: check data workers, pinned staging and the checkpoint load path; "
        "raise --mem.",
    ),
    (
        "mem.shm_exhausted",
        "fatal",
        False,
        "/dev/shm is too small or full: run with --ipc=host or a larger shm size, delete stale segments.",
    ),
    (
        "gpu.app_fault",
        "error",
        False,
        "Suspect the program first: restart once; if the same GPU faults again, run diagnostics on it.",
    ),
    (
        "gpu.ecc_uncorrectable",
        "fatal",
        True,
        "Uncorrectable memory error: drain the node and reset the GPU; after Xid 95 go back one checkpoint.",
    ),
    ("gpu.row_remap_failure", "fatal", True, "Self-repair is exhausted: isolate the GPU or host and open an RMA."),
    (
        "gpu.fallen_off_bus",
        "fatal",
        False,
        "The GPU left the bus: drain the host and power-cycle it (a reset does not help), check PCIe and power.",
    ),
    (
        "gpu.gsp_timeout",
        "fatal",
        True,
        "GSP firmware hang: collect nvidia-bug-report, drain, reset or reboot; consider another driver.",
    ),
    ("gpu.nvlink_error", "fatal", True, "NVLink fault: drain the node, check fabric manager and NVLink status."),
    (
        "gpu.nvswitch_fatal",
        "fatal",
        True,
        "Fatal NVSwitch fault: every GPU of the node is affected; drain, restart fabric manager or reboot.",
    ),
    (
        "gpu.driver_mismatch",
        "fatal",
        False,
        "Kernel module and user library of the driver differ: drain, reload the modules or reboot, pin the driver.",
    ),
    ("node.cpu_lockup", "error", True, "Kernel stall on the host: collect traces, drain and reboot the node."),
    (
        "num.nan",
        "fatal",
        True,
        "The loss or gradient is not a number: stop, go back to the last good checkpoint, find the first bad step.",
    ),
    (
        "num.loss_spike",
        "warn",
        True,
        "The loss jumped: watch a bounded window; if it does not come back, return to a checkpoint and skip the data.",
    ),
    (
        "num.fp16_scale_exhausted",
        "fatal",
        False,
        "Continuous overflow down to the smallest loss scale: stop, resume an older checkpoint, prefer bf16.",
    ),
    (
        "num.sdc_suspect",
        "fatal",
        True,
        "A re-run gave another result: suspect silent corruption; exclude that node, run a burn test, resume from "
        "a checkpoint before it.",
    ),
    (
        "num.sdc_persistent",
        "fatal",
        True,
        "The same GPU repeats the wrong result: drain the node, do not trust its checkpoints.",
    ),
    (
        "perf.straggler",
        "warn",
        True,
        "One rank is slow: check clocks, temperature and PCIe of its GPU; replace it at the next checkpoint.",
    ),
    (
        "perf.slowdown",
        "warn",
        True,
        "Every step became slower: check fabric, storage and shared services before single nodes.",
    ),
    (
        "ckpt.incomplete",
        "error",
        False,
        "The checkpoint directory is an unfinished save: quarantine it and load the previous complete one.",
    ),
    (
        "ckpt.missing_key",
        "fatal",
        False,
        "The checkpoint lacks tensors the model wants: compare model arguments and key names; no retry.",
    ),
    (
        "ckpt.write_failed",
        "error",
        True,
        "Writing the checkpoint failed: check space, quota and mount of the target; keep the previous checkpoint.",
    ),
    (
        "ckpt.tracker_inconsistent",
        "fatal",
        True,
        "Pointer and content of the checkpoint differ: read the tracker on every node, load a verified iteration.",
    ),
    (
        "ckpt.silent_fresh_start",
        "fatal",
        True,
        "The run started from random weights: stop it, fix the load path or mount, use --exit-on-missing-checkpoint.",
    ),
    (
        "ckpt.reshard_unsupported",
        "fatal",
        False,
        "This checkpoint cannot change its layout: convert it (universal or torch_dist) or use the old layout.",
    ),
    (
        "ckpt.async_overlap",
        "warn",
        True,
        "A save began while another was in flight: lengthen the interval or wait for the last one before the next.",
    ),
    (
        "storage.io_error",
        "error",
        False,
        "I/O error under data or checkpoint: check that client, retry once elsewhere.",
    ),
    ("storage.quota", "error", False, "Quota or inodes are used up: free space by retention, ask for quota."),
    (
        "storage.stale_handle",
        "error",
        False,
        "Stale file handle: re-mount on that node, retry from the old checkpoint.",
    ),
    (
        "storage.unresponsive",
        "error",
        True,
        "A mount hangs: check the server and the client's network, do not kill -9.",
    ),
    (
        "storage.lustre_evicted",
        "error",
        True,
        "The Lustre client was evicted: writes in flight are lost; check LNet and NIC of that node, drain "
        "if it repeats.",
    ),
    (
        "launch.child_failed",
        "fatal",
        False,
        "A worker failed and the cause is not in this text: open the standard error of that rank.",
    ),
    (
        "launch.child_crash",
        "fatal",
        False,
        "A worker died by a signal: find its core or last stack; check library versions.",
    ),
    (
        "launch.sigkill_unconfirmed",
        "fatal",
        False,
        "SIGKILL leaves no message: look for oom_kill in kernel and slurmstepd logs, an operator's kill or an agent.",
    ),
    (
        "launch.rdzv_unreachable",
        "fatal",
        False,
        "Launchers cannot reach the rendezvous endpoint: check that it is the first allocated host, the port and "
        "the firewall.",
    ),
    (
        "launch.rdzv_timeout",
        "fatal",
        False,
        "Not all nodes joined the rendezvous: list which tasks started and compare node count and rendezvous id.",
    ),
    (
        "launch.dns_failure",
        "fatal",
        False,
        "The master address does not resolve: use an address every node and container can resolve.",
    ),
    (
        "launch.port_in_use",
        "fatal",
        False,
        "The rendezvous port is taken: derive it from the job id and clear stale launchers on the head node.",
    ),
    (
        "launch.node_rank_early_expansion",
        "fatal",
        False,
        "Every node got the same node rank: quote the srun command so that $SLURM_NODEID expands on the node.",
    ),
    (
        "launch.gpu_count_mismatch",
        "fatal",
        False,
        "Fewer GPUs are visible than processes were started: compare nvidia-smi -L with nproc-per-node and gres.",
    ),
    (
        "launch.grace_exceeded",
        "warn",
        False,
        "The job was killed before its exit save ended: signal earlier than twice the measured save time.",
    ),
    (
        "launch.launcher_orphaned",
        "error",
        False,
        "A launcher lives on after the store died: cancel the step, then requeue.",
    ),
    ("slurm.node_fail", "fatal", False, "Slurm lost that node: keep it out and requeue from the last checkpoint."),
    ("slurm.time_limit", "warn", False, "Time limit reached: requeue from the last checkpoint."),
    ("slurm.preempted", "warn", False, "Preempted, not a fault: let Slurm requeue and resume."),
    (
        "slurm.requeued_held",
        "error",
        False,
        "The job is held after a failed launch: read the prolog log of that node, keep it drained, then release.",
    ),
    (
        "slurm.step_launch_failed",
        "fatal",
        False,
        "The step could not start on that node: check slurmd, credentials and network there.",
    ),
    ("slurm.gres_invalid", "fatal", False, "The step asks for GPUs its allocation does not have: align gres options."),
    (
        "slurm.config_unavailable",
        "fatal",
        False,
        "No node can satisfy the request: compare it with what sinfo and gres.conf advertise.",
    ),
    (
        "slurm.controller_unreachable",
        "error",
        True,
        "slurmctld does not answer: check the controller; running steps go on, do not cancel them.",
    ),
    (
        "slurm.unkillable_step",
        "error",
        True,
        "A step cannot be killed (processes in D state): check storage and GPU driver on that node, reboot it.",
    ),
    (
        "container.import_failed",
        "fatal",
        False,
        "The image could not be fetched: check name, path (./image.sqsh), registry access and free space.",
    ),
    (
        "container.start_failed",
        "fatal",
        False,
        "The container could not start: check the image's integrity, entry point, hooks and the container toolkit.",
    ),
    ("config.world_size", "fatal", False, "The parallel sizes do not divide the number of ranks: fix nodes or layout."),
    ("config.batch_size", "fatal", False, "The batch sizes do not fit together: global = micro x accumulation x data."),
    ("config.zero_pipeline", "fatal", False, "This ZeRO stage cannot be combined with pipeline stages: use stage 1."),
    ("app.exception", "fatal", False, "User code raised: read the traceback of that rank; no retry."),
)

CLASSES = {row[0]: DiagnosisClass(*row) for row in _ROWS}
